//! Symbol lookup in the objects of the process, without the dynamic linker's functions.
//!
//! The hooks need the functions that they stand in for, and a program may have a `dlsym` of its
//! own. The dynamic linkers of glibc and musl keep a list of all objects for debuggers, in the
//! order of symbol lookup. It is read on threads of the program, at the start, when no other thread
//! changes it. This module must never write to the linker's data.

use std::ffi::{CStr, c_char, c_int, c_void};

use pagoda_linux::mem::mincore::is_mapped;

/// `struct link_map` of link.h, as far as debuggers may read it.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

/// `struct r_debug` of link.h.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const LinkMap,
}

#[repr(C)]
struct Dynamic {
    tag: usize,
    value: usize,
}

const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
const DT_VERSYM: usize = 0x6fff_fff0;

/// In a version's index: of another version than the default.
const HIDDEN_VERSION: u16 = 0x8000;

const STT_TLS: u8 = 6;
const STT_GNU_IFUNC: u8 = 10;

/// The most objects that the kernel's limit of mappings allows; a longer list is damaged.
const OBJECTS_MAX: usize = 1 << 16;

unsafe extern "C" {
    /// The head of the list of glibc; null in another C library.
    fn pagoda_glibc_objects() -> *const Debug;
    /// A pointer to that of musl; null in another C library.
    fn pagoda_musl_objects() -> *const *const Debug;
    /// This object's own dynamic section.
    fn pagoda_own_dynamic() -> *const Dynamic;
}

hidden!("pagoda_glibc_objects":
    ".weak _r_debug",
    "mov rax, qword ptr [rip + _r_debug@GOTPCREL]",
    "ret"
);
hidden!("pagoda_musl_objects":
    ".weak _dl_debug_addr",
    "mov rax, qword ptr [rip + _dl_debug_addr@GOTPCREL]",
    "ret"
);
hidden!("pagoda_own_dynamic":
    ".hidden _DYNAMIC",
    "lea rax, [rip + _DYNAMIC]",
    "ret"
);
hidden!("dlsym": "jmp {function}"; function = sym dlsym);
hidden!("dl_iterate_phdr": "jmp {function}"; function = sym dl_iterate_phdr);

/// Whether this process has glibc. Nothing else is managed.
pub fn is_glibc() -> bool {
    // SAFETY: it returns an address.
    !unsafe { pagoda_glibc_objects() }.is_null() && !find(c"gnu_get_libc_version", false).is_null()
}

/// The definition of `name` behind this library, for a hook; null if there is none.
pub fn next(name: &CStr) -> *mut c_void {
    find(name, true)
}

/// Whether any object of the process defines `name` for others.
pub fn is_defined(name: &CStr) -> bool {
    !find(name, false).is_null()
}

/// The objects, from the program on.
fn objects() -> impl Iterator<Item = &'static LinkMap> {
    // SAFETY: the dynamic linker's own data, which is there as long as the process, if it is there
    // at all.
    let first = unsafe {
        let debug = pagoda_glibc_objects().as_ref();
        let debug = debug.or_else(|| pagoda_musl_objects().as_ref().and_then(|debug| debug.as_ref()));
        debug.and_then(|debug| debug.first.as_ref())
    };
    // SAFETY: as above.
    std::iter::successors(first, |object| unsafe { object.next.as_ref() }).take(OBJECTS_MAX)
}

fn find(name: &CStr, only_behind: bool) -> *mut c_void {
    // SAFETY: it returns an address.
    let own = unsafe { pagoda_own_dynamic() };
    let is_own = |object: &LinkMap| object.dynamic == own;
    let skipped = if only_behind { objects().position(is_own).map_or(0, |at| at + 1) } else { 0 };
    objects()
        .skip(skipped)
        .filter(|object| !is_own(object))
        .find_map(|object| Tables::of(object)?.address(name))
        .unwrap_or(std::ptr::null_mut())
}

/// The tables of an object that a lookup needs.
struct Tables {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    versions: *const u16,
    gnu_hash: *const u32,
    hash: *const u32,
}

impl Tables {
    fn of(object: &LinkMap) -> Option<Self> {
        let mut tables = Self {
            base: object.base,
            symbols: std::ptr::null(),
            strings: std::ptr::null(),
            versions: std::ptr::null(),
            gnu_hash: std::ptr::null(),
            hash: std::ptr::null(),
        };
        let mut at = object.dynamic;
        // SAFETY: a dynamic section ends with an entry whose tag is 0.
        while let Some(entry) = unsafe { at.as_ref() }.filter(|entry| entry.tag != 0) {
            // glibc has added the base to the addresses there, but for the kernel's own object;
            // musl has not.
            let address = if entry.value < object.base { entry.value + object.base } else { entry.value };
            match entry.tag {
                DT_SYMTAB => tables.symbols = std::ptr::with_exposed_provenance(address),
                DT_STRTAB => tables.strings = std::ptr::with_exposed_provenance(address),
                DT_VERSYM => tables.versions = std::ptr::with_exposed_provenance(address),
                DT_GNU_HASH => tables.gnu_hash = std::ptr::with_exposed_provenance(address),
                DT_HASH => tables.hash = std::ptr::with_exposed_provenance(address),
                _ => {}
            }
            // SAFETY: this was not the last entry.
            at = unsafe { at.add(1) };
        }
        (!tables.symbols.is_null() && !tables.strings.is_null()).then_some(tables)
    }

