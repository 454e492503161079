//! Pages that change places between a local and a remote zone: every byte, the zones of hot and
//! cold pages, and the counters.

use std::ops::Range;

use pagoda::frames::zones::Place;
use pagoda::{BasePage, Bytes, Manager, ManagerBuilder, Region};
use pagoda_linux::testing::random::Random;
use pagoda_linux::testing::skip::skip_without_moves;
use pagoda_linux::testing::wait::until;

use crate::regions::support::{PAGE, Shadow, settled};

fn builder(near: u64, far: u64) -> ManagerBuilder {
    Manager::builder().user_mode_only(true).zone("near", Bytes::mib(near), Place::Local).zone(
        "far",
        Bytes::mib(far),
        Place::Remote,
    )
}

fn content(value: u64) -> [u8; PAGE] {
    let mut content = [0; PAGE];
    for (i, line) in content.chunks_exact_mut(64).enumerate() {
        line[..8]
            .copy_from_slice(&value.wrapping_add(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    content
}

fn fill(region: &mut Region, pages: Range<usize>) {
    for page in pages {
        region.write_at(page * PAGE, &content(page as u64)).expect("written");
    }
}

/// A region of 96 MiB in zones of 32 and 96, filled in order, and how many pages it has.
fn filled() -> (Manager, Region, usize) {
    let manager = builder(32, 96).build().expect("a manager");
    let mut region = manager.region(Bytes::mib(96)).create().expect("a region");
    let pages = region.len() / PAGE;
    fill(&mut region, 0..pages);
    (manager, region, pages)
}

fn expect(region: &Region, pages: impl Iterator<Item = usize>) {
    for page in pages {
        let mut back = [0; PAGE];
        region.read_at(page * PAGE, &mut back).expect("read");
        assert!(back == content(page as u64), "page {page}");
    }
}

/// The percentage of these pages that is in the zone that was named first.
fn near_percent(region: &Region, pages: &Range<usize>) -> u64 {
    let bytes = pages.len() * PAGE;
    100 * region.zones(pages.start * PAGE, bytes)[0].1.get() / bytes as u64
}

#[test]
fn hot_pages_get_into_the_local_zone_and_cold_ones_make_room_for_them() {
    if skip_without_moves("pages that change zones") {
        return;
    }
    let (manager, region, pages) = filled();
    let hot = pages - (20 << 20) / PAGE..pages;
    assert_eq!(near_percent(&region, &hot), 0, "{:?}", region.zones(0, region.len()));
    until("hot pages are in the local zone", || {
        expect(&region, hot.clone().step_by(16));
        near_percent(&region, &hot) >= 90
    });
    let stats = settled(&manager);
    assert!(stats.zones_promoted_bytes >= 18 << 20 && stats.zones_demoted_bytes > 0, "{stats:?}");
    assert_eq!(stats.stores, 0, "all of it fits: {stats:?}");
    expect(&region, 0..pages);
}

#[test]
fn nothing_moves_while_no_page_in_the_remote_zone_is_used() {
    if skip_without_moves("pages that change zones") {
        return;
    }
    let (manager, region, pages) = filled();
    let hot = 0..(20 << 20) / PAGE;
    // They came first. Beside much else the rest takes long, and some of them are cold by then.
    until("hot pages are in the local zone", || {
        expect(&region, hot.clone().step_by(16));
        near_percent(&region, &hot) >= 90
    });
    let before = settled(&manager);
    let most = pages as u64 / 16;
    until("the remote pages were looked at", || {
        expect(&region, hot.clone().step_by(16));
        manager.stats().staged_bytes >= 48 << 20
    });
    let stats = settled(&manager);
    // Pages that were written last may have looked hot.
    assert!(stats.zones_demoted_bytes - before.zones_demoted_bytes <= 16 << 20, "{stats:?}");
    assert!(stats.zones_sampled - before.zones_sampled <= 2 * most, "{stats:?}");
    expect(&region, 0..pages);
}

#[test]
fn bytes_are_right_while_the_hot_pages_are_others_again_and_again() {
    if skip_without_moves("pages that change zones") {
        return;
    }
    for base in [BasePage::K4, BasePage::K64] {
        let manager = builder(16, 48).base_page(base).build().expect("a manager");
        let len = 20 << 20;
        let mut region = manager.region(Bytes::new(len as u64)).create().expect("a region");
        let mut other = manager.region(Bytes::mib(32)).create().expect("a region");
        let mut shadow = Shadow::new(len, Random::new(base.bytes() as u64, 3), content);
        let mut random = Random::new(5, base.bytes() as u64);
        let mut values = vec![0; other.len() / PAGE];
        let least = if base == BasePage::K4 { 256 << 10 } else { 2 << 20 };
        let (mut round, mut window) = (0, 0);
        until("pages changed zones both ways", || {
            if round % 8 == 0 {
                shadow.run(&mut region, 0, &format!("at base page {base}"));
                let from = random.below(values.len() - 1024);
                other.discard(from * PAGE, 1024 * PAGE).expect("discarded");
                values[from..from + 1024].fill(0);
                window = random.below(values.len() - 1024);
            }
            if round % 16 == 0 {
                // More than fits.
                let mut short = manager.region(Bytes::mib(32)).create().expect("a region");
                fill(&mut short, 0..(32 << 20) / PAGE);
            }
            round += 1;
            for _ in 0..200_000 {
                let page = window + random.below(1024);
                let mut back = [0; PAGE];
                other.read_at(page * PAGE, &mut back).expect("read");
                let expected = if values[page] == 0 { [0; PAGE] } else { content(values[page]) };
                assert!(back == expected, "page {page} of the other");
                values[page] = random.next() | 1;
                other.write_at(page * PAGE, &content(values[page])).expect("written");
            }
            let stats = manager.stats();
            stats.zones_promoted_bytes >= least && stats.zones_demoted_bytes >= least
        });
        shadow.run(&mut region, 0, &format!("at the end, at base page {base}"));
        region.close();
        other.close();
        until("zones hold what is ready alone", || {
            let stats = manager.stats();
            let held: u64 = manager.zones().iter().map(|(_, zone)| zone.held.get()).sum();
            (stats.resident_bytes, stats.staged_bytes) == (0, 0) && held == stats.ready_bytes
        });
    }
}
