//! The tests of the room of the heap. Its source is included: a test of the library itself would
//! get the C functions of the library.

#[path = "../src/room.rs"]
mod room;
