//! The managers of the tests that restore and save regions.

use pagoda::{BasePage, Bytes, Manager};

/// A small budget, in MiB, for this base page: content beyond it takes little time.
pub fn small_mib(base: Option<BasePage>) -> usize {
    if base == Some(BasePage::M2) { 32 } else { 16 }
}

/// A manager with this budget and base page, if one can be had here.
pub fn manager(budget: Bytes, base: Option<BasePage>) -> Option<Manager> {
    let builder = Manager::builder().budget(budget).user_mode_only(true);
    let builder = base.into_iter().fold(builder, |builder, base| builder.base_page(base));
    match builder.build() {
        Ok(manager) => Some(manager),
        Err(error) => {
            pagoda_linux::testing::skip::skip("regions of images", error);
            None
        }
    }
}
