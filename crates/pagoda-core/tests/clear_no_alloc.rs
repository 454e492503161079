//! Clear orders run on the fault path: walking one must not allocate.

use std::hint::black_box;

use allocation_counter::measure;
use pagoda_core::clear::{FrameSize, Order, Target};
use pagoda_core::size::Bytes;

#[test]
fn walking_a_frame_allocates_nothing() {
    assert_eq!(measure(|| drop(black_box(Box::new(1)))).count_total, 1, "allocations are counted");
    let mut pages = 0;
    let allocations = measure(|| {
        for size in [Bytes::kib(64), Bytes::mib(2), Bytes::gib(1)] {
            let size = FrameSize::new(size).expect("a frame size");
            let (_, target) = Target::of_address(size.bytes() / 3, size);
            for order in Order::ALL {
                pages += order
                    .extents(target)
                    .flat_map(|extent| extent.steps())
                    .map(|step| step.pages)
                    .sum::<u32>();
            }
        }
    });
    assert_eq!(allocations.count_total, 0);
    assert_eq!(pages, 5 * (16 + 512 + (1 << 18)));
}
