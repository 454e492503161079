//! Without migration no page is ever owed.

use pagoda_core::page_entry::Granules;
use pagoda_linux::mem::range::PageRange;

use crate::engine::Engine;
use crate::state::pending::Served;
use crate::table::Page;

#[expect(clippy::unused_self, reason = "as with migration")]
impl Engine {
    pub(crate) fn owed_granules(&self, _page: &Page) -> Granules {
        Granules::NONE
    }
    pub(crate) fn owes_any(&self, _range: PageRange) -> bool {
        false
    }
    pub(crate) fn await_owed(&self, _address: usize) -> Served {
        Served::Done
    }
    pub(crate) fn await_owed_here(&self, _address: usize) -> bool {
        true
    }
    pub(crate) fn forget_owed(&self, _range: PageRange) {}
}
