//! A figure: our data, the paper's numbers beside them, and a sentence on how the two agree.

use serde::Serialize;

use crate::axis::number;
use crate::chart::Chart;

/// Whether our data say what the paper says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Agrees,
    Partly,
    Differs,
    /// The paper says nothing that could be compared, or the data are still missing.
    Open,
}

impl Verdict {
    /// Returns whether it holds, or in part.
    pub(crate) fn of(holds: bool, partly: bool) -> Self {
        match (holds, partly) {
            (true, _) => Self::Agrees,
            (false, true) => Self::Partly,
            (false, false) => Self::Differs,
        }
    }

    /// Returns the verdict of so many claims of so many.
    pub(crate) fn count(holding: usize, all: usize) -> Self {
        Self::of(holding == all, 2 * holding >= all)
    }

    /// Returns the verdict of claims, each with whether it holds: all of them, half at the least, or fewer.
    pub(crate) fn claims(claims: &[(&str, bool)]) -> Self {
        Self::count(claims.iter().filter(|(_, holds)| *holds).count(), claims.len())
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Partly => "agrees in part",
            Self::Differs => "differs",
            Self::Open => "not compared",
        }
    }
}

/// Returns a sentence's part on which of these claims hold: `3 of 4 hold; not: ...`.
pub(crate) fn holding(claims: &[(&str, bool)]) -> String {
    let not: Vec<_> = claims.iter().filter(|(_, holds)| !holds).map(|(claim, _)| *claim).collect();
    let count = claims.len() - not.len();
    let hold = if count == 1 { "holds" } else { "hold" };
    let not = if not.is_empty() { String::new() } else { format!("; not: {}", not.join(", ")) };
    format!("{count} of {} {hold}{not}", claims.len())
}

/// A table; cells that the paper printed are marked.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) head: Vec<String>,
    /// Which columns hold numbers that the paper printed.
    pub(crate) printed: Vec<bool>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table; a column whose head begins with `*` is printed in the paper.
    pub(crate) fn new(title: &str, head: &[&str], rows: Vec<Vec<String>>) -> Self {
        let printed = head.iter().map(|name| name.starts_with('*')).collect();
        let head = head.iter().map(|name| name.trim_start_matches('*').to_owned()).collect();
        Self { title: title.into(), head, printed, rows }
    }
}

/// A figure or table of a paper.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) paper: &'static str,
    /// As the paper numbers it.
    pub(crate) at: String,
    pub(crate) title: String,
    /// What is shown, and what stands in for what.
    pub(crate) about: String,
    pub(crate) charts: Vec<Chart>,
    pub(crate) tables: Vec<Table>,
    pub(crate) verdict: Verdict,
    /// What could not be had, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) lacks: Vec<String>,
    /// One sentence on agreement.
    pub(crate) agreement: String,
    pub(crate) commands: Vec<String>,
}

impl Figure {
    pub(crate) fn new(paper: &'static str, at: &str, title: &str, about: &str) -> Self {
        Self {
            paper,
            at: at.into(),
            title: title.into(),
            about: about.into(),
            charts: Vec::new(),
            tables: Vec::new(),
            verdict: Verdict::Open,
            lacks: Vec::new(),
            agreement: String::new(),
            commands: Vec::new(),
        }
    }

    pub(crate) fn chart(mut self, chart: Chart) -> Self {
        self.charts.push(chart);
        self
    }

    pub(crate) fn table(mut self, table: Table) -> Self {
        self.tables.push(table);
        self
    }

    pub(crate) fn says(self, verdict: Verdict, agreement: impl Into<String>) -> Self {
        Self { verdict, agreement: agreement.into(), ..self }
    }

    pub(crate) fn by(mut self, command: impl Into<String>) -> Self {
        let command = command.into();
        if !self.commands.contains(&command) {
            self.commands.push(command);
        }
        self
    }

    /// Says that something is missing, and why.
    pub(crate) fn lacks(mut self, why: impl Into<String>) -> Self {
        self.lacks.push(why.into());
        self
    }

    /// Returns its anchor.
    pub(crate) fn anchor(&self) -> String {
        let text = format!("{}-{}", self.paper, self.at).to_lowercase();
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
    }
}

/// Returns a cell.
pub(crate) fn cell(value: f64) -> String {
    number(value)
}

/// Returns a cell of a percentage.
pub(crate) fn percent(value: f64) -> String {
    format!("{value:.1} %")
}
