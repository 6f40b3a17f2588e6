//! The results that a walker may find during a change: every page as it was before the change, or as it is after the change.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, Pages, VirtAddr};
use tlbkit_pagetable::{Entry, Leaf, Pinned, Table};

use crate::hang::{self, ENDLESS};
use crate::words::show_entry;
use crate::{Model, Op};

/// The largest number of pages that are looked up after one store.
const LOOKS: usize = 12;

/// The results that are allowed during one change.
#[derive(Debug)]
pub(crate) struct Moments {
    /// The pages of the change and their neighbours first, those at its ends before all, then others.
    pages: Vec<Moment>,
    /// The number of them that are looked up after every store.
    near: usize,
    /// Whether these are all pages of the change.
    is_all: bool,
    /// Stores so far.
    stores: Cell<usize>,
    /// Whether the table holds marks.
    marks: bool,
    wrong: RefCell<Option<String>>,
}

/// The results that are allowed for a page.
#[derive(Debug)]
struct Moment {
    at: VirtAddr,
    before: Entry,
    after: Entry,
    /// Whether the entry must be empty between the two.
    breaks: bool,
    /// Whether its status bits may be the union of those of several slots.
    noted: bool,
    /// How far the page has changed for lookups, for reads of its entry, and for visits. These may read different words of the
    /// table, so each has a progress of its own.
    seen: Cell<Seen>,
    seen_entry: Cell<Seen>,
    seen_visit: Cell<Seen>,
}

/// The function that a walker calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// [`Table::lookup`].
    Lookup,
    /// [`Table::for_each`] of the page alone.
    Visit,
    /// [`Table::entry`], in a table that holds marks.
    Entry,
    /// [`Table::for_each_entry`] of the page alone.
    VisitEntry,
}

/// How far a page has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Before,
    Empty,
    After,
}

impl Moments {
    /// Returns the results that are right during `op`, which the model has not performed yet.
    pub(crate) fn of(model: &Model, op: &Op) -> Self {
        let base = model.space().base();
        let effect = if model.refusals(op).is_empty() { model.effect(op) } else { crate::Effect::default() };
        let mut after = model.clone();
        after.commit(&effect);
        let marked = effect.marked.iter().take(LOOKS).map(|(page, _)| page.address(base).get());
        let places_of = |leaf: &Leaf| {
            let (first, last) = (leaf.at.get(), leaf.at.get() + leaf.size.mask());
            [first, last, first + (last - first) / 2, first.wrapping_sub(1), last.wrapping_add(1)]
        };
        let changed = [&effect.removed, &effect.added];
        let ends_of = changed.into_iter().flat_map(|leaves| leaves.first().into_iter().chain(leaves.last()));
        let ends = op
            .pages()
            .into_iter()
            .flat_map(|pages| [pages.first(), pages.last()].map(|page| page.address(base).get()))
            .chain(ends_of.flat_map(places_of));
        let step = model.len() / LOOKS + 1;
        let far = model.leaves().step_by(step).map(|leaf| leaf.at.get());
        let marks = model.space().halves().into_iter().flatten().flat_map(|half| model.marks(half));
        let far = far.chain(marks.take(LOOKS).map(|(at, _)| at.get()));
        let mut known = BTreeSet::new();
        let mut new = |at: &usize| known.insert(*at);
        let page = |at: usize| at & !base.mask();
        let mut places: Vec<_> = ends.chain(marked).map(page).filter(&mut new).collect();
        let ends = places.len();
        places.extend(changed.into_iter().flatten().flat_map(places_of).map(page).filter(&mut new));
        // If there are more pages than `LOOKS`, a part of them is looked up after each store, and other ones after the next
        // store.
        let is_all = places.len() <= LOOKS;
        let near = if is_all { places.len() } else { ends };
        places.extend(far.filter(new));
        let breaks = match op {
            Op::Resize { .. } => model.profile().breaks,
            Op::Replace { .. } => model.profile().breaks_frames,
            _ => false,
        };
        let replaced = match op {
            Op::Replace { at, .. } => model.lookup(*at),
            _ => None,
        };
        let moment = |at: usize| {
            let at = VirtAddr::new(at);
            let (before, after) = (model.entry(at), after.entry(at));
            // A page that is replaced by the same leaf is also empty in between.
            let replaced = before.leaf().is_some() && before.leaf() == replaced;
            let breaks = breaks && (before != after || replaced);
            // Hardware sets status bits in any slot of a page with several slots, and such a page is not of the base size.
            let noted = model.profile().notes && before.leaf().is_some_and(|leaf| leaf.size != base);
            let [seen, seen_entry, seen_visit] = [const { Cell::new(Seen::Before) }; 3];
            Moment { at, before, after, breaks, noted, seen, seen_entry, seen_visit }
        };
        let pages = places.into_iter().map(moment).collect();
        let marks = model.has_marks();
        Self { pages, near, is_all, stores: Cell::new(0), marks, wrong: RefCell::default() }
    }

