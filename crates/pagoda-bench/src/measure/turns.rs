//! The order of the sides in a round, so that caches and the host favour none. Pure. A side must
//! never always be the first, nor always follow the same one.

use std::ops::RangeInclusive;

/// The numbers of a bench's rounds: round 0 is discarded, and a `quick` run has none.
pub fn round_numbers(quick: bool, rounds: usize) -> RangeInclusive<usize> {
    usize::from(quick)..=rounds
}

/// The numbers of `sides` in the order of a round. Each round begins with the next side, and every
/// other round runs backwards.
pub fn turns(round: usize, sides: usize) -> impl Iterator<Item = usize> {
    let at = move |place: usize| {
        let forwards = round.is_multiple_of(2);
        (round % sides + if forwards { place } else { sides - place }) % sides
    };
    (0..sides).map(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_all_sides_and_begins_with_another() {
        for sides in 1..=9 {
            let rounds: Vec<Vec<usize>> = (0..2 * sides).map(|round| turns(round, sides).collect()).collect();
            for (round, order) in rounds.iter().enumerate() {
                assert_eq!(order[0], round % sides, "{order:?}");
                let mut all = order.clone();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..sides), "{order:?}");
            }
        }
        assert_eq!(
            [0, 1, 2].map(|round| turns(round, 3).collect::<Vec<_>>()),
            [[0, 1, 2], [1, 0, 2], [2, 0, 1]]
        );
    }
}
