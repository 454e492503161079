//! The shape of an order, whatever the machine: the pages cleared after the target, and the number
//! of pieces.
//!
//! Counted from the extents themselves, never written down.

use pagoda_core::clear::{FrameSize, Order, Target};
use pagoda_core::page::OS_PAGE;

/// The worst over all targets of a huge frame.
pub struct Shape {
    /// The most pages cleared after the target.
    pub cleared_after_target_max: u32,
    /// The most extents.
    pub extents_max: usize,
    /// Bytes cleared.
    pub bytes: usize,
}

impl Shape {
    /// Walks the order once for each target.
    pub fn of(order: Order) -> Self {
        let mut shape = Self { cleared_after_target_max: 0, extents_max: 0, bytes: 0 };
        for address in (0..FrameSize::HUGE.bytes()).step_by(OS_PAGE) {
            let (_, target) = Target::of_address(address, FrameSize::HUGE);
            let pages = order.extents(target).flat_map(|extent| extent.first..extent.first + extent.pages);
            let after = pages.skip_while(|page| *page != target.page()).count() as u32 - 1;
            shape.cleared_after_target_max = shape.cleared_after_target_max.max(after);
            shape.extents_max = shape.extents_max.max(order.extents(target).count());
            let bytes = order.extents(target).map(|extent| extent.bytes().len()).sum();
            shape.bytes = shape.bytes.max(bytes);
        }
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_the_orders() {
        let shape = |order| {
            let Shape { cleared_after_target_max, extents_max, bytes } = Shape::of(order);
            (cleared_after_target_max, extents_max, bytes)
        };
        assert_eq!(shape(Order::Ascending), (511, 1, 2 << 20));
        assert_eq!(shape(Order::Converge), (0, 512, 2 << 20));
        assert_eq!(shape(Order::Neighbourhood), (0, 4, 2 << 20));
    }
}
