//! Without migration no thread is slowed down.

use pagoda_core::page_entry::{Granules, Word};

use crate::engine::Engine;
use crate::state::pending::Fault;
use crate::table::Page;

#[expect(clippy::unused_self, reason = "as with migration")]
impl Engine {
    pub(crate) fn puts_aside(&self, _fault: &Fault) -> bool {
        false
    }
    pub(crate) fn wait_slowed(&self, _address: usize) {}
    pub(super) fn is_slowed(&self, _page: &Page) -> bool {
        false
    }
    pub(super) fn comes_protected(&self, _page: &Page, _word: Word, _fault: (u32, bool)) -> Granules {
        Granules::NONE
    }
    pub(crate) fn hurry_slowed(&self) {}
}
