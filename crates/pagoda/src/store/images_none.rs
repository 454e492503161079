//! In place of images where they are not built in: there is no handle of one.

use std::ops::Range;

use super::handle::ImagePage;
use super::{GetError, Handle, Scratch, TieredStore};

#[derive(Default)]
pub(super) struct Images {}

#[derive(Default)]
pub(super) struct Brought {}

impl TieredStore {
    pub(crate) fn is_of_image(&self, _: Handle) -> bool {
        let Images {} = self.images;
        false
    }
    pub(crate) fn bring(&self, _: Handle, _: Range<usize>, _: &mut Scratch) -> Result<(), GetError> {
        Err(GetError::Corrupt)
    }
    pub(crate) fn is_brought(&self, _: Handle, _: &Range<usize>, scratch: &Scratch) -> bool {
        let Brought {} = scratch.brought;
        false
    }
    pub(super) fn get_of_image(
        &self,
        _: Handle,
        _: ImagePage,
        _: usize,
        _: &mut [u8],
        _: &mut Scratch,
    ) -> Result<(), GetError> {
        Err(GetError::Corrupt)
    }
    pub(super) fn image_holds(&self, page: ImagePage, _: usize, _: &[u8]) -> bool {
        let _ = (page.number, page.page);
        false
    }
}
