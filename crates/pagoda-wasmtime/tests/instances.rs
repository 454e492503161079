//! Many instances of a Wasm module in one budget: each grows its memory, fills it and reads it back
//! after all others have done the same.

use pagoda::{Bytes, Manager};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;
use pagoda_wasmtime::ManagedMemories;
use wasmtime::{Config, Engine, Instance, Module, Store, TypedFunc};

const INSTANCES: i32 = 50;
/// Pages of Wasm, of 64 KiB.
const PAGES: i32 = 64;
const BUDGET: Bytes = Bytes::mib(32);
/// A word for so many bytes is filled.
const STEP: i32 = 64;
const FACTOR: i32 = 0x9E37_79B1_u32 as i32;

/// `i32.const`.
fn constant(mut value: i32) -> Vec<u8> {
    let mut code = vec![0x41];
    loop {
        let byte = value as u8 & 0x7F;
        value >>= 7;
        let is_last = (value == 0 && byte & 0x40 == 0) || (value == -1 && byte & 0x40 != 0);
        code.push(if is_last { byte } else { byte | 0x80 });
        if is_last {
            return code;
        }
    }
}

/// A section, a function's body, or a list in one: its length first.
fn sized(content: &[u8]) -> Vec<u8> {
    let len = u8::try_from(content.len()).ok().filter(|len| *len < 128).expect("one byte of length");
    [&[len], content].concat()
}

/// A module with a memory of `minimum` to `PAGES` pages and the functions `grow(pages)`,
/// `fill(seed)`, `wrong(seed)`, which counts words, and `load(address)`.
fn module(minimum: u8) -> Vec<u8> {
    // (address ^ seed) * FACTOR, with the address in local 1 and the seed in local 0.
    let word = [&[0x20, 1, 0x20, 0, 0x73][..], &constant(FACTOR), &[0x6C]].concat();
    // The next address; again while it is within the memory.
    let again = [
        &[0x20, 1][..],
        &constant(STEP),
        &[0x6A, 0x22, 1, 0x3F, 0],
        &constant(16),
        &[0x74, 0x49, 0x0D, 0, 0x0B],
    ]
    .concat();
    let grow = vec![0, 0x20, 0, 0x40, 0, 0x0B];
    let fill =
        [&[1, 1, 0x7F, 0x03, 0x40, 0x20, 1][..], &word, &[0x36, 2, 0], &again, &[0x41, 0, 0x0B]].concat();
    let wrong = [
        &[1, 2, 0x7F, 0x03, 0x40, 0x20, 2, 0x20, 1, 0x28, 2, 0][..],
        &word,
        &[0x47, 0x6A, 0x21, 2],
        &again,
        &[0x20, 2, 0x0B],
    ]
    .concat();
    let load = vec![0, 0x20, 0, 0x28, 2, 0, 0x0B];
    let bodies: Vec<u8> = [grow, fill, wrong, load].iter().flat_map(|body| sized(body)).collect();
    let names = ["grow", "fill", "wrong", "load"];
    let exports =
        names.iter().zip(0u8..).flat_map(|(name, at)| [sized(name.as_bytes()), vec![0, at]].concat());
    let exports: Vec<u8> = exports.collect();
    let sections: [(u8, Vec<u8>); 5] = [
        (1, vec![1, 0x60, 1, 0x7F, 1, 0x7F]),
        (3, vec![4, 0, 0, 0, 0]),
        (5, vec![1, 1, minimum, PAGES as u8]),
        (7, [&[4][..], &exports].concat()),
        (10, [&[4][..], &bodies].concat()),
    ];
    let mut wasm = b"\0asm\x01\0\0\0".to_vec();
    for (id, content) in sections {
        wasm.push(id);
        // The code is longer than one byte says.
        wasm.extend([content.len() as u8 & 0x7F | 0x80, (content.len() >> 7) as u8]);
        wasm.extend(content);
    }
    wasm
}

struct Guest {
    store: Store<()>,
    instance: Instance,
}

impl Guest {
    fn start(engine: &Engine, module: &Module) -> Self {
        let mut store = Store::new(engine, ());
        let instance = Instance::new(&mut store, module, &[]).expect("an instance");
        Self { store, instance }
    }
    fn call(&mut self, name: &str, argument: i32) -> wasmtime::Result<i32> {
        let function: TypedFunc<i32, i32> = self.instance.get_typed_func(&mut self.store, name)?;
        function.call(&mut self.store, argument)
    }
}

/// An engine with this manager's memories, and the module.
fn engine(manager: &Manager, minimum: u8) -> (Engine, Module) {
    let mut config = Config::new();
    config.with_host_memory(ManagedMemories::shared(manager.clone()));
    let engine = Engine::new(&config).expect("an engine");
    let module = Module::new(&engine, module(minimum)).expect("a module");
    (engine, module)
}

#[test]
fn fifty_instances_keep_their_content_in_a_sixth_of_it() {
    if skip_without_moves("linear memories") {
        return;
    }
    let builder = || Manager::builder().budget(BUDGET).spill_to("/var/tmp", Bytes::gib(1));
    for builder in [builder().user_mode_only(true), builder().serve_in_thread(true)] {
        let manager = builder.build().expect("a manager");
        let (engine, module) = engine(&manager, 1);
        let mut guests: Vec<_> = (0..INSTANCES).map(|_| Guest::start(&engine, &module)).collect();
        for (guest, seed) in guests.iter_mut().zip(1..) {
            assert_eq!(guest.call("grow", PAGES - 1).expect("called"), 1, "it had one page");
            guest.call("fill", seed).expect("filled");
        }
        for (guest, seed) in guests.iter_mut().zip(1..) {
            assert_eq!(guest.call("wrong", seed).expect("read"), 0, "instance {seed}");
            assert_ne!(guest.call("wrong", -seed).expect("read"), 0, "it counts");
        }
        let stats = manager.stats();
        assert!(stats.stores > 0 && stats.faults_stored > 0, "it ran over its budget: {stats:?}");
        assert!(stats.anon_peak_bytes <= (32 + 16) << 20, "{} is over budget", stats.anon_peak_bytes);
        drop(guests);
        until("nothing is left of them", || manager.stats().resident_bytes == 0);
    }
}

#[test]
fn an_access_beyond_the_end_is_a_trap_and_growth_moves_the_end() {
    if skip_without_moves("linear memories") {
        return;
    }
    let manager = Manager::builder().budget(BUDGET).user_mode_only(true).build().expect("a manager");
    for minimum in [0, 1] {
        let (engine, module) = engine(&manager, minimum);
        let mut guest = Guest::start(&engine, &module);
        let mut pages = i32::from(minimum);
        while pages < 4 {
            let end = pages << 16;
            for address in [end, end + 4096, 4 << 16, PAGES << 16, -4] {
                let trap = guest.call("load", address).expect_err("beyond the end");
                assert_eq!(trap.downcast_ref(), Some(&wasmtime::Trap::MemoryOutOfBounds), "{trap:?}");
            }
            assert_eq!(guest.call("grow", 1).expect("called"), pages);
            pages += 1;
            for address in [0, end, end + (1 << 16) - 4] {
                assert_eq!(guest.call("load", address).expect("within"), 0);
            }
        }
        guest.call("fill", 7).expect("filled");
        assert_eq!(guest.call("wrong", 7).expect("read"), 0);
        assert_eq!(guest.call("grow", PAGES).expect("called"), -1, "beyond its maximum");
    }
}
