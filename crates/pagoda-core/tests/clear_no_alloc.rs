//! Clear orders run on the fault path: walking one must not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use pagoda_core::clear::{FrameSize, Order, Target};
use pagoda_core::size::Bytes;

/// The system's allocator, which counts what this thread asks for.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator as it came; the counter is a plain cell without a destructor,
// so that reaching it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn walking_a_frame_allocates_nothing() {
    let before = ALLOCATIONS.get();
    drop(Box::new(before));
    assert_eq!(ALLOCATIONS.get(), before + 1, "allocations are counted");
    let before = ALLOCATIONS.get();
    let mut pages = 0;
    for size in [Bytes::kib(64), Bytes::mib(2), Bytes::gib(1)] {
        let size = FrameSize::new(size).expect("a frame size");
        let (_, target) = Target::of_address(size.bytes() / 3, size);
        for order in Order::ALL {
            pages +=
                order.extents(target).flat_map(|extent| extent.steps()).map(|step| step.pages).sum::<u32>();
        }
    }
    assert_eq!(ALLOCATIONS.get(), before);
    assert_eq!(pages, 5 * (16 + 512 + (1 << 18)));
}
