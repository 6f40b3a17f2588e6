//! The applications, by their stand-ins: rows by name, and how close numbers are to those that are printed.

use tlblab::mach::{AppRow, Scheme};

use crate::figure::{Judged, Verdict, cell};

use super::{APPS, Data};

pub(super) fn app<'a>(data: &'a Data, name: &str, scheme: Scheme) -> anyhow::Result<&'a AppRow> {
    data.apps.one(&format!("{name}, {scheme:?}"), |row| row.application == name && row.scheme == scheme)
}

pub(super) fn names() -> Vec<String> {
    APPS.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns a sentence on how far our values are from the printed ones.
pub(super) fn closeness(ours: &[(f64, f64)], theirs: &[(f64, f64)], what: &str) -> (String, Judged) {
    let off: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| (ours.1 - theirs.1).abs()).collect();
    let (mean, _) = crate::rows::mean(&off);
    let most = off.iter().copied().fold(0.0, f64::max);
    let lower = ours.iter().zip(theirs).filter(|(ours, theirs)| ours.1 < theirs.1).count();
    let why = "the stand-ins have other pages and lengths of work than the thesis's programs";
    let sentence = format!(
        "our values lie {} {what} from the printed ones on average, {} at most, {lower} of {} below them: {why}.",
        cell(mean),
        cell(most),
        off.len()
    );
    (sentence, closeness_verdict(&off))
}

/// The verdict on values that lie so many points from the printed ones: all within 5, or half of them within 10.
pub(super) fn closeness_verdict(off: &[f64]) -> Judged {
    let within = |points: f64| off.iter().filter(|off| **off <= points).count();
    Verdict::of(within(5.0) == off.len(), 2 * within(10.0) >= off.len())
        .allows("all within 5 points, in part half within 10")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_far_from_the_printed_ones_differ() {
        assert_eq!(closeness_verdict(&[0.0, 4.9, 5.0]), Verdict::Agrees);
        assert_eq!(closeness_verdict(&[0.0, 4.9, 9.0]), Verdict::Partly);
        assert_eq!(closeness_verdict(&[9.0, 4.9, 60.0, 70.0]), Verdict::Partly);
        // On average they are less than 25 points away.
        assert_eq!(closeness_verdict(&[1.0, 20.0, 24.0]), Verdict::Differs);
    }
}
