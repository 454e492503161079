//! NUMA nodes: the node that a thread runs on, and the node of an address range's memory.
//!
//! A node is bound to addresses: the kernel takes memory for the first touch there from it. A frame
//! that a move brings there stays on its node. This module must never move memory between nodes.

use linux_raw_sys::general as raw;
use rustix::io::Errno;

use crate::mem::range::PageRange;
use crate::raw_syscall::{syscall3, syscall6};

/// Nodes that a mask of this module tells apart: as many as Linux is built for at most.
pub const NODES_MAX: u32 = 1024;

/// `MPOL_BIND` of set_mempolicy(2): from these nodes and no other.
const BIND: usize = 2;

const MASK_WORDS: usize = (NODES_MAX / 64) as usize;

/// Has the kernel take memory for `range`, of this process's mappings, from `node` and from no
/// other.
///
/// # Errors
/// `EINVAL`: there is no such node, or it has no memory. `ENOSYS`: a kernel without nodes. `EPERM`:
/// not allowed here.
pub(crate) fn bind(range: PageRange, node: u32) -> Result<(), Errno> {
    let mut mask = [0u64; MASK_WORDS];
    let word = mask.get_mut(node as usize / 64).ok_or(Errno::INVAL)?;
    *word = 1 << (node % 64);
    // The kernel takes one bit less than it is told.
    let bits = NODES_MAX as usize + 1;
    let arguments = [range.start(), range.len(), BIND, mask.as_ptr().expose_provenance(), bits, 0];
    // SAFETY: the mask is valid for the reported bits, and the call changes where memory comes
    // from, and no content.
    unsafe { syscall6(raw::__NR_mbind, arguments).map(drop) }
}

/// The node of the processor that the calling thread runs on just now; 0 if the kernel does not
/// say.
#[must_use]
pub fn current() -> u32 {
    let mut node = 0u32;
    let at = (&raw mut node).expose_provenance();
    // SAFETY: the kernel writes one word to `node`, and nothing at the null pointer for the
    // processor's number.
    let said = unsafe { syscall3(raw::__NR_getcpu, 0, at, 0) };
    said.map_or(0, |_| node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::own_memory::OwnMapping;

    #[test]
    fn memory_can_be_bound_to_the_node_we_run_on_and_to_none_that_is_not_there() {
        let mapping = OwnMapping::reserve(1 << 20, 2 << 20, false).expect("reserve");
        match bind(mapping.range(), current()) {
            Ok(()) => {}
            Err(error @ (Errno::NOSYS | Errno::PERM)) => {
                crate::testing::skip::skip("binding to a node", format!("the kernel says {error}"));
                return;
            }
            Err(error) => panic!("{error}"),
        }
        for missing in [NODES_MAX - 1, NODES_MAX, u32::MAX] {
            assert_eq!(bind(mapping.range(), missing), Err(Errno::INVAL));
        }
    }
}
