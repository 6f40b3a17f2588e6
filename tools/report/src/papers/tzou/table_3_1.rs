//! Table 3.1: the algorithms, and the TLBs that each suits.

use std::collections::BTreeMap;

use tlblab::explore::Explore;

use crate::figure::{Figure, Table, Verdict};
use crate::lab::Lab;
use crate::printed::Printed;

use super::{PAPER, text};

/// Tells whether the thesis finds an algorithm suitable for a TLB: whether Table 2.1, or the text for the MC88200, has every
/// property that Table 3.1 asks for. `None` if it does not say.
fn suits(printed: &Printed, algorithm: &serde_json::Value, hardware: &str) -> Option<bool> {
    let wanted = algorithm[2].as_array()?;
    wanted.iter().try_fold(true, |all, property| {
        Some(all & (printed.maybe(&["Table 2.1", hardware, property.as_str()?])? == 1.0))
    })
}

/// Table 3.1: what the thesis says of every algorithm on every TLB of its Table 2.1, against what the explorer finds.
pub(super) fn algorithms(lab: &Lab, printed: &Printed) -> anyhow::Result<Figure> {
    let about = "Every algorithm on every TLB of the thesis, over all interleavings of two CPUs. A pairing is sound if no way \
                 of using it is found wrong: unmapping, write-protecting, two requesters, CPUs that come and go.";
    let figure = Figure::new(PAPER, "Table 3.1", "Algorithms, and the hardware that each suits", about);
    let rows = lab.rows::<Explore>("explore --cpus 2")?;
    let mut table = Vec::new();
    let (mut agreeing, mut all) = (0, 0);
    let mut otherwise = Vec::new();
    for claim in printed.list(&["Table 3.1"]) {
        let name = text(claim, 0);
        let mut sound: BTreeMap<&str, bool> = BTreeMap::new();
        for row in rows.iter().filter(|row| row.algorithm == name) {
            *sound.entry(&row.hardware).or_insert(true) &= row.verdict == "sound";
        }
        let (mut on, mut not_on) = (Vec::new(), Vec::new());
        for hardware in printed.names(&["Table 2.1"]) {
            let Some(&is_sound) = sound.get(hardware) else { continue };
            let list = if is_sound { &mut on } else { &mut not_on };
            list.push(hardware);
            let Some(said) = suits(printed, claim, hardware) else { continue };
            all += 1;
            if said == is_sound {
                agreeing += 1;
            } else {
                otherwise.push(format!("{name} on {hardware}"));
            }
        }
        let wanted: Vec<_> =
            claim[2].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str).collect();
        let wanted = if wanted.is_empty() { "any".into() } else { wanted.join(", ") };
        table.push(vec![name, text(claim, 1), wanted, on.join(", "), not_on.join(", ")]);
    }
    let rest =
        if otherwise.is_empty() { String::new() } else { format!("; otherwise: {}", otherwise.join(", ")) };
    Ok(figure
        .table(Table::new("", &["algorithm", "*semantics", "*suits TLBs", "sound on", "wrong on"], table))
        .says(
            Verdict::count(agreeing, all),
            format!(
                "{agreeing} of {all} pairings come out as the thesis's Tables 2.1 and 3.1 have them{rest}. A status bit that \
                 is written from the TLB, or written again although it is set, keeps rights that may be written back from \
                 the optimistic algorithms, which the thesis gives to any TLB."
            ),
        )
        .by(rows.command))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printed;

    /// What the thesis finds suitable, by its own tables.
    #[test]
    fn what_the_thesis_says() {
        let printed = printed::tzou().unwrap();
        let claims = printed.list(&["Table 3.1"]);
        let of = |name: &str, hardware: &str| {
            let claim = claims.iter().find(|claim| text(claim, 0) == name).unwrap();
            suits(&printed, claim, hardware)
        };
        assert_eq!((claims.len(), printed.list(&["Table 2.2"]).len()), (10, 11));
        assert_eq!([of("PTE-first", "i386"), of("PTE-first", "vax")], [Some(true), Some(false)]);
        assert_eq!([of("TLB-first", "rp3"), of("TLB-first", "n10")], [Some(true), Some(false)]);
        // Any, also where the crate refuses some of the rights.
        assert_eq!(
            [of("2-phase", "vax"), of("optimistic", "vax"), of("optimistic'", "mc88200")],
            [Some(true); 3]
        );
        assert_eq!([of("optimistic''", "mc88200"), of("optimistic''", "vax")], [Some(true), Some(false)]);
        // Table 2.1 has no row for the MC88200.
        assert_eq!(of("PTE-first''", "mc88200"), None);
    }
}
