//! A budget that is changed while regions are used.

use pagoda::frames::zones::{Place, ResizeError};
use pagoda::{Bytes, Manager, Region};
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

const PAGE: usize = 4096;
const REGION: usize = 96 << 20;

fn content(page: usize) -> [u8; 16] {
    let mut bytes = [0x5a; 16];
    bytes[..8].copy_from_slice(&(page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    bytes
}

fn is_right(region: &Region) -> bool {
    (0..REGION / PAGE).all(|page| {
        let mut found = [0; 16];
        region.read_at(page * PAGE + 16 * (page % 250), &mut found).expect("read");
        found == content(page)
    })
}

#[test]
fn a_budget_is_kept_from_when_it_is_changed_and_nothing_is_lost() {
    if skip_without_moves("a changed budget") {
        return;
    }
    let builder = || Manager::builder().user_mode_only(true).spill_to("/var/tmp", Bytes::gib(1));
    let zoned = builder().zone("a", Bytes::mib(96), Place::Local).zone("b", Bytes::mib(32), Place::Local);
    for (builder, sizes) in [(builder().budget(Bytes::mib(128)), vec![48]), (zoned, vec![36, 12])] {
        let manager = builder.build().expect("a manager");
        let mut region = manager.region(Bytes::new(REGION as u64)).create().expect("a region");
        for page in 0..REGION / PAGE {
            region.write_at(page * PAGE + 16 * (page % 250), &content(page)).expect("written");
        }
        until("all of it is in memory", || region.usage().resident == Bytes::new(REGION as u64));
        manager.set_budget(Bytes::mib(48)).expect("large enough");
        until("the smaller budget is kept", || manager.stats().anon_bytes <= 48 << 20);
        let is_kept = |sizes: &[u64]| {
            manager.zones().iter().zip(sizes).all(|((_, zone), mib)| zone.held <= Bytes::mib(*mib))
        };
        until("so are the zones' parts of it", || is_kept(&sizes));
        assert!(is_right(&region));
        let beyond = manager.set_budget(Bytes::mib(300));
        assert!(matches!(beyond, Err(ResizeError::TooLarge { .. })), "{beyond:?}");
        let least = manager.set_budget(Bytes::mib(1));
        assert!(matches!(least, Err(ResizeError::TooSmall { .. })), "{least:?}");
        assert_eq!(manager.stats().budget_bytes, 48 << 20, "refused");
        manager.set_budget(Bytes::mib(200)).expect("within its addresses");
        assert_eq!(manager.stats().budget_bytes, 200 << 20);
        assert!(is_right(&region));
        let evictions = manager.stats().evictions;
        assert!(is_right(&region));
        assert_eq!(manager.stats().evictions, evictions, "all of it fits");
    }
}