    /// Returns one of the addresses, chosen by a number: one that changes, if any does.
    pub(crate) fn pick(&self, number: usize) -> Option<VirtAddr> {
        let change: Vec<_> = self.pages.iter().filter(|page| page.before != page.after).collect();
        let of =
            if change.is_empty() || number.is_multiple_of(8) { self.pages.iter().collect() } else { change };
        (!of.is_empty()).then(|| of[number / 8 % of.len()].at)
    }

    /// Looks up pages of the table after a store.
    ///
    /// # Safety
    ///
    /// No retired node of the table is reclaimed during the call.
    pub(crate) unsafe fn look<'n>(&self, table: &dyn Table<'n>) {
        let store = self.stores.get();
        self.stores.set(store + 1);
        if store.is_multiple_of(64) {
            hang::goes_on();
            assert!(
                store < ENDLESS,
                "an operation has stored {ENDLESS} times, and does not end: it changes fewer words"
            );
        }
        let (near, far) = self.pages.split_at(self.near);
        let some = far.len().div_ceil(if self.is_all { LOOKS } else { LOOKS / 2 }).max(1);
        // Pages outside the change are looked up after every eighth store.
        let turn = if self.is_all && !store.is_multiple_of(8) { far.len() } else { store % some };
        for (number, page) in near.iter().chain(far.iter().skip(turn).step_by(some)).enumerate() {
            let entries = [Ask::Entry, Ask::VisitEntry].into_iter().filter(|_| self.marks);
            for ask in entries.chain([Ask::Lookup]) {
                // SAFETY: nothing is reclaimed during this call, and so during that one.
                let found = unsafe { ask.of(table, page.at) };
                if let Err(wrong) = page.see(ask, found, number < near.len()) {
                    self.wrong
                        .borrow_mut()
                        .get_or_insert(format!("after store {} of the operation, {wrong}", store + 1));
                }
            }
        }
    }

    /// Returns what a walker may ask for, chosen by a number.
    pub(crate) fn ask(&self, number: usize) -> Ask {
        match number % 4 {
            3 => Ask::Visit,
            1 if self.marks => Ask::Entry,
            2 if self.marks => Ask::VisitEntry,
            _ => Ask::Lookup,
        }
    }

    /// Checks the result of a walk that began before the change and ended after it.
    pub(crate) fn judge(&self, at: VirtAddr, ask: Ask, found: Entry) -> Result<(), String> {
        let Some(page) = self.pages.iter().find(|page| page.at == at) else { return Ok(()) };
        let (before, after) = (ask.shows(page.before), ask.shows(page.after));
        let found = page.settled(found, after);
        if found == before || found == after || (page.breaks && found == Entry::Empty) {
            return Ok(());
        }
        Err(format!("{ask} found {at} {}, which it never was: {}", show_entry(found), page.may(ask)))
    }

    /// Returns the first error, and forgets it.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.wrong.borrow_mut().take()
    }
}

