//! The guest's superpage promotions against the host's: the same policy, told the same, must answer the same.
//!
//! The kernel writes a line for each miss that its policy is told of and for each answer; `examples/kernel/src/growth.rs` has the
//! format. Here the lines are read back, and each answer is compared with the host's.

use anyhow::{Context, bail, ensure};
use tlbkit_addr::{PageSize, Pages, Vpn};
use tlbkit_superpage::{
    Action, ApproxOnline, Costs, Miss, PageSizes, Policy, PolicyMemory, Refusal, SegmentMemory, Setup, Slot,
    Superpage, Tlb,
};

/// What begins a line of a transcript, which is no row.
pub(super) const TRANSCRIPT: &str = "+ ";

/// Segments that there is room to count: at least as many as in the kernel.
const SEGMENTS: usize = 64;

/// What both policies were told and answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) misses: u64,
    pub(super) promotions: u64,
    pub(super) refusals: u64,
    pub(super) demotions: u64,
}

/// Returns what there is to say about the lines of a boot.
///
/// # Errors
///
/// If the host's policy does not answer as the guest's.
pub(super) fn text(lines: &[String]) -> anyhow::Result<String> {
    let Agreed { misses, promotions, refusals, demotions } = replay(lines.iter().map(String::as_str))?;
    ensure!(promotions > 0 && demotions > 0, "no page has grown, or none was split again");
    Ok(format!(
        "Superpages by APPROX-ONLINE: {misses} misses, {promotions} promotions, {refusals} refusals, {demotions} demotions\n\
         The host's policy, told of the same misses, gives the same answers line by line.\n"
    ))
}

/// Replays a transcript.
///
/// # Errors
///
/// The first line whose answer is not the host's, or that is none.
pub(super) fn replay<'t>(lines: impl IntoIterator<Item = &'t str>) -> anyhow::Result<Agreed> {
    let mut lines = lines.into_iter().filter_map(|line| line.strip_prefix(TRANSCRIPT)).enumerate();
    let (_, first) = lines.next().context("the guest has written no transcript")?;
    let setup = setup(first).with_context(|| format!("no setup: `{first}`"))?;
    let each = ApproxOnline::segment_memory(&setup)?;
    let mut directory = vec![Slot::default(); SEGMENTS * SegmentMemory::SLOTS];
    let mut bits = vec![0; SEGMENTS * each.bits];
    let mut counters = vec![0; SEGMENTS * each.counters];
    let memory = PolicyMemory { directory: &mut directory, bits: &mut bits, counters: &mut counters };
    let mut policy = ApproxOnline::new(&setup, memory)?;
    let mut agreed = Agreed::default();
    // What the host wants done, until the guest says what came of it.
    let mut wanted = None;
    for (number, line) in lines {
        let event = Event::parse(line).with_context(|| format!("line {number} says nothing: `{line}`"))?;
        match (event, wanted.take()) {
            (Event::Promoted(range), Some(host)) if range == host => {
                policy.promoted(range);
                agreed.promotions += 1;
            }
            (Event::Refused(range, why), Some(host)) if range == host => {
                policy.refused(range, why);
                agreed.refusals += 1;
            }
            // Before its answer, too: what is to become part of a larger page is taken apart first.
            (Event::Demoted(page, range), pending) => {
                let host = policy.demote(page);
                if host != Some(range) {
                    bail!("line {number}: the host demotes {host:?}, the guest says `{line}`");
                }
                agreed.demotions += 1;
                wanted = pending;
            }
            (_, Some(host)) => bail!("line {number}: the host promotes {host}, the guest says `{line}`"),
            (Event::Promoted(_) | Event::Refused(..), None) => {
                bail!("line {number}: the host promotes nothing, the guest says `{line}`")
            }
            (Event::Miss(page, evicted), None) => {
                agreed.misses += 1;
                wanted = match policy.on_miss(Miss { tlb: Tlb::Data, page, evicted, now: agreed.misses }) {
                    Some(Action::Promote { range, .. }) => Some(range),
                    Some(Action::OutOfSegments { page }) => {
                        bail!("line {number}: no room to count page {page}")
                    }
                    None => None,
                };
            }
            (Event::Evicted(page), None) => policy.evicted(Tlb::Data, page),
            (Event::Unmapped(pages), None) => policy.unmapped(pages),
        }
    }
    match wanted {
        None => Ok(agreed),
        Some(host) => bail!("the transcript ends before the guest promotes {host}"),
    }
}

