//! Rows of the kernel in the emulator. Another program prints them, so what is in them is by name.

use anyhow::{Context, bail};
use serde_json::Value;

/// What the kernel said.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// The command that boots it, as one would type it.
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

    fn iter(&self) -> impl Iterator<Item = Row<'_>> {
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
    /// Returns a field's text; nothing if there is none.
    pub(crate) fn text(self, field: &str) -> &'a str {
        self.0[field].as_str().unwrap_or_default()
    }

    /// Returns a field's number.
    ///
    /// # Errors
    ///
    /// If it is none.
    pub(crate) fn number(self, field: &str) -> anyhow::Result<f64> {
        match self.0[field].as_f64() {
            Some(number) => Ok(number),
            None => bail!("the kernel printed no number `{field}` in {}", self.0),
        }
    }

    /// Returns the number of a name within a field, if it is one.
    pub(crate) fn within(self, field: &str, name: &str) -> Option<f64> {
        self.0[field][name].as_f64()
    }

    /// Returns the names of all fields.
    pub(crate) fn fields(self) -> impl Iterator<Item = &'a str> {
        self.0.as_object().into_iter().flat_map(|fields| fields.keys().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_said() {
        let rows = Rows::new("x".into(), vec![serde_json::json!({"name": "MPT", "refs": 6, "none": null})]);
        assert_eq!(rows.one(&[("name", "MPT")]).unwrap().number("refs").unwrap(), 6.0);
        assert!(rows.one(&[("name", "LPT")]).unwrap_err().to_string().contains("LPT"));
        assert!(rows.iter().next().unwrap().number("none").unwrap_err().to_string().contains("none"));
    }
}
