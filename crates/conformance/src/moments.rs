//! What a walker may see in the middle of a change: of every page the answer before it or the answer after it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use tlbkit_addr::{Attr, Pages, VirtAddr};
use tlbkit_pagetable::{Leaf, Pinned, Table};

use crate::{Model, Op};

/// The most pages that are looked at after one store.
const LOOKS: usize = 12;

/// The moments of one change.
#[derive(Debug)]
pub(crate) struct Moments {
    /// What the change is about and its neighbours, then others.
    pages: Vec<Moment>,
    /// How many of them are looked at after every store.
    near: usize,
    /// Stores so far.
    stores: Cell<usize>,
    wrong: RefCell<Option<String>>,
}

/// What a page may look like.
#[derive(Debug)]
struct Moment {
    at: VirtAddr,
    before: Option<Leaf>,
    after: Option<Leaf>,
    /// Whether the entry must be empty between the two.
    breaks: bool,
    /// Whether its status may be that of several slots.
    noted: bool,
    seen: Cell<Seen>,
}

/// How far a page has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Before,
    Empty,
    After,
}

impl Moments {
    /// Returns what an operation may show, which the model has not performed yet.
    pub(crate) fn of(model: &Model, op: &Op) -> Self {
        let base = model.space().base();
        let effect = if model.refusals(op).is_empty() { model.effect(op) } else { crate::Effect::default() };
        let mut after = model.clone();
        after.commit(&effect);
        let near = effect.removed.iter().chain(&effect.added).flat_map(|leaf| {
            let (first, last) = (leaf.at.get(), leaf.at.get() + leaf.size.mask());
            [first, last, first + (last - first) / 2, first.wrapping_sub(1), last.wrapping_add(1)]
        });
        let ends = op
            .pages()
            .into_iter()
            .flat_map(|pages| [pages.first(), pages.last()].map(|page| page.address(base).get()));
        let step = model.len() / LOOKS + 1;
        let far = model.leaves().step_by(step).map(|leaf| leaf.at.get());
        let mut known = BTreeSet::new();
        let mut new = |at: &usize| known.insert(*at);
        let mut places: Vec<_> = near.chain(ends).map(|at| at & !base.mask()).filter(&mut new).collect();
        // Of many pages some, others the next time.
        let near = if places.len() > LOOKS { 0 } else { places.len() };
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
            let (before, after) = (model.lookup(at), after.lookup(at));
            // A page that is replaced by itself is empty for a moment, too.
            let replaced = before.is_some() && before == replaced;
            let breaks = breaks && (before != after || replaced);
            // Hardware notes in any slot of a page that has several, and those are not of the base size.
            let noted = model.profile().notes && before.is_some_and(|leaf| leaf.size != base);
            Moment { at, before, after, breaks, noted, seen: Cell::new(Seen::Before) }
        };
        let pages = places.into_iter().map(moment).collect();
        Self { pages, near, stores: Cell::new(0), wrong: RefCell::default() }
    }

    /// Returns one of the addresses, chosen by a number: one that changes, if any does.
    pub(crate) fn pick(&self, number: usize) -> Option<VirtAddr> {
        let change: Vec<_> = self.pages.iter().filter(|page| page.before != page.after).collect();
        let of =
            if change.is_empty() || number.is_multiple_of(8) { self.pages.iter().collect() } else { change };
        (!of.is_empty()).then(|| of[number / 8 % of.len()].at)
    }

    /// Looks at the table after a store.
    pub(crate) fn look<'n>(&self, table: &dyn Table<'n>) {
        let store = self.stores.get();
        self.stores.set(store + 1);
        let (near, far) = self.pages.split_at(self.near);
        let some = far.len().div_ceil(LOOKS).max(1);
        // What a change is not about is looked at after a few of its stores.
        let turn = if self.near > 0 && !store.is_multiple_of(8) { far.len() } else { store % some };
        for page in near.iter().chain(far.iter().skip(turn).step_by(some)) {
            // SAFETY: the caller reclaims nothing meanwhile.
            let found = table.lookup(unsafe { Pinned::by(&()) }, page.at);
            if let Err(wrong) = page.see(found, self.near > 0) {
                self.wrong
                    .borrow_mut()
                    .get_or_insert(format!("after store {} of the operation, {wrong}", store + 1));
            }
        }
    }

    /// Judges what a walk has found that began before the change and ended after.
    pub(crate) fn judge(&self, at: VirtAddr, found: Option<Leaf>) -> Result<(), String> {
        let Some(page) = self.pages.iter().find(|page| page.at == at) else { return Ok(()) };
        let found = page.settled(found, page.after);
        if found == page.before || found == page.after || (page.breaks && found.is_none()) {
            return Ok(());
        }
        Err(format!("{at} was {}, which it never was: {}", show(found), page.may()))
    }

    /// Returns what was wrong.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.wrong.borrow_mut().take()
    }
}

