//! Files and connections: direct I/O, mapped files, rings, sockets, waits.

pub mod direct_file;
pub mod file_mapping;
pub mod holds;
pub mod local_socket;
pub mod mapped_file;
pub mod memory_file;
pub mod partial_file;
pub mod positioned;
pub mod ring;
pub mod shared_file;
pub mod socket_queue;
pub mod sparse_file;
pub mod tcp;
pub mod unfinished_file;
pub mod wait;