impl Ask {
    /// Calls the function for a page of a table.
    ///
    /// # Safety
    ///
    /// No retired node of the table is reclaimed during the call.
    pub(crate) unsafe fn of<'n>(self, table: &dyn Table<'n>, at: VirtAddr) -> Entry {
        // SAFETY: `pinned` lives as long as this call, during which nothing is reclaimed, as the caller guarantees.
        let pinned = unsafe { Pinned::by(&()) };
        let page = Pages::one(at.vpn(table.space().base()));
        let mut found = Entry::Empty;
        match self {
            Self::Lookup => return table.lookup(pinned, at).map_or(Entry::Empty, Entry::Leaf),
            Self::Entry => return table.entry(pinned, at),
            Self::Visit => {
                let _ = table.for_each(pinned, page, &mut |leaf| {
                    found = Entry::Leaf(leaf);
                    ControlFlow::Continue(())
                });
            }
            Self::VisitEntry => {
                // A page that changes its size may be visited twice, with its new and with its old leaf. The first one is the
                // result.
                let _ = table.for_each_entry(pinned, page, &mut |_, entry| {
                    found = entry;
                    ControlFlow::Break(())
                });
            }
        }
        found
    }

    /// Returns the part of an entry that this function can return: only some functions return marks.
    fn shows(self, entry: Entry) -> Entry {
        match (self, entry) {
            (Self::Lookup | Self::Visit, Entry::Mark(_)) => Entry::Empty,
            _ => entry,
        }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lookup => "`lookup`",
            Self::Visit => "`for_each`",
            Self::Entry => "`entry`",
            Self::VisitEntry => "`for_each_entry`",
        })
    }
}

impl Moment {
    fn may(&self, ask: Ask) -> String {
        let by_way = if self.breaks { ", then unmapped" } else { "" };
        let [before, after] = [self.before, self.after].map(|entry| show_entry(ask.shows(entry)));
        format!("it was {before} before{by_way}, and is {after} after")
    }

    /// Returns `either` for a larger page with some status bits from before a change and some from after it: the bits are the
    /// union of those of all its slots, which change one after the other.
    fn settled(&self, found: Entry, either: Entry) -> Entry {
        let status = Attr::ACCESSED | Attr::DIRTY;
        let leaves = (self.before, self.after, found);
        let (Entry::Leaf(before), Entry::Leaf(after), Entry::Leaf(leaf)) = leaves else { return found };
        let plain = |leaf: Leaf| Leaf { attr: leaf.attr - status, ..leaf };
        let between =
            (before.attr | after.attr).contains(leaf.attr) && leaf.attr.contains(before.attr & after.attr);
        let same = plain(before) == plain(leaf) && plain(after) == plain(leaf);
        if self.noted && same && between { either } else { found }
    }

    /// Records the result of a lookup. If `always` is true, the page is looked up after every store.
    fn see(&self, ask: Ask, found: Entry, always: bool) -> Result<(), String> {
        let (before, after) = (ask.shows(self.before), ask.shows(self.after));
        let seen = match ask {
            Ask::Lookup => &self.seen,
            Ask::Entry => &self.seen_entry,
            Ask::Visit | Ask::VisitEntry => &self.seen_visit,
        };
        let was = seen.get();
        let found = self.settled(found, if was == Seen::Before { before } else { after });
        let now = if found == before && before == after {
            was
        } else if found == after && (!(self.breaks && always) || was != Seen::Before) {
            Seen::After
        } else if found == before && was == Seen::Before {
            Seen::Before
        } else if self.breaks && found == Entry::Empty && was != Seen::After {
            Seen::Empty
        } else {
            let (at, shown) = (self.at, show_entry(found));
            return Err(if self.breaks && found == after {
                format!("{at} is {shown} without having been unmapped (break before make)")
            } else if found == before {
                format!("{ask} finds {at} {shown} again, as before the operation")
            } else {
                format!("{ask} finds {at} {shown}: {}", self.may(ask))
            });
        };
        seen.set(now);
        Ok(())
    }
}
