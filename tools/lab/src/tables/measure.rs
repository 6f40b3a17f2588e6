//! One structure's run: map, replay, verify, unmap.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use anyhow::Context;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Reclaim as _, Slab};
use tlbkit_pagetable::{
    Change, Error, FlushAll, Holes, Leaf, NestedMissObserver, Pinned, Table, Word, Writer,
};
use tlblab_tables::{Build, Form, Named, Storage};

use crate::cache::{Caches, Machine};
use crate::cycles::Clock;
use crate::trace::Kind;

use super::load::Load;
use super::machine::Refill;
use super::optimum::Optimum;
use super::pieces::{Piece, singles, superpages};
use super::refs::Refs;
use super::{Inject, Layout, Row};

/// What every structure of a run is given.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) load: &'a Load,
    pub(super) base_kb: usize,
    pub(super) seed: u64,
    pub(super) layout: Layout,
    pub(super) inject: Option<Inject>,
    pub(super) optimum: Optimum,
    /// The machine on which to count cycles, if any.
    pub(super) on: Option<Machine>,
}

/// The answer to every lookup, kept plainly.
type Model = BTreeMap<Vpn, (Pfn, Attr)>;

/// The size of a chunk of node memory, and how many there are to begin with.
const CHUNK: usize = size_of::<Chunk>();
const CHUNKS: usize = 1 << 11;

/// Measures a structure in as much node memory as it needs; `None` if that is more than its words can address.
pub(super) fn measure(structure: &Named, run: &Run<'_>) -> anyhow::Result<Option<Row>> {
    let narrow = structure.form.map(|form| measure_form(structure, form, run)).transpose()?;
    match (narrow.flatten(), structure.wider) {
        (None, Some(wider)) => measure_form(structure, wider, run),
        (row, _) => Ok(row),
    }
}

fn measure_form<W: Word>(structure: &Named, form: Form<W>, run: &Run<'_>) -> anyhow::Result<Option<Row>> {
    let most = form.reach.last(NodeAddr::new(0)).unwrap_or(0) / CHUNK;
    let mut chunks = CHUNKS.min(most);
    loop {
        let mut memory = vec![Chunk::ZERO; chunks];
        let storage = Storage::new(Slab::new(&mut memory, 0).map_err(anyhow::Error::msg)?);
        match measure_in(structure, form.build, run, &storage) {
            Err(Error::NoMemory { .. }) if chunks < most => chunks = most.min(chunks * 4),
            Err(Error::NoMemory { .. }) => return Ok(None),
            row => return Ok(Some(row.context(structure.name)?)),
        }
    }
}

fn measure_in<'n, W: Word>(
    structure: &Named,
    build: Build<W>,
    run: &Run<'_>,
    storage: &'n Storage<'n, W>,
) -> Result<Row, Error> {
    let built = build(storage)?;
    let empty = storage.bytes();
    let refills = if structure.linear { &run.load.linear } else { &run.load.refills };
    let pieces = if structure.superpages { superpages(&run.load.pages) } else { singles(&run.load.pages) };
    let mut row = examine(structure.name, run, storage, refills, built.table(), &pieces)?;
    if structure.falls_back && storage.refused() {
        return Err(Error::no_memory(1, storage.held()));
    }
    row.nested_misses_mean = row.nested_misses_mean.filter(|_| structure.linear);
    row.moved_max = built.moved_max();
    // An array that has grown stays; nothing else does.
    row.verified &= row.moved_max.is_some() || storage.bytes() == empty;
    // SAFETY: no other thread walks the table, and this one does not now, and there is no TLB.
    unsafe { built.destroy().reclaim() };
    row.verified &= storage.bytes() == 0;
    Ok(row)
}

/// Changes the table and frees at once what that took out.
fn change<'t, 'n, T>(
    table: &'t (dyn Table<'n> + 't),
    edit: impl FnOnce(&mut Writer<'t, 'n, dyn Table<'n> + 't>) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut writer = Writer::new(table)?;
    let done = edit(&mut writer);
    // SAFETY: no other thread walks the table, and this one does not now, and there is no TLB.
    unsafe { writer.finish().reclaim() };
    done
}

