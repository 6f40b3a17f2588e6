//! All mutants of a source file woven into it, each behind a switch.
//!
//! ```text
//! a + b * c        (match pick(7, 2) { 0 => (a + b * c), 1 => (a - b * c), _ => (a + b / c) })
//! fn f() -> u8 {   fn f() -> u8 { match pick(9, 2) { 1 => return 0, 2 => return 1, _ => {} }
//! Some(x) =>       Some(x) if pick(11, 1) == 0 =>
//! ```
//!
//! What is chosen is the source as the mutant has it, whole, so that it means and infers what it would if it stood
//! there alone; the mutants of expressions inside are in the original only.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::list::{Kind, Mutant};
use super::sites::{Choice, Site, Sites};

/// What a mutant is called at run time: 1, 2, 3.
pub(crate) type Number = u32;

/// A source file and where its mutants are.
#[derive(Debug)]
pub(crate) struct SourceFile {
    source: String,
    places: Vec<Place>,
}

/// What is to be chosen at a site: the one with the n-th number is the n-th of the mutants.
#[derive(Debug)]
struct Place {
    site: Site,
    first: Number,
    mutants: Vec<(Mutant, Range<usize>)>,
}

/// A mutant that has no site.
#[derive(Debug)]
pub(crate) struct Unplaced {
    pub(crate) mutant: Mutant,
    /// It is no Rust; else it is evaluated at compile time.
    pub(crate) ungrammatical: bool,
}

/// A woven source file.
#[derive(Debug, Default)]
pub(crate) struct Woven {
    pub(crate) text: String,
    /// Where the sources of mutants are in it.
    pub(crate) mutants: Vec<(Range<usize>, Number)>,
}

impl SourceFile {
    /// Finds the sites for a file's mutants, whose numbers begin with `next`.
    pub(crate) fn new(
        source: String,
        mutants: Vec<Mutant>,
        next: &mut Number,
    ) -> syn::Result<(Self, Vec<Unplaced>)> {
        let Sites { sites, chained, .. } = Sites::of(&source)?;
        let mut unplaced = Vec::new();
        let mut at: BTreeMap<usize, Vec<(Mutant, Range<usize>)>> = BTreeMap::new();
        for mutant in mutants {
            let span = span(&source, &mutant);
            let choice = match mutant.kind {
                Kind::Body => Choice::Body,
                Kind::Arm => Choice::Arm,
                Kind::Binary | Kind::Unary | Kind::Guard | Kind::Field => Choice::Expression,
            };
            let ungrammatical = mutant.kind == Kind::Binary && chained.contains(&span);
            let fits = |site: &Site| {
                site.choice == choice && site.covers.start <= span.start && span.end <= site.covers.end
            };
            let home = sites.iter().enumerate().filter(|(_, site)| fits(site));
            match home.min_by_key(|(_, site)| site.covers.len()) {
                Some((home, _)) if !ungrammatical => at.entry(home).or_default().push((mutant, span)),
                _ => unplaced.push(Unplaced { mutant, ungrammatical }),
            }
        }
        let places = at.into_iter().map(|(site, mutants)| {
            let first = *next;
            *next += mutants.len() as Number;
            Place { site: sites[site].clone(), first, mutants }
        });
        let places = places.collect();
        Ok((Self { source, places }, unplaced))
    }

    /// Returns the mutants and their numbers, and whether they may be evaluated at compile time, too.
    pub(crate) fn mutants(&self) -> impl Iterator<Item = (Number, &Mutant, bool)> {
        self.places.iter().flat_map(|place| {
            let mutants = place.mutants.iter().map(|(mutant, _)| mutant);
            (place.first..).zip(mutants).map(|(number, mutant)| (number, mutant, place.site.constant))
        })
    }

    /// Weaves all mutants in, but those that are left out.
    pub(crate) fn weave(&self, without: &BTreeSet<Number>) -> Woven {
        let mut threads = Vec::new();
        for place in &self.places {
            let live: Vec<_> =
                (place.first..).zip(&place.mutants).filter(|(number, _)| !without.contains(number)).collect();
            if !live.is_empty() {
                place.threads(&self.source, &live, &mut threads);
            }
        }
        threads.sort_by_key(|thread| (thread.at, thread.rank));
        let mut woven = Woven::default();
        let mut from = 0;
        for thread in threads {
            woven.text.push_str(&self.source[from..thread.at]);
            from = thread.at;
            for (text, number) in thread.text {
                let start = woven.text.len();
                woven.text.push_str(&text);
                woven.mutants.extend(number.map(|number| (start..woven.text.len(), number)));
            }
        }
        woven.text.push_str(&self.source[from..]);
        woven
    }
}

/// Returns what a mutant replaces, in bytes.
fn span(source: &str, mutant: &Mutant) -> Range<usize> {
    let offset = |(line, column): (usize, usize)| {
        let start: usize = source.split_inclusive('\n').take(line - 1).map(str::len).sum();
        start + source[start..].chars().take(column - 1).map(char::len_utf8).sum::<usize>()
    };
    offset(mutant.from)..offset(mutant.to)
}

/// Returns a source file with one mutant in it, as cargo-mutants makes it.
pub(crate) fn mutated(source: &str, mutant: &Mutant) -> String {
    let span = span(source, mutant);
    [&source[..span.start], &mutant.replacement, &source[span.end..]].concat()
}

/// Text to be put in before or behind a site.
struct Thread {
    at: usize,
    /// Which is first at the same place: ends before beginnings; inner ends and outer beginnings before others.
    rank: (bool, Reverse<usize>, usize),
    text: Vec<(String, Option<Number>)>,
}

impl Place {
    /// Adds what is to be put in for those of its mutants that are live.
    fn threads(&self, source: &str, live: &[(Number, &(Mutant, Range<usize>))], threads: &mut Vec<Thread>) {
        let Site { choice, range, covers, .. } = &self.site;
        let pick = format!("::tlbkit_mutant::pick({}, {})", self.first, self.mutants.len());
        let plain = |text: String| (text, None);
        let mut before = Vec::new();
        let mut behind = Vec::new();
        match choice {
            Choice::Body => {
                before.push(plain(format!(" match {pick} {{ ")));
                for &(number, (mutant, _)) in live {
                    before.push(plain(format!("{} => return ", number - self.first + 1)));
                    before.push((mutant.replacement.clone(), Some(number)));
                    before.push(plain(", ".into()));
                }
                before.push(plain("_ => {} }".into()));
            }
            Choice::Arm if range.is_empty() => before.push(plain(format!(" if {pick} == 0"))),
            Choice::Arm => {
                before.push(plain(format!("{pick} == 0 && (")));
                behind.push(plain(")".into()));
            }
            Choice::Expression => {
                before.push(plain(format!("(match {pick} {{ 0 => (")));
                for (at, &(number, (mutant, span))) in live.iter().enumerate() {
                    let when = (number - self.first + 1).to_string();
                    let when = if at + 1 == live.len() { "_" } else { &when };
                    behind.push(plain(format!("), {when} => (")));
                    let text = [&source[range.start..span.start], &mutant.replacement];
                    behind.push((text.concat() + &source[span.end..range.end], Some(number)));
                }
                behind.push(plain(") })".into()));
            }
        }
        let order = *choice as usize;
        let end = if *choice == Choice::Body { covers.end } else { range.end };
        threads.push(Thread { at: range.start, rank: (true, Reverse(end), order), text: before });
        if !behind.is_empty() {
            let rank = (false, Reverse(range.start), Choice::Expression as usize - order);
            threads.push(Thread { at: range.end, rank, text: behind });
        }
    }
}

#[cfg(test)]
mod tests;
