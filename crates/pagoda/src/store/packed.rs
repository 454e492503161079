//! Pages in their packed form: a migration takes and brings them without unpacking.

use super::handle::Meaning;
use super::{GetError, Handle, PutError, Scratch, TieredStore};

impl TieredStore {
    /// A page as it is packed ([`pagoda_linux::codec::pack`]), block by block or as a whole,
    /// wherever it is. None if it is not: one word over and over, or kept as it is.
    ///
    /// # Errors
    /// See [`GetError`].
    pub(crate) fn get_packed<'a>(
        &self,
        handle: Handle,
        scratch: &'a mut Scratch,
    ) -> Result<Option<&'a [u8]>, GetError> {
        let Meaning::Object(id) = handle.meaning() else { return Ok(None) };
        let Scratch { packed, slots, .. } = scratch;
        let (bytes, raw) = self.load(id, 0..self.page_bytes(), packed, slots)?;
        Ok((!raw).then_some(bytes))
    }

    /// Stores a page that is packed already, and unpacks to `content`. One that is packed as a
    /// whole is found so when its turn comes to be made smaller. None if it takes more room than a
    /// page that this store would have packed.
    ///
    /// # Errors
    /// See [`PutError`].
    pub(crate) fn put_packed(&self, packed: &[u8], content: &[u8]) -> Result<Option<Handle>, PutError> {
        if content.len() != self.page_bytes() || packed.len() > content.len() / 8 * 7 {
            return Ok(None);
        }
        self.put_object(packed, false, self.digest(content)).map(|id| Some(Handle::object(id)))
    }
}
