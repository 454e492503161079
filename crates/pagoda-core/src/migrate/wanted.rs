//! The queue of wanted pages: the pages that the next requests ask for, oldest first, each once.
//!
//! A thread waits for one page at a time, and one request brings the whole group of a page. So few
//! groups are queued. A page that finds the queue full is not requested: it arrives with the pages
//! that are sent unasked. This module must never allocate after construction: the fault path fills
//! it.

use super::geometry::GROUP_PAGES;

/// The most groups that wait to be requested: the number of waiting threads whose pages can be
/// preferred to the pages sent unasked.
pub const WANTED_MOST: usize = 256;

/// The queue, a ring of the groups' first pages.
#[derive(Debug)]
pub struct Wanted {
    groups: [u64; WANTED_MOST],
    first: usize,
    len: usize,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { groups: [0; WANTED_MOST], first: 0, len: 0 }
    }
}

/// The first page of the group that contains `page`.
#[must_use]
pub const fn group_of(page: u64) -> u64 {
    page - page % GROUP_PAGES as u64
}

impl Wanted {
    /// Adds the group of `page`, if it is not queued yet and there is room.
    pub fn add(&mut self, page: u64) {
        let group = group_of(page);
        let mut queued = (0..self.len).map(|i| self.groups[(self.first + i) % WANTED_MOST]);
        if self.len < WANTED_MOST && !queued.any(|known| known == group) {
            self.groups[(self.first + self.len) % WANTED_MOST] = group;
            self.len += 1;
        }
    }

    /// Takes the oldest group, as its first page.
    pub fn take(&mut self) -> Option<u64> {
        let group = (self.len > 0).then(|| self.groups[self.first])?;
        self.first = (self.first + 1) % WANTED_MOST;
        self.len -= 1;
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn groups_are_queued_in_order_once_and_up_to_the_limit(
            steps in prop::collection::vec(prop_oneof![4 => (0u64..16 * 400).prop_map(Some), 1 => Just(None)], 1..1500)
        ) {
            let (mut wanted, mut model) = (Wanted::default(), VecDeque::new());
            for step in steps {
                match step {
                    None => prop_assert_eq!(wanted.take(), model.pop_front()),
                    Some(page) => {
                        let group = page / 16 * 16;
                        wanted.add(page);
                        if !model.contains(&group) && model.len() < WANTED_MOST {
                            model.push_back(group);
                        }
                    }
                }
            }
            let rest: Vec<_> = std::iter::from_fn(|| wanted.take()).collect();
            prop_assert_eq!(rest, Vec::from(model));
        }
    }
}