/// A line.
#[derive(Clone, Copy, Debug)]
enum Event {
    Miss(Vpn, Option<Vpn>),
    Promoted(Superpage),
    Refused(Superpage, Refusal),
    Demoted(Vpn, Superpage),
    Evicted(Vpn),
    Unmapped(Pages),
}

impl Event {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let page = |word: &str| Some(Vpn::new(usize::from_str_radix(word, 16).ok()?));
        let range = |first: &str, shift: &str| {
            Some(Superpage { first: page(first)?, size: PageSize::from_shift(shift.parse().ok()?)? })
        };
        let (kind, first) = (words.next()?, words.next()?);
        if kind == "e" {
            return words.next().is_none().then_some(Self::Evicted(page(first)?));
        }
        let event = match (kind, first, words.next()?) {
            ("m", missed, "-") => Self::Miss(page(missed)?, None),
            ("m", missed, evicted) => Self::Miss(page(missed)?, Some(page(evicted)?)),
            ("p", first, shift) => Self::Promoted(range(first, shift)?),
            ("r", first, shift) => Self::Refused(range(first, shift)?, Refusal::NoMemory),
            ("n", first, shift) => Self::Refused(range(first, shift)?, Refusal::NotHere),
            ("u", first, last) => Self::Unmapped(Pages::new(page(first)?, page(last)?)?),
            ("d", alone, first) => Self::Demoted(page(alone)?, range(first, words.next()?)?),
            _ => return None,
        };
        words.next().is_none().then_some(event)
    }
}

/// Reads `setup sizes=13,15 r_per_kb=2`.
fn setup(line: &str) -> Option<Setup> {
    let (sizes, r_per_kb) = line.strip_prefix("setup sizes=")?.split_once(" r_per_kb=")?;
    let sizes: Option<Vec<_>> =
        sizes.split(',').map(|shift| PageSize::from_shift(shift.parse().ok()?)).collect();
    let page_sizes = PageSizes::new(PageSize::K4, &sizes?).ok()?;
    let costs = Costs { r_per_kb: r_per_kb.parse().ok()?, ..Costs::PAPER };
    Some(Setup { page_sizes, split: false, costs, ..Setup::PAPER })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first promotions of a boot, its first 640 lines.
    const TRANSCRIPT: &str = include_str!("superpage/transcript.txt");

    #[test]
    fn the_guests_promotions_are_the_hosts() {
        let agreed = replay(TRANSCRIPT.lines()).unwrap();
        assert_eq!(agreed, Agreed { misses: 634, promotions: 4, refusals: 0, demotions: 1 });
    }

    #[test]
    fn a_line_more_or_less_is_noticed() {
        let lines: Vec<_> = TRANSCRIPT.lines().collect();
        let promotion = lines.iter().position(|line| line.starts_with("+ p")).unwrap();
        let mut less = lines.clone();
        less.remove(promotion);
        let error = replay(less).unwrap_err().to_string();
        assert!(error.contains("the host promotes 512K"), "{error}");
        let mut more = lines.clone();
        more.insert(promotion, lines[promotion]);
        let error = replay(more).unwrap_err().to_string();
        assert!(error.contains("the host promotes nothing") || error.contains("the guest says"), "{error}");
        // A miss that the guest was not told of makes it promote later than the host.
        let mut later = lines;
        later.remove(promotion - 1);
        assert!(replay(later).is_err());
        assert!(replay(["+ setup sizes=13 r_per_kb=2"]).is_err());
        assert!(replay(["+ setup sizes=13,15 r_per_kb=2", "+ x 1 2"]).is_err());
        assert!(replay(["no transcript"]).is_err());
        // What is unmapped is promoted no more.
        let mut told: Vec<_> = TRANSCRIPT.lines().collect();
        told.insert(promotion - 1, "+ u 4000 5fff");
        assert!(replay(told).is_err());
        assert!(replay(["+ setup sizes=13,15 r_per_kb=2", "+ m 4000 -", "+ e 4000"]).is_ok());
        assert!(replay(["+ setup sizes=13,15 r_per_kb=2", "+ e 4000 1"]).is_err());
    }
}
