//! Changing the budget of a tree while its processes run.
//!
//! The budget is one word, which each member reads with each look at its share, some hundred times
//! a second. So a store is all that it takes. Members of a budget that shrank go down to it in
//! damped steps, as they do when another member grows. This module must never set a budget that the
//! engines have no addresses for.

use std::sync::atomic::Ordering::SeqCst;

use pagoda_core::budget::GROWS_TO;
use pagoda_core::size::Bytes;

use super::{Header, Tree};
use crate::config::MINIMUM_BUDGET;

/// Why a tree keeps the budget that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// It is less than any budget.
    #[error(
        "{budget} is below {MINIMUM_BUDGET}, the least with which a program can be moved in and out; give more"
    )]
    TooSmall {
        /// The budget that was asked for.
        budget: Bytes,
    },
    /// It is more than the engines have addresses for.
    #[error(
        "{budget} is more than {most}, twice what the run began with; give less, or begin it again with more"
    )]
    TooLarge {
        /// The budget that was asked for.
        budget: Bytes,
        /// The most.
        most: Bytes,
    },
    /// It is of a library's manager.
    #[error("it is the manager of a library, whose budget its own program changes (`Manager::set_budget`)")]
    Library,
}

impl Tree {
    /// Changes the budget of all members together, and returns the one before. It returns at once;
    /// [`claimed`](Tree::claimed) tells how far the members are.
    ///
    /// # Errors
    /// See [`BudgetError`]; then nothing has changed.
    pub fn set_budget(&self, budget: Bytes) -> Result<Bytes, BudgetError> {
        if self.header(Header::Library).load(SeqCst) != 0 {
            return Err(BudgetError::Library);
        }
        if budget < MINIMUM_BUDGET {
            return Err(BudgetError::TooSmall { budget });
        }
        let began = self.header(Header::BudgetBeganBytes).load(SeqCst);
        let most = Bytes::new(began.saturating_mul(GROWS_TO));
        if budget > most {
            return Err(BudgetError::TooLarge { budget, most });
        }
        // First, so that no look finds more than the most.
        self.header(Header::BudgetMostBytes).fetch_max(budget.get(), SeqCst);
        Ok(Bytes::new(self.header(Header::BudgetBytes).swap(budget.get(), SeqCst)))
    }

    /// The largest budget that the tree ever had.
    #[must_use]
    pub fn budget_most(&self) -> Bytes {
        Bytes::new(self.header(Header::BudgetMostBytes).load(SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use pagoda_core::page::BasePage;

    use super::*;

    #[test]
    fn a_budget_stays_within_what_engines_have_addresses_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let tree = Tree::create(&directory.path().join("pagoda-1-1-0"), Bytes::mib(100), BasePage::K64)
            .expect("made");
        assert_eq!(tree.set_budget(Bytes::mib(200)), Ok(Bytes::mib(100)));
        assert_eq!(tree.set_budget(Bytes::mib(40)), Ok(Bytes::mib(200)));
        let (small, large) = (Bytes::mib(31), Bytes::mib(201));
        assert_eq!(tree.set_budget(small), Err(BudgetError::TooSmall { budget: small }));
        assert_eq!(
            tree.set_budget(large),
            Err(BudgetError::TooLarge { budget: large, most: Bytes::mib(200) })
        );
        assert_eq!((tree.budget(), tree.budget_most()), (Bytes::mib(40), Bytes::mib(200)));
    }
}
