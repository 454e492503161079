use super::*;
use proptest::prelude::*;

const STRIPES: u64 = 3;
const PAGES: u64 = STRIPES * STRIPE_PAGES as u64;

proptest! {
    #[test]
    fn a_set_agrees_with_a_plain_one(
        steps in prop::collection::vec((0u8..5, 0..PAGES, 0..PAGES), 1..40)
    ) {
        let words = (0..PageSet::words_for(PAGES - 5)).map(|_| AtomicU64::new(0)).collect();
        let set = PageSet::new(words);
        let mut model = vec![false; PAGES as usize];
        for (kind, one, other) in steps {
            let (from, to) = (one.min(other), one.max(other));
            let range = from as usize..to as usize;
            match kind {
                0 | 1 => { set.add(from..to); model[range].fill(true); }
                2 => { set.remove(from..to); model[range].fill(false); }
                4 => {
                    let first = from / 512 * 512;
                    let to = to.min(first + 512);
                    let taken = set.take(from..to);
                    let was = |page: u64| (from..to).contains(&page) && model[page as usize];
                    prop_assert!((0..512).all(|page| taken.has(page) == was(first + u64::from(page))));
                    model[from as usize..to as usize].fill(false);
                    let rest = set.stripe(first);
                    prop_assert!((0..512).all(|page| rest.has(page) == model[(first + u64::from(page)) as usize]));
                    prop_assert!(taken.and(rest).is_empty() && rest.without(taken) == rest);
                }
                _ => {
                    let first = from / 512 * 512;
                    let taken = set.take_stripe(first);
                    let was = &mut model[first as usize..first as usize + 512];
                    prop_assert!((0..512).all(|page| taken.has(page) == was[page as usize]));
                    prop_assert_eq!(taken.count() as usize, was.iter().filter(|is| **is).count());
                    prop_assert_eq!(taken.is_empty(), taken.count() == 0);
                    let mut again = StripePages::default();
                    let mut end = None;
                    for run in taken.runs() {
                        prop_assert!(run.start < run.end && end.is_none_or(|end| end < run.start));
                        end = Some(run.end);
                        again.add(run);
                    }
                    prop_assert_eq!(again, taken);
                    taken.runs().flatten().for_each(|page| again.remove(page));
                    prop_assert!(again.is_empty());
                    was.fill(false);
                }
            }
            prop_assert_eq!(set.count() as usize, model.iter().filter(|is| **is).count());
            prop_assert_eq!(set.has_any(from..to), model[from as usize..to as usize].contains(&true));
            prop_assert_eq!(set.has_all(from..to), !model[from as usize..to as usize].contains(&false));
            prop_assert_eq!(set.has(from), model[from as usize]);
        }
    }
}
