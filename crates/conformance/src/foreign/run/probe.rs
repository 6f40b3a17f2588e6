//! The functions that a mapper has.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tlbkit_addr::Attr;

use crate::Profile;
use crate::foreign::adapter::STATUS;
use crate::foreign::{Foreign, Want, frames};

/// Returns the checks that are not made of a mapper, because it has no functions for them or says so, and what is compared.
pub(super) fn probe(new: fn() -> Box<dyn Foreign>) -> (BTreeSet<Want>, Profile) {
    let mapper = RefCell::new(new());
    let maps_itself = frames::cycle().is_some();
    let (space, mut optional) = (mapper.borrow().space(), mapper.borrow().optional());
    let base = space.base();
    let (rights, status) = (optional - STATUS, optional & STATUS);
    let first =
        space.halves().into_iter().flatten().next().map_or(0, |half| half.first().address(base).get());
    let attr = Profile::plain(rights).implied | rights;
    let largest = space.sizes().iter().copied().max().unwrap_or(base);
    let to = largest.bytes();
    // The second page of the second size, in which nothing else is mapped.
    let second = space
        .sizes()
        .get(1)
        .map(|&size| (size, (first | size.mask()).wrapping_add(1).wrapping_add(size.bytes())));
    let of = |has: &mut dyn FnMut(&mut dyn Foreign) -> bool| {
        let mut mapper = mapper.borrow_mut();
        // A mapper that panics here does so in the test, which then shows its calls.
        catch_unwind(AssertUnwindSafe(|| has(&mut **mapper))).unwrap_or(false)
    };
    of(&mut |mapper| mapper.map(first, to, base, attr));
    let mut has = vec![
        (Want::Protect, of(&mut |mapper| mapper.protect(first, base, attr).is_some())),
        (Want::Replace, of(&mut |mapper| mapper.replace(first, to, base, attr).is_some())),
        (Want::Note, !status.is_empty() && of(&mut |mapper| mapper.note(first, status))),
        (Want::ProtectRange, of(&mut |mapper| mapper.protect_range(first, base.bytes(), attr).is_some())),
        (Want::UnmapRange, of(&mut |mapper| mapper.unmap_range(first, base.bytes()).is_some())),
    ];
    of(&mut |mapper| has.contains(&(Want::UnmapRange, true)) || mapper.unmap(first, base));
    has.extend([
        (Want::MapRange, of(&mut |mapper| mapper.map_range(first, to, base, 1, attr).is_some())),
        (
            Want::Resize,
            second.is_some_and(|(size, at)| {
                of(&mut |mapper| mapper.map(at, to, size, attr) && mapper.resize(at, size, base).is_some())
            }),
        ),
        (Want::Mmu, of(&mut |mapper| mapper.mmu().is_some())),
        (Want::Halves, space.halves().iter().all(Option::is_some)),
        (Want::Rights, rights.contains(Attr::WRITE | Attr::EXEC | Attr::USER)),
        (Want::KeepsRefused, !of(&mut |mapper| mapper.keeps_refused())),
        (Want::RefusesLast, !of(&mut |mapper| mapper.refuses_last())),
    ]);
    let lacking: BTreeSet<_> = has.into_iter().filter(|&(_, has)| !has).map(|(want, _)| want).collect();
    if lacking.contains(&Want::Note) {
        optional -= STATUS;
    }
    if maps_itself || frames::cycle().is_none() {
        // The drop of a mapper that has failed may panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(mapper)));
    } else {
        mem::forget(mapper);
    }
    (lacking, Profile::plain(optional))
}
