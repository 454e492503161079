use super::*;
use proptest::prelude::*;

#[test]
fn an_invalid_extent_is_refused() {
    assert_eq!(Extent::new(0, 0), None);
    assert_eq!(Extent::new(511, 2), None);
    assert_eq!(Extent::new(u64::MAX, 1), None);
    assert_eq!(Extent::new(0, u32::MAX), None);
    assert_eq!(Extent::new(512, 512).map(Extent::end), Some(1024));
}

#[test]
fn an_invalid_geometry_is_refused() {
    assert_eq!(Geometry::new(Bytes::mib(1), 0), None);
    assert_eq!(Geometry::new(Bytes::mib(1), CHANNELS_MAX + 1), None);
    assert_eq!(Geometry::new(IMAGE_MOST.saturating_add(Bytes::new(1)), 1), None);
}

#[test]
fn the_last_page_may_be_cut() {
    let geometry = Geometry::new(Bytes::new(5000), 1).expect("a geometry");
    assert_eq!(geometry.pages(), 2);
    assert_eq!(Extent::new(0, 2).map(|both| geometry.part_of_image(both)), Some(Bytes::new(5000)));
    assert_eq!(Extent::new(1, 1).map(|last| geometry.part_of_image(last)), Some(Bytes::new(904)));
    assert!(Extent::new(1, 2).is_some_and(|beyond| !geometry.owns(0, beyond)));
}

proptest! {
    #[test]
    fn a_list_names_each_stripe_of_its_channel_once(
        named in prop::collection::vec((0u64..20, 0u64..4), 1..30), channel in 0u16..3
    ) {
        // Its last stripe, the 17th, has three pages.
        let geometry = Geometry::new(Bytes::new((32 << 20) + 3 * 4096), 3).expect("a geometry");
        let (mut list, mut last) = (StripeList::new(geometry, channel), None);
        for (stripe, beside) in named {
            let is_right = last.is_none_or(|last| stripe > last)
                && stripe % 3 == u64::from(channel)
                && stripe < 17
                && beside == 0;
            prop_assert_eq!(list.accept(stripe * u64::from(STRIPE_PAGES) + beside), is_right);
            if !is_right {
                break;
            }
            last = Some(stripe);
        }
    }

    #[test]
    fn each_page_is_of_exactly_one_channel(image in 0u64..64 << 20, channels in 1..=CHANNELS_MAX) {
        let geometry = Geometry::new(Bytes::new(image), channels).expect("a geometry");
        let mut owners = vec![0u32; geometry.pages() as usize];
        for channel in 0..channels {
            for stripe in geometry.stripes_of(channel) {
                for page in stripe..geometry.pages().min(stripe + u64::from(STRIPE_PAGES)) {
                    owners[page as usize] += 1;
                    let page = Extent::new(page, 1).expect("a page");
                    prop_assert!((0..channels).all(|other| geometry.owns(other, page) == (other == channel)));
                }
            }
        }
        prop_assert!(owners.iter().all(|&owners| owners == 1));
    }
}
