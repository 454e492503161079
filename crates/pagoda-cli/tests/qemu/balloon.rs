//! A driver of QEMU's balloon in machine code: it inflates the balloon by a part of the guest's
//! memory, and reports another part as free.
//!
//! The device is a virtio device of the old kind (virtio 0.9.5, "legacy"): one page of I/O ports,
//! and queues of which each takes one request here. It runs after the guest has read its memory
//! back, in the same 32-bit mode.

use std::ops::Range;

use pagoda_linux::testing::guest_code::{RIGHT, WRONG, word_at};

/// The options of the device. Its slot on the bus is in [`CONFIG`].
pub const DEVICE: &str =
    "-device virtio-balloon-pci,disable-modern=on,disable-legacy=off,free-page-reporting=on,addr=4";
/// The report when the parts read zero, and the words beside them as they were written.
pub const GONE: u8 = b'B';

/// Where the device's registers in the bus's configuration begin: slot 4, function 0.
const CONFIG: u32 = 0x8000_2000;
/// The device's ports, and those of its registers.
const PORTS: u16 = 0xC000;
const FEATURES: u16 = PORTS + 4;
const QUEUE_PAGE: u16 = PORTS + 8;
const QUEUE: u16 = PORTS + 14;
const NOTIFY: u16 = PORTS + 16;
const STATUS: u16 = PORTS + 18;
/// The feature bit of reporting free pages.
const REPORTS: u32 = 1 << 5;
/// A descriptor whose memory is for the device to write: free pages are told that way.
const FOR_DEVICE: u32 = 2;

/// A queue: its number, its length by the device, and the page of memory where we put it.
struct Queue(u16, u32, u32);
const INFLATE: Queue = Queue(0, 128, 0x1_0000);
/// Behind those of deflating and statistics.
const REPORT: Queue = Queue(3, 32, 0x1_4000);
/// The list of the pages by which the balloon grows.
const LIST: u32 = 0x2_0000;

const PAGE: u32 = 4096;

/// Machine code as it grows.
#[derive(Default)]
struct Code(Vec<u8>);

impl Code {
    fn op(&mut self, op: &[u8], operands: &[u32]) {
        self.0.extend(op);
        operands.iter().for_each(|operand| self.0.extend(operand.to_le_bytes()));
    }

    /// A write to a port, by an `op` of the width that it takes.
    fn out(&mut self, port: u16, value: u32, op: &[u8]) {
        self.op(&[0xBA], &[port.into()]); // mov edx, port
        self.op(&[0xB8], &[value]); // mov eax, value
        self.op(op, &[]);
    }

    fn out8(&mut self, port: u16, value: u8) {
        self.out(port, value.into(), &[0xEE]);
    }

    fn out16(&mut self, port: u16, value: u16) {
        self.out(port, value.into(), &[0x66, 0xEF]);
    }

    fn out32(&mut self, port: u16, value: u32) {
        self.out(port, value, &[0xEF]);
    }

    fn store(&mut self, address: u32, value: u32) {
        self.op(&[0xC7, 0x05], &[address, value]); // mov dword [address], value
    }

    /// A short jump of this `op` back to `begin`.
    fn back(&mut self, op: u8, begin: usize) {
        let back = self.0.len() + 2 - begin;
        self.op(&[op, (back as u8).wrapping_neg()], &[]);
    }

    /// Hands the device one request: `bytes` from `address` on.
    fn request(&mut self, queue: &Queue, address: u32, bytes: u32, flags: u32) {
        let Queue(number, len, at) = *queue;
        // Descriptors, behind them the ring of requests, and on the next page that of answers.
        for (i, word) in [address, 0, bytes, flags].into_iter().enumerate() {
            self.store(at + 4 * i as u32, word);
        }
        self.store(at + 16 * len + 4, 0); // the first descriptor
        self.store(at + 16 * len, 1 << 16); // one request
        self.out16(NOTIFY, number);
        let begin = self.0.len();
        self.op(&[0x66, 0x83, 0x3D], &[at + PAGE + 2]); // cmp word [answers], 1
        self.op(&[1], &[]);
        self.back(0x75, begin); // jne begin
    }

    /// Reports [`WRONG`] and ends unless the word at `address`, or at ECX, is `value`.
    fn expect(&mut self, address: Option<u32>, value: u32, end: &[u8]) {
        match address {
            Some(address) => self.op(&[0x81, 0x3D], &[address, value]), // cmp dword [address], value
            None => self.op(&[0x81, 0x39], &[value]),                   // cmp dword [ecx], value
        }
        self.op(&[0x74, 2 + end.len() as u8, 0xB0, WRONG], &[]); // je on; mov al, WRONG
        self.op(end, &[]);
    }
}

/// Code that inflates the balloon by the pages of `inflated`, reports those of `reported`, and
/// looks at both and beside them. It reports [`GONE`] on `port` and ends with the code `end`, with
/// [`RIGHT`] in AL or [`WRONG`]. It comes with the report of the guest before in AL.
pub fn give_back(port: u8, inflated: &Range<u32>, reported: &Range<u32>, end: &[u8]) -> Vec<u8> {
    let mut code = Code::default();
    code.op(&[0x3C, RIGHT, 0x74, end.len() as u8], &[]); // cmp al, RIGHT; je on
    code.op(end, &[]);
    // The device's ports, and its leave to use them and memory.
    for (register, value) in [(0x10, u32::from(PORTS) | 1), (0x04, 1 | 4)] {
        code.out32(0xCF8, CONFIG | register);
        code.out32(0xCFC, value);
    }
    // A reset; then it is seen, has a driver, and its queues, and runs.
    [0, 1, 3].into_iter().for_each(|status| code.out8(STATUS, status));
    code.out32(FEATURES, REPORTS);
    for Queue(number, _, at) in [INFLATE, REPORT] {
        code.out16(QUEUE, number);
        code.out32(QUEUE_PAGE, at / PAGE);
    }
    code.out8(STATUS, 7);
    code.op(&[0xBF], &[LIST]); // mov edi, LIST
    code.op(&[0xB9], &[inflated.start / PAGE]); // mov ecx, the first page
    let begin = code.0.len();
    code.op(&[0x89, 0x0F, 0x83, 0xC7, 4, 0x41], &[]); // mov [edi], ecx; add edi, 4; inc ecx
    code.op(&[0x81, 0xF9], &[inflated.end / PAGE]); // cmp ecx, the end
    code.back(0x72, begin); // jb begin
    code.request(&INFLATE, LIST, 4 * (inflated.end - inflated.start) / PAGE, 0);
    code.request(&REPORT, reported.start, reported.end - reported.start, FOR_DEVICE);
    for part in [inflated, reported] {
        for beside in [part.start - 64, part.end] {
            code.expect(Some(beside), word_at(beside), end);
        }
        // One word of each 64 KiB: the rest stays away.
        code.op(&[0xB9], &[part.start]); // mov ecx, start
        let begin = code.0.len();
        code.expect(None, 0, end);
        code.op(&[0x81, 0xC1], &[64 << 10]); // add ecx, 64 KiB
        code.op(&[0x81, 0xF9], &[part.end]); // cmp ecx, end
        code.back(0x72, begin); // jb begin
    }
    code.op(&[0xB0, GONE, 0xE6, port, 0xB0, RIGHT], &[]); // mov al, GONE; out; mov al, RIGHT
    code.op(end, &[]);
    code.0
}