impl Moment {
    fn may(&self) -> String {
        let by_way = if self.breaks { ", then unmapped" } else { "" };
        format!("it was {} before{by_way}, and is {} after", show(self.before), show(self.after))
    }

    /// Returns `either` for a larger page some of whose status bits are as before a change and some as after it: the bits are
    /// those of all slots that it stands in, which change one after the other.
    fn settled(&self, found: Option<Leaf>, either: Option<Leaf>) -> Option<Leaf> {
        let status = Attr::ACCESSED | Attr::DIRTY;
        let (Some(before), Some(after), Some(leaf)) = (self.before, self.after, found) else { return found };
        let plain = |leaf: Leaf| Leaf { attr: leaf.attr - status, ..leaf };
        let between =
            (before.attr | after.attr).contains(leaf.attr) && leaf.attr.contains(before.attr & after.attr);
        let same = plain(before) == plain(leaf) && plain(after) == plain(leaf);
        if self.noted && same && between { either } else { found }
    }

    /// Takes in what a look has found. `always` says that none is left out.
    fn see(&self, found: Option<Leaf>, always: bool) -> Result<(), String> {
        let was = self.seen.get();
        let found = self.settled(found, if was == Seen::Before { self.before } else { self.after });
        let now = if found == self.before && self.before == self.after {
            was
        } else if found == self.after && (!(self.breaks && always) || was != Seen::Before) {
            Seen::After
        } else if found == self.before && was == Seen::Before {
            Seen::Before
        } else if self.breaks && found.is_none() && was != Seen::After {
            Seen::Empty
        } else {
            let at = self.at;
            return Err(if self.breaks && found == self.after {
                format!("{at} is {} without having been unmapped (break before make)", show(found))
            } else if found == self.before {
                format!("{at} is {} again, as before the operation", show(found))
            } else {
                format!("a walker finds {at} {}: {}", show(found), self.may())
            });
        };
        self.seen.set(now);
        Ok(())
    }
}

/// Says what a lookup found.
pub(crate) fn show(found: Option<Leaf>) -> String {
    found.map_or("unmapped".to_owned(), |leaf| format!("mapped by the {leaf}"))
}

/// Says where an address is translated to.
pub(crate) fn place(phys: Option<usize>) -> String {
    phys.map_or("to nothing".to_owned(), |phys| format!("to {phys:#x}"))
}

/// Looks a page up, as a visitor of that page alone.
pub(crate) fn visit<'n>(table: &dyn Table<'n>, at: VirtAddr) -> Option<Leaf> {
    let mut found = None;
    let page = Pages::one(at.vpn(table.space().base()));
    // SAFETY: the caller reclaims nothing meanwhile.
    let _ = table.for_each(unsafe { Pinned::by(&()) }, page, &mut |leaf| {
        found = Some(leaf);
        ControlFlow::Continue(())
    });
    found
}