/// What a table takes and answers. One copy of this code serves all structures.
fn examine<'t, 'n, W: Word>(
    name: &'static str,
    run: &Run<'_>,
    storage: &Storage<'n, W>,
    refills: &[Refill],
    table: &'t (dyn Table<'n> + 't),
    pieces: &[Piece],
) -> Result<Row, Error> {
    let mut model = Model::new();
    for &piece in pieces {
        let Piece { pages, size, frame, attr } = piece;
        change(table, |writer| writer.map(pages, frame, size, attr))?;
        model.extend(piece.each().map(|(page, frame)| (page, (frame, attr))));
    }

    // Space, now that the load has settled.
    let footprint = table.footprint();
    let (bytes, peak_bytes) = match run.layout {
        Layout::Paper => (storage.bytes(), storage.peak()),
        Layout::Compact => (storage.usage().chunks, storage.usage().peak),
    };
    let inner = bytes - footprint.leaf_bytes;
    let mut node_bytes = storage.sizes();
    if let Some(leaf) = footprint.leaf_bytes.checked_div(footprint.leaves)
        && let Some(nodes) = node_bytes.get_mut(&leaf)
    {
        *nodes -= footprint.leaves.min(*nodes);
    }
    node_bytes.retain(|_, nodes| *nodes > 0);
    let mut verified = footprint.total() == storage.bytes();
    // A superpage beyond a block has fewer.
    verified &= footprint.ptes == model.len() || pieces.len() < model.len();

    // A fault in the table that the model knows nothing of; the pages of a stale entry are unmapped below.
    if run.inject.is_some() {
        split(table, pieces)?;
    }
    if let (Some(Inject::Lost | Inject::Wrong), Some((&page, &(frame, attr)))) =
        (run.inject, model.iter().nth(model.len() / 2))
    {
        change(table, |writer| writer.unmap(Pages::one(page), Holes::Refuse))?;
        if run.inject == Some(Inject::Wrong) {
            let wrong = Pfn::new(frame.get() ^ 1);
            change(table, |writer| writer.map(Pages::one(page), wrong, PageSize::K4, attr))?;
        }
    }

    let (mut refs, mut nested) = (Refs::default(), Refs::default());
    let mut walks = Vec::with_capacity(refills.len());
    let program = run.load.program.as_ref();
    let mut clock = run.on.zip(program).map(|(on, program)| (Clock::new(on, program), Caches::new(on)));
    for refill in refills {
        let page = run.load.pages[refill.place as usize];
        if let Some((clock, caches)) = &mut clock {
            clock.until(refill.run as usize, caches);
            let _ = storage.loaded();
        }
        let before = storage.loads();
        // SAFETY: nothing is reclaimed during the walk: this thread is the only one.
        let pinned = unsafe { Pinned::by(&page) };
        let leaf = table.walk(pinned, page.address(PageSize::K4), &mut Nested(refill.nested));
        let loads = storage.loads() - before;
        if let Some((clock, caches)) = &mut clock {
            for at in storage.loaded() {
                caches.refer(Kind::Load, at, 1);
                // Each waits for the one before.
                caches.wait(1 + caches.machine.delay);
            }
            clock.refill(caches);
        }
        refs.add(loads);
        walks.push(u32::try_from(loads).unwrap_or(u32::MAX));
        nested.add(refill.nested.into());
        verified &= says(page, leaf) == model.get(&page).copied();
    }
    verified &= agrees(table, &model);
    if run.inject.is_none() {
        split(table, pieces)?;
    }

    // Change every third page, unmap every other, and look again.
    for (place, &page) in run.load.pages.iter().enumerate() {
        let Some((_, attr)) = model.get_mut(&page) else { continue };
        if place % 3 == 0 {
            let less = Change { clear: Attr::WRITE, set: Attr::EXEC };
            let protected = change(table, |writer| writer.protect(Pages::one(page), Holes::Refuse, less));
            verified &= protected == Ok(1);
            *attr = less.apply(*attr);
        }
        if place % 2 == 0 {
            model.remove(&page);
            let stale = run.inject == Some(Inject::Stale) && place == run.load.pages.len() / 4 * 2;
            // One that is left standing must be found by the check, so that is all that happens here.
            let unmap = || change(table, |writer| writer.unmap(Pages::one(page), Holes::Refuse));
            verified &= stale || unmap() == Ok(1);
        }
    }
    verified &= agrees(table, &model);
    verified &= run.load.pages.iter().all(|&page| answers(table, &model, page));

    // And empty it.
    for &page in run.load.pages.iter().rev() {
        change(table, |writer| writer.unmap(Pages::one(page), Holes::Skip))?;
    }
    let left = table.footprint();
    verified &= left.ptes == 0 && left.leaves == 0 && left.total() == storage.bytes();
    verified &= agrees(table, &Model::new());

    let per_pte = |bytes: u64| bytes as f64 / run.load.pages.len() as f64;
    let guarded = name.starts_with('G') && run.layout == Layout::Paper;
    Ok(Row {
        name: name.into(),
        workload: run.load.name.clone(),
        pages: run.load.pages.len(),
        base_kb: run.base_kb,
        seed: run.seed,
        layout: run.layout,
        refills: refs.lookups(),
        refs_per_lookup_mean: refs.mean(),
        refs_per_lookup_p99: refs.p99(),
        refs_per_lookup_max: refs.max(),
        nested_misses_mean: Some(nested.mean()),
        bytes,
        ptes: footprint.ptes,
        bytes_per_pte: per_pte(bytes as u64),
        bytes_per_pte_inner: per_pte(inner as u64),
        bytes_per_pte_optimum: guarded.then(|| per_pte(run.optimum.bytes)),
        peak_bytes,
        moved_max: None,
        node_bytes,
        node_bytes_optimum: guarded.then(|| run.optimum.nodes.clone()),
        verified,
        cycles: clock.map(|(clock, mut caches)| clock.finish(&mut caches)),
        walks,
    })
}

