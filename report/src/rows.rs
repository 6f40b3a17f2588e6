//! Rows of the lab, and the numbers in them by name.

use anyhow::{Context, bail};
use serde_json::Value;

/// What a command printed.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The command, as one would type it.
    pub(crate) command: String,
    all: Vec<Value>,
}

/// A row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a>(&'a Value);

impl Rows {
    pub(crate) fn new(command: String, all: Vec<Value>) -> Self {
        Self { command, all }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.all.iter().map(Row)
    }

    /// Returns the rows that have this text in a field.
    pub(crate) fn of<'a>(&'a self, field: &'a str, text: &'a str) -> impl Iterator<Item = Row<'a>> {
        self.iter().filter(move |row| row.text(field) == text)
    }

    /// Returns the row that has these texts in these fields.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub(crate) fn one(&self, fields: &[(&str, &str)]) -> anyhow::Result<Row<'_>> {
        let found = self.iter().find(|row| fields.iter().all(|(field, text)| row.text(field) == *text));
        found.with_context(|| format!("`{}` has no row {fields:?}", self.command))
    }
}

impl<'a> Row<'a> {
    /// Returns a field's text, or a number written out; nothing if there is none.
    pub(crate) fn text(self, field: &str) -> String {
        match &self.0[field] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// Returns a field's number.
    ///
    /// # Errors
    ///
    /// If it is none.
    pub(crate) fn number(self, field: &str) -> anyhow::Result<f64> {
        match self.0[field].as_f64() {
            Some(number) => Ok(number),
            None => bail!("the lab printed no number `{field}` in {}", self.0),
        }
    }

    /// Returns a field's number, if it is one.
    pub(crate) fn maybe(self, field: &str) -> Option<f64> {
        self.0[field].as_f64()
    }

    /// Returns the number of a name within a field, if it is one.
    pub(crate) fn within(self, field: &str, name: &str) -> Option<f64> {
        self.0[field][name].as_f64()
    }

    /// Returns the names of all fields.
    pub(crate) fn fields(self) -> impl Iterator<Item = &'a str> {
        self.0.as_object().into_iter().flat_map(|fields| fields.keys().map(String::as_str))
    }

    /// Returns a field's numbers.
    pub(crate) fn numbers(self, field: &str) -> Vec<f64> {
        self.0[field].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    }

    /// Tells whether a field is true.
    pub(crate) fn is(self, field: &str) -> bool {
        self.0[field] == true
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
    fn what_is_not_there_is_said() {
        let rows = Rows::new("x".into(), vec![serde_json::json!({"name": "MPT", "refs": 6, "none": null})]);
        assert_eq!(rows.one(&[("name", "MPT")]).unwrap().number("refs").unwrap(), 6.0);
        assert!(rows.one(&[("name", "LPT")]).unwrap_err().to_string().contains("LPT"));
        assert!(rows.iter().next().unwrap().number("none").unwrap_err().to_string().contains("none"));
    }
}
