//! Whose turn it is: the order of the sides in a round, so that none is always the first, nor always after the same one. Pure.

/// The numbers of so many sides in the order of a round: each round begins with the next of them, and every other one goes backwards.
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
