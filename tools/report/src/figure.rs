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
    /// The paper describes what it measures with, or draws how something works: nothing that could come out either way.
    Input,
}

/// A verdict, and what it allows.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    verdict: Verdict,
    allows: String,
}

impl From<Verdict> for Judged {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, allows: String::new() }
    }
}

impl PartialEq<Verdict> for Judged {
    fn eq(&self, verdict: &Verdict) -> bool {
        self.verdict == *verdict
    }
}

impl Verdict {
    /// Every verdict.
    pub(crate) const ALL: [Self; 5] = [Self::Agrees, Self::Partly, Self::Differs, Self::Open, Self::Input];

    /// Returns whether it holds, or in part.
    pub(crate) fn of(holds: bool, partly: bool) -> Self {
        match (holds, partly) {
            (true, _) => Self::Agrees,
            (false, true) => Self::Partly,
            (false, false) => Self::Differs,
        }
    }

    /// Returns this verdict with what it allows.
    pub(crate) fn allows(self, allows: impl Into<String>) -> Judged {
        Judged { verdict: self, allows: allows.into() }
    }

    /// Returns the verdict of so many claims of so many: all of them, half at the least, or fewer. Where nothing is claimed
    /// nothing is compared.
    pub(crate) fn count(holding: usize, all: usize) -> Judged {
        if all == 0 {
            return Self::Open.into();
        }
        Self::of(holding == all, 2 * holding >= all).allows("all must hold, in part half of them")
    }

    /// Returns the verdict of deviations that may be as large as this to agree, or to agree in part. Where there is none
    /// nothing is compared; one that is no number is too large.
    pub(crate) fn most(deviations: &[f64], agrees: f64, partly: f64) -> Judged {
        let within = |limit: f64| deviations.iter().all(|deviation| deviation.abs() <= limit);
        if deviations.is_empty() {
            return Self::Open.into();
        }
        Self::of(within(agrees), within(partly)).allows(format!(
            "at most {} % off, in part {}",
            number(agrees),
            number(partly)
        ))
    }

    /// Returns the verdict of our number over the printed one, which may be off by these factors, either way.
    pub(crate) fn factor(ratio: f64, agrees: f64, partly: f64) -> Judged {
        let within = |factor: f64| (1.0 / factor..=factor).contains(&ratio);
        Self::of(within(agrees), within(partly)).allows(format!(
            "off by a factor of at most {}, in part {}",
            number(agrees),
            number(partly)
        ))
    }

    /// Returns the verdict of a rank correlation with the paper's order.
    pub(crate) fn order(correlation: f64) -> Judged {
        Self::of(correlation > 0.8, correlation > 0.4).allows("a rank correlation over 0.8, in part over 0.4")
    }

    /// Returns the verdict of ranges, each beside the printed one: none reaches further beyond it than this.
    pub(crate) fn ranges(ranges: &[[(f64, f64); 2]], agrees: f64, partly: f64) -> Judged {
        let beyond = |[ours, said]: &[(f64, f64); 2]| {
            if [ours.0, ours.1, said.0, said.1].iter().any(|end| end.is_nan()) {
                return f64::NAN;
            }
            (said.0 - ours.0).max(ours.1 - said.1).max(0.0)
        };
        Self::most(&ranges.iter().map(beyond).collect::<Vec<_>>(), agrees, partly)
    }

    /// Returns the verdict of claims, each with whether it holds: all of them, half at the least, or fewer.
    pub(crate) fn claims(claims: &[(&str, bool)]) -> Judged {
        Self::count(claims.iter().filter(|(_, holds)| *holds).count(), claims.len())
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Partly => "agrees in part",
            Self::Differs => "differs",
            Self::Open => "not compared",
            Self::Input => "an input",
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
    /// What our data may be off by, to agree and to agree in part; nothing if the sentence says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) allows: String,
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
            allows: String::new(),
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

    pub(crate) fn says(self, judged: impl Into<Judged>, agreement: impl Into<String>) -> Self {
        let Judged { verdict, allows } = judged.into();
        Self { verdict, allows, agreement: agreement.into(), ..self }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind of verdict agrees with the paper's own numbers, agrees in part with some a little off, differs from
    /// wrong ones, and is none where there is nothing.
    #[test]
    fn every_kind_of_verdict_can_come_out_either_way() {
        use Verdict::{Agrees, Differs, Open, Partly};
        assert_eq!(
            [(4, 4), (2, 4), (1, 4), (0, 1), (0, 0)].map(|(n, all)| Verdict::count(n, all)),
            [Agrees, Partly, Differs, Differs, Open]
        );
        let claims = |holds: [bool; 3]| Verdict::claims(&holds.map(|holds| ("a claim", holds)));
        assert_eq!(claims([true; 3]), Agrees);
        assert_eq!(claims([true, true, false]), Partly);
        assert_eq!(claims([true, false, false]), Differs);
        assert_eq!(Verdict::claims(&[]), Open);
        let most = |deviations: &[f64]| Verdict::most(deviations, 3.0, 6.0);
        assert_eq!(most(&[0.0, -3.0]), Agrees);
        assert_eq!(most(&[0.0, -4.0]), Partly);
        assert_eq!(most(&[0.0, -7.0]), Differs);
        assert_eq!(most(&[0.0, f64::NAN]), Differs);
        assert_eq!(most(&[]), Open);
        // Too small is as wrong as too large.
        let factor = |ratio| Verdict::factor(ratio, 2.0, 10.0);
        assert_eq!([1.0, 0.5, 2.0].map(factor), [Agrees; 3]);
        assert_eq!([0.2, 9.0].map(factor), [Partly; 2]);
        assert_eq!([0.05, 11.0, -1.0, f64::NAN].map(factor), [Differs; 4]);
        assert_eq!(
            [1.0, 0.5, 0.0, -1.0, f64::NAN].map(Verdict::order),
            [Agrees, Partly, Differs, Differs, Differs]
        );
        let ranges = |ours| Verdict::ranges(&[[ours, (40.0, 50.0)]], 2.0, 10.0);
        assert_eq!([(40.0, 50.0), (38.0, 52.0), (45.0, 45.0)].map(ranges), [Agrees; 3]);
        assert_eq!([(35.0, 50.0), (45.0, 60.0)].map(ranges), [Partly; 2]);
        // One that has everything in it says nothing, and one beside it something else.
        assert_eq!([(0.0, 100.0), (10.0, 20.0), (70.0, 80.0), (f64::NAN, 50.0)].map(ranges), [Differs; 4]);
        assert_eq!(Verdict::ranges(&[], 2.0, 10.0), Open);
        assert_eq!(
            [(true, true), (false, true), (false, false)].map(|(all, part)| Verdict::of(all, part)),
            [Agrees, Partly, Differs]
        );
    }
}
