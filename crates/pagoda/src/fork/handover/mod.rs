//! Handing swapped-out pages over to the engine of a forked child, as they are stored: nothing is
//! unpacked into the child's memory, where it would have to be packed and evicted again.
//!
//! The child takes the descriptor that the kernel made for it out of its parent's table
//! (`pagoda_linux::process::offer`), makes its own engine over it, and accepts; until then the
//! parent serves its faults. From there on the parent sends all swapped-out pages, with the gate
//! held exclusively as for copies. The child puts them into its own table and store before any
//! fault of its own is served. Its one thread of the program waits in the library's fork handler
//! until it has everything.
//!
//! Pages in the parent's file are not sent but lent: the child gets the place of each page
//! ([`crate::store::Loan`]), and reads it there.
//!
//! On the stream come first the keys of lent places, all ranges, then the pages, then the end;
//! without that the child ends itself. The two sides must never both serve the child's faults, and
//! the child's table must never miss a page that is swapped out.

mod give;
mod stream;
mod take;

pub(crate) use give::HandedOver;
