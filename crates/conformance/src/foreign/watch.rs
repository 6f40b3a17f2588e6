//! Walks as hardware makes them, during a call of a mapper.

use std::cell::{Cell, RefCell};

use tlbkit_addr::Attr;

use super::{Mmu, frames};

/// What a walk finds.
pub(super) type Seen = Option<(usize, Attr)>;

/// An address that is looked up after every store of a call.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) at: usize,
    pub(super) before: Seen,
    pub(super) after: Seen,
}

/// A call whose stores are watched.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) mmu: Mmu,
    /// The attributes that are compared.
    pub(super) attr: Attr,
    pub(super) places: Vec<Place>,
    /// Whether a page that changes is unmapped in between.
    pub(super) breaks: bool,
    pub(super) stores: usize,
    pub(super) fault: Option<String>,
}

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
    /// Whether the mapper has told of a store.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Begins to watch a call, or none.
pub(super) fn begin(watch: Option<Watch>) {
    WATCH.set(watch);
}

/// Ends the watch, and returns what was wrong.
pub(super) fn end() -> Option<String> {
    WATCH.take().and_then(|watch| watch.fault)
}

/// Tells whether the mapper has told of a store since the last call of this function.
pub(super) fn told() -> bool {
    TOLD.take()
}

/// Looks up every place of the call that is watched.
pub(super) fn look() {
    TOLD.set(true);
    // The watch is taken out meanwhile: a walk makes no store.
    if let Some(mut watch) = WATCH.take() {
        watch.look();
        WATCH.set(Some(watch));
    }
}

/// Walks a mapper's tables. Returns as an error the address of a word that lies in no frame of the mapper's.
pub(super) fn walk(mmu: Mmu, attr: Attr, at: usize, given: bool) -> Result<Seen, usize> {
    let mut wild = None;
    let seen = (mmu.walk)(mmu.root, at, &mut |word| {
        frames::load(word, given).unwrap_or_else(|| {
            wild = wild.or(Some(word));
            0
        })
    });
    wild.map_or(Ok(seen.map(|(to, found)| (to, found & attr))), Err)
}

/// Describes what a walk finds.
pub(super) fn words(seen: Seen) -> String {
    seen.map_or("unmapped".to_owned(), |(to, attr)| format!("translated to {to:#x} with {attr:?}"))
}

impl Watch {
    fn look(&mut self) {
        self.stores += 1;
        if self.fault.is_some() {
            return;
        }
        for place in &mut self.places {
            let Place { at, before, after } = *place;
            self.fault = match walk(self.mmu, self.attr, at, false) {
                Err(word) => Some(format!(
                    "after store {} of the call, a walk of {at:#x} by hardware loads the word at {word:#x}, which is in no node",
                    self.stores
                )),
                Ok(seen) if seen == after => {
                    // From now on only this is right.
                    place.before = after;
                    None
                }
                Ok(seen) if seen == before || seen.is_none() && self.breaks => None,
                Ok(seen) => Some(format!(
                    "after store {} of the call, {at:#x} is {}: it was {}, and becomes {}",
                    self.stores,
                    words(seen),
                    words(before),
                    words(after)
                )),
            };
            if self.fault.is_some() {
                return;
            }
        }
    }
}
