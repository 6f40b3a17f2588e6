//! The numbers that the papers print, a file for each paper, each with the table or section that it stands in.
//!
//! They are the only numbers in a report that were typed in, and are marked as printed wherever they show.

use anyhow::Context;
use serde_json::Value;

/// A paper's numbers.
#[derive(Debug)]
pub(crate) struct Printed {
    paper: &'static str,
    all: Value,
}

macro_rules! paper {
    ($($name:ident $file:literal;)*) => { $(
        /// Returns the paper's numbers.
        ///
        /// # Errors
        ///
        /// If the file is no JSON.
        pub(crate) fn $name() -> anyhow::Result<Printed> {
            let all = serde_json::from_str(include_str!(concat!("../printed/", $file, ".json")));
            Ok(Printed { paper: $file, all: all.context(concat!("printed/", $file, ".json"))? })
        }
    )* };
}

paper! {
    elphinstone "elphinstone-1999";
    thesis "bala-1995";
    osdi "bala-1994";
    romer "romer-1995";
    tzou "tzou-1989";
}

impl Printed {
    /// Returns the number in a table's row and column, or of a section's name.
    ///
    /// # Errors
    ///
    /// If the paper's file has none there.
    pub(crate) fn at(&self, path: &[&str]) -> anyhow::Result<f64> {
        self.maybe(path).with_context(|| format!("printed/{}.json has no number at {path:?}", self.paper))
    }

    /// Returns the number there, if the paper prints one.
    pub(crate) fn maybe(&self, path: &[&str]) -> Option<f64> {
        path.iter().try_fold(&self.all, |value, key| value.get(key))?.as_f64()
    }

    /// Returns the texts or numbers listed there.
    pub(crate) fn list(&self, path: &[&str]) -> Vec<&Value> {
        let found = path.iter().try_fold(&self.all, |value, key| value.get(key));
        found.and_then(Value::as_array).into_iter().flatten().collect()
    }

    /// Returns the names of what is there, in the paper's order.
    pub(crate) fn names(&self, path: &[&str]) -> Vec<&str> {
        let found = path.iter().try_fold(&self.all, |value, key| value.get(key));
        found.and_then(Value::as_object).into_iter().flat_map(|map| map.keys()).map(String::as_str).collect()
    }
}