/// What a machine says whose TLB misses that many pages of a linear table.
struct Nested(u8);

impl NestedMissObserver for Nested {
    fn translates(&mut self, _level: usize, _page: VirtAddr) -> bool {
        let missing = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        !missing
    }
}

/// Makes base pages of the superpages, so that each can be changed alone.
fn split<'t, 'n>(table: &'t (dyn Table<'n> + 't), pieces: &[Piece]) -> Result<(), Error> {
    for piece in pieces.iter().filter(|piece| piece.size > PageSize::K4) {
        // SAFETY: nothing runs on these pages.
        change(table, |writer| unsafe {
            writer.resize(piece.pages, PageSize::K4, FlushAll::breaking(&mut |_| ()))
        })?;
    }
    Ok(())
}

/// Tells whether the table says about `page` what the model does.
fn answers(table: &dyn Table<'_>, model: &Model, page: Vpn) -> bool {
    // SAFETY: nothing is reclaimed during the walk: this thread is the only one.
    let pinned = unsafe { Pinned::by(&page) };
    says(page, table.lookup(pinned, page.address(PageSize::K4))) == model.get(&page).copied()
}

/// Returns what the leaf that maps a page says of it.
fn says(page: Vpn, leaf: Option<Leaf>) -> Option<(Pfn, Attr)> {
    let at = page.address(PageSize::K4);
    leaf.map(|leaf| (leaf.phys(at, PageSize::K4).pfn(PageSize::K4), leaf.attr))
}

/// Tells whether the table maps exactly what the model does: by looking up every page and its neighbours, and by
/// listing everything.
fn agrees(table: &dyn Table<'_>, model: &Model) -> bool {
    let around = |&page: &Vpn| [page.checked_sub(1), Some(page), page.checked_add(1)];
    let last = Vpn::new(usize::MAX >> PageSize::K4.shift());
    let mut agree = model
        .keys()
        .flat_map(around)
        .flatten()
        .filter(|&page| page <= last)
        .all(|page| answers(table, model, page));
    let mut listed = 0;
    let everything = Pages::new(Vpn::default(), last);
    let mut visit = |leaf: Leaf| {
        let pages = leaf.size.pages(PageSize::K4).unwrap_or(0);
        for page in Pages::count(leaf.at.vpn(PageSize::K4), pages).into_iter().flat_map(Pages::iter) {
            listed += 1;
            agree &= model.get(&page).copied() == says(page, Some(leaf));
        }
        ControlFlow::Continue(())
    };
    // SAFETY: nothing is reclaimed during the visit: this thread is the only one.
    let pinned = unsafe { Pinned::by(model) };
    let _ = everything.map(|pages| table.for_each(pinned, pages, &mut visit));
    agree && listed == model.len()
}
