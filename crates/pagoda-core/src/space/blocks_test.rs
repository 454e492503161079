use proptest::prelude::*;

use super::*;

fn pool(segments: u32, blocks: u32) -> BlockPool {
    let mut pool = BlockPool::new(segments, blocks);
    while let Some(segment) = pool.grow() {
        pool.add(segment);
    }
    pool
}

#[test]
fn the_fullest_segment_is_filled_first_so_that_others_empty() {
    let mut pool = pool(4, 64);
    let chains: Vec<u32> = (0..16).map(|owner| pool.allocate(16, owner).expect("room")).collect();
    assert_eq!((pool.free_blocks(), pool.empty_segments()), (0, 0));
    assert_eq!(pool.allocate(1, 99), None);
    // Three quarters of one segment, one quarter of another, freed.
    for freed in [0, 1, 2, 4] {
        pool.release(chains[freed]);
    }
    let fullest = pool.links.chain(chains[5]).next().expect("a block") >> pool.links.shift;
    let placed = pool.allocate(16, 7).expect("room");
    assert!(pool.links.chain(placed).all(|block| block >> pool.links.shift == fullest));
}

#[test]
fn an_empty_segment_is_retired_and_comes_back() {
    let mut pool = pool(2, 8);
    assert_eq!((pool.present_segments(), pool.grow()), (2, None));
    let segment = pool.retire(1).expect("two are empty");
    assert_eq!((pool.retire(1), pool.free_blocks()), (None, 8));
    pool.retired(segment);
    assert_eq!(pool.present_segments(), 1);
    assert_eq!(pool.grow(), Some(segment));
    pool.add(segment);
    assert_eq!(pool.free_blocks(), 16);
}

#[test]
#[should_panic(expected = "freed once")]
fn a_chain_that_is_freed_twice_is_caught() {
    let mut pool = pool(1, 8);
    let chain = pool.allocate(3, 0).expect("room");
    pool.release(chain);
    pool.release(chain);
}

#[test]
fn a_sparse_segment_is_found_with_its_owners_and_can_be_emptied() {
    let mut pool = pool(3, 64);
    let mut chains: Vec<(u32, u32)> =
        (0..24).map(|owner| (owner, pool.allocate(8, owner).expect("room"))).collect();
    // Leaves 2 of 8 chains in one segment, 5 of 8 in the two others.
    for owner in [2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 17, 18] {
        let at = chains.iter().position(|(o, _)| *o == owner).expect("there");
        pool.release(chains.remove(at).1);
    }
    let segment = pool.worth_emptying().expect("a sparse one");
    let (mut from, mut moved) = (0, Vec::new());
    while let Some((next, owner)) = pool.owner_at_or_after(segment, from) {
        from = next;
        let at = chains.iter().position(|(o, _)| *o == owner).expect("a live owner");
        let fresh = pool.allocate_to_empty(8, owner, segment).expect("room elsewhere");
        pool.release(std::mem::replace(&mut chains[at].1, fresh));
        moved.push(owner);
    }
    assert_eq!((moved.len(), pool.empty_segments()), (2, 1));
    assert_eq!(pool.retire(0), Some(segment));
}

proptest! {
    /// Chains never overlap, always have their length and owner, and blocks are conserved.
    #[test]
    fn chains_are_disjoint_and_blocks_are_conserved(
        steps in proptest::collection::vec((any::<u16>(), 1u32..40, any::<bool>()), 1..300),
    ) {
        let (segments, per_segment) = (6, 32);
        let mut pool = BlockPool::new(segments, per_segment);
        let mut live: Vec<(u32, u32, u32)> = Vec::new();
        for (owner, (pick, blocks, allocate)) in steps.into_iter().enumerate() {
            if allocate {
                while pool.free_blocks() < u64::from(blocks) {
                    let Some(segment) = pool.grow() else { break };
                    pool.add(segment);
                }
                let room = pool.free_blocks();
                match pool.allocate(blocks, owner as u32) {
                    Some(first) => live.push((first, blocks, owner as u32)),
                    None => prop_assert!(room < u64::from(blocks)),
                }
            } else if !live.is_empty() {
                let (first, blocks, _) = live.swap_remove(usize::from(pick) % live.len());
                prop_assert_eq!(pool.release(first), blocks);
                if pick % 4 == 0 && let Some(segment) = pool.retire(1) {
                    pool.retired(segment);
                }
            }
            let mut seen = std::collections::HashSet::new();
            for (first, blocks, owner) in &live {
                let chain: Vec<u32> = pool.links.chain(*first).collect();
                prop_assert_eq!(chain.len() as u32, *blocks);
                prop_assert!(chain.iter().all(|block| seen.insert(*block)));
                prop_assert_eq!(pool.links.get(chain[chain.len() - 1]), TAG_END | *owner);
            }
            prop_assert_eq!(pool.used_blocks(), seen.len() as u64);
            let present = u64::from(pool.present_segments()) * u64::from(per_segment);
            prop_assert_eq!(pool.used_blocks() + pool.free_blocks(), present);
            let empty = (0..pool.segments.len() as u32)
                .filter(|segment| pool.segments[*segment as usize].presence == Presence::Ready)
                .filter(|segment| seen.iter().all(|block| block / per_segment != *segment)).count();
            prop_assert_eq!(pool.empty_segments() as usize, empty);
        }
    }
}