    fn address(&self, name: &CStr) -> Option<*mut c_void> {
        if self.gnu_hash.is_null() { self.by_hash(name) } else { self.by_gnu_hash(name) }
    }

    /// By `DT_GNU_HASH`: buckets of consecutive symbols, whose hashes follow the buckets.
    fn by_gnu_hash(&self, name: &CStr) -> Option<*mut c_void> {
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        // SAFETY: the linker laid the table out so: four words, a filter of 64-bit words, buckets,
        // hashes.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|at| self.gnu_hash.add(at).read());
            if buckets == 0 {
                return None;
            }
            let bucket = self.gnu_hash.add(4 + 2 * filter as usize);
            let hashes = bucket.add(buckets as usize);
            let mut symbol = bucket.add((hash % buckets) as usize).read();
            if symbol < first {
                return None;
            }
            loop {
                let found = hashes.add((symbol - first) as usize).read();
                if found | 1 == hash | 1
                    && let Some(address) = self.symbol(symbol as usize, name)
                {
                    return Some(address);
                }
                // The last one of a bucket.
                if found & 1 != 0 {
                    return None;
                }
                symbol += 1;
            }
        }
    }

    /// By `DT_HASH`: its second word says how many symbols there are. A linear search will do, for
    /// a few names.
    fn by_hash(&self, name: &CStr) -> Option<*mut c_void> {
        if self.hash.is_null() {
            return None;
        }
        // SAFETY: the table begins with two words.
        let count = unsafe { self.hash.add(1).read() };
        (1..count as usize).find_map(|symbol| self.symbol(symbol, name))
    }

    /// The address of symbol number `at`, if it defines `name` in its default version.
    fn symbol(&self, at: usize, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the hash table names only symbols that are there, and each has a name and, if
        // there are any, a version.
        let (symbol, found) = unsafe {
            let symbol = &*self.symbols.add(at);
            (symbol, CStr::from_ptr(self.strings.add(symbol.st_name as usize)))
        };
        let kind = symbol.st_info & 15;
        // SAFETY: as above.
        let is_hidden =
            !self.versions.is_null() && unsafe { self.versions.add(at).read() } & HIDDEN_VERSION != 0;
        let is_local = symbol.st_info >> 4 == 0;
        if found != name || symbol.st_shndx == 0 || kind == STT_TLS || is_hidden || is_local {
            return None;
        }
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(self.base + symbol.st_value as usize);
        if kind != STT_GNU_IFUNC {
            return Some(address);
        }
        // SAFETY: such a symbol is a function without arguments that returns the address.
        Some(unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(address)() })
    }
}

/// As dlsym(3), for `RTLD_DEFAULT` and `RTLD_NEXT`.
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller passes a C string.
    find(unsafe { CStr::from_ptr(name) }, handle == libc::RTLD_NEXT)
}

/// The callback of dl_iterate_phdr(3).
type Each = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

/// As dl_iterate_phdr(3), for the objects that begin with their header: all but a program at a
/// fixed address.
unsafe extern "C" fn dl_iterate_phdr(each: Option<Each>, data: *mut c_void) -> c_int {
    let Some(each) = each else { return 0 };
    // The base of an object that was linked for another address than 0 is none of its own.
    for object in objects().filter(|object| object.base != 0 && is_mapped(object.base)) {
        let header = std::ptr::with_exposed_provenance::<libc::Elf64_Ehdr>(object.base);
        // SAFETY: a page is mapped there, and an object that begins with this mark begins with its
        // header; the caller's function takes such a record.
        let result = unsafe {
            if (&raw const (*header).e_ident).cast::<[u8; 4]>().read() != *b"\x7fELF" {
                continue;
            }
            let mut info: libc::dl_phdr_info = std::mem::zeroed();
            info.dlpi_addr = object.base as u64;
            info.dlpi_name = object.name;
            info.dlpi_phdr = header.cast::<u8>().add((*header).e_phoff as usize).cast();
            info.dlpi_phnum = (*header).e_phnum;
            each(&raw mut info, size_of::<libc::dl_phdr_info>(), data)
        };
        if result != 0 {
            return result;
        }
    }
    0
}
