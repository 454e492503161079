//! Two tenants in one process, each with a budget, a base page and a store of its own.
//!
//! Run it with `cargo run --release -p pagoda-vm --example tenants`. The first tenant has twice its
//! budget to work on and the second eight times. Neither takes anything from the other: what one
//! stores or waits for is its own affair.

use std::error::Error;
use std::thread;

use pagoda::{BasePage, Bytes, Manager};

const REGION: Bytes = Bytes::mib(256);

struct Tenant {
    name: &'static str,
    manager: Manager,
}

impl Tenant {
    fn new(name: &'static str, budget: Bytes, base_page: BasePage) -> Result<Self, Box<dyn Error>> {
        let manager = Manager::builder()
            .budget(budget)
            .base_page(base_page)
            .user_mode_only(true)
            .spill_to("/var/tmp", Bytes::gib(1))
            .build()?;
        Ok(Self { name, manager })
    }

    /// Writes all of a region and reads it back, then says what that took.
    fn work(&self) {
        let mut region = self.manager.region(REGION).create().expect("a region");
        let pages = region.len() / 4096;
        let content = |page: usize| {
            let mut content = [0; 4096];
            for (i, word) in content.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&(page / (i % 5 + 1)).to_le_bytes());
            }
            content
        };
        for page in 0..pages {
            region.write_at(page * 4096, &content(page)).expect("written");
        }
        let mut back = [0; 4096];
        for page in 0..pages {
            region.read_at(page * 4096, &mut back).expect("read");
            assert!(back == content(page), "page {page} of the {} tenant", self.name);
        }
        let stats = self.manager.stats();
        println!(
            "{:<7} budget {:>8}, base page {:>6}: {} of data, held {} at the end, {} faults",
            self.name,
            Bytes::new(stats.budget_bytes).to_string(),
            Bytes::new(stats.base_page_bytes).to_string(),
            Bytes::new(region.len() as u64),
            Bytes::new(stats.anon_bytes),
            stats.faults,
        );
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let large = Tenant::new("large", Bytes::mib(128), BasePage::K64)?;
    let small = Tenant::new("small", Bytes::mib(32), BasePage::K16)?;
    thread::scope(|scope| {
        scope.spawn(|| large.work());
        scope.spawn(|| small.work());
    });
    Ok(())
}
