//! Memory references per lookup: how many lookups took how many.

use std::collections::BTreeMap;

/// A histogram of memory references per lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refs(BTreeMap<u64, u64>);

impl Refs {
    /// Adds a lookup that took `refs`.
    pub(crate) fn add(&mut self, refs: u64) {
        *self.0.entry(refs).or_default() += 1;
    }

    /// Returns the number of lookups.
    pub(crate) fn lookups(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the mean; zero without lookups.
    pub(crate) fn mean(&self) -> f64 {
        let sum: u64 = self.0.iter().map(|(refs, lookups)| refs * lookups).sum();
        sum as f64 / self.lookups().max(1) as f64
    }

    /// Returns the least number that 99 of 100 lookups do not exceed.
    pub(crate) fn p99(&self) -> u64 {
        let most = self.lookups() - self.lookups() / 100;
        let mut sum = 0;
        let within = self.0.iter().find(|&(_, lookups)| {
            sum += lookups;
            sum >= most
        });
        within.map_or(0, |(&refs, _)| refs)
    }

    /// Returns the largest number.
    pub(crate) fn max(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(&refs, _)| refs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_p99_and_max() {
        let mut refs = Refs::default();
        assert_eq!((refs.mean(), refs.p99(), refs.max()), (0.0, 0, 0));
        (0..990).for_each(|_| refs.add(2));
        (0..9).for_each(|_| refs.add(10));
        refs.add(1000);
        assert_eq!((refs.lookups(), refs.p99(), refs.max()), (1000, 2, 1000));
        assert!((refs.mean() - 3.07).abs() < 1e-9);
        // 99 of 100 of 1002 are 992, one more than have up to three.
        refs.add(3);
        refs.add(11);
        assert_eq!(refs.p99(), 10);
    }
}
