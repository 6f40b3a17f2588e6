//! An experiment's rows, and statistics over numbers of theirs.

use anyhow::Context;
use tlblab::{mapping, refill, superpage, tables};

/// What a command gives.
#[derive(Clone, Debug)]
pub(crate) struct Rows<R> {
    /// The command, as one would type it.
    pub(crate) command: String,
    all: Vec<R>,
}

impl<R> Rows<R> {
    pub(crate) fn new(command: String, all: Vec<R>) -> Self {
        Self { command, all }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &R> {
        self.all.iter()
    }

    /// Returns the first row of which this holds; `what` names it where there is none.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(crate) fn one(&self, what: &str, holds: impl Fn(&R) -> bool) -> anyhow::Result<&R> {
        let found = self.iter().find(|row| holds(row));
        found.with_context(|| format!("`{}` has no row of {what}", self.command))
    }
}

impl<R: Named> Rows<R> {
    /// Returns the row of this name.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(crate) fn of(&self, name: &str) -> anyhow::Result<&R> {
        self.one(name, |row| row.name() == name)
    }
}

/// A row of one table or policy.
pub(crate) trait Named {
    /// Returns its name.
    fn name(&self) -> &str;
}

impl Named for tables::Row {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Named for refill::Row {
    fn name(&self) -> &str {
        &self.table
    }
}

impl Named for superpage::Row {
    fn name(&self) -> &str {
        &self.policy
    }
}

impl Rows<mapping::Row> {
    /// Returns the row of a benchmark that has one for each table.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(crate) fn at(&self, benchmark: &str, name: &str) -> anyhow::Result<&mapping::Row> {
        self.one(&format!("{benchmark}, {name}"), |row| row.benchmark == benchmark && row.name == name)
    }
}

/// Returns the mean and the standard deviation.
pub(crate) fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// Returns the geometric mean.
pub(crate) fn geometric(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len().max(1) as f64).exp()
}

/// Returns Spearman's rank correlation: 1 if both put things in the same order, -1 in the opposite.
pub(crate) fn rank_correlation(one: &[f64], other: &[f64]) -> f64 {
    let ranks = |values: &[f64]| -> Vec<f64> {
        let rank = |value: f64| {
            let below = values.iter().filter(|other| **other < value).count() as f64;
            let same = values.iter().filter(|other| **other == value).count() as f64;
            below + 0.5 * (same - 1.0)
        };
        values.iter().map(|&value| rank(value)).collect()
    };
    let (one, other) = (ranks(one), ranks(other));
    let ((mean_one, sd_one), (mean_other, sd_other)) = (mean(&one), mean(&other));
    let products: Vec<f64> = one.iter().zip(&other).map(|(a, b)| (a - mean_one) * (b - mean_other)).collect();
    mean(&products).0 / (sd_one * sd_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_ranks() {
        assert_eq!(mean(&[1.0, 3.0]), (2.0, 1.0));
        assert!((geometric(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
        assert!((rank_correlation(&[1.0, 2.0, 9.0], &[10.0, 11.0, 12.0]) - 1.0).abs() < 1e-12);
        assert!((rank_correlation(&[1.0, 2.0, 9.0], &[3.0, 2.0, 1.0]) + 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_row_that_is_not_there_is_named() {
        let rows = Rows::new("tlblab x".into(), vec![1, 2, 3]);
        assert_eq!(*rows.one("two", |row| *row == 2).unwrap(), 2);
        let error = rows.one("four", |row| *row == 4).unwrap_err().to_string();
        assert_eq!(error, "`tlblab x` has no row of four");
    }
}
