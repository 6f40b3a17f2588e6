//! One structure's run: map, replay, verify, unmap.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use anyhow::{Context, bail};
use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};
use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Change, Error, Holes, Local, Pinned, Table};

use super::load::Load;
use super::optimum::Optimum;
use super::refs::Refs;
use super::storage::Storage;
use super::structure::Structure;
use super::{Inject, Layout, Row};

/// What every structure of a run is given.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) load: &'a Load,
    pub(super) seed: u64,
    pub(super) layout: Layout,
    pub(super) inject: Option<Inject>,
    pub(super) optimum: Optimum,
}

/// The answer to every lookup, kept plainly.
type Model = BTreeMap<Vpn, (Pfn, Attr)>;

/// Node memory to begin with, in chunks, and the most that 32-bit words can address.
const CHUNKS: (usize, usize) = (1 << 12, 1 << 20);

/// Measures a structure, in as much node memory as it needs.
pub(super) fn measure<S: Structure>(name: &str, structure: &S, run: &Run<'_>) -> anyhow::Result<Row> {
    let mut chunks = CHUNKS.0;
    loop {
        let mut memory = vec![Chunk::ZERO; chunks];
        let storage = Storage::new(Slab::new(&mut memory, 0).map_err(anyhow::Error::msg)?);
        match measure_in(name, structure, run, &storage) {
            Ok(row) => return Ok(row),
            Err(error) => match error.downcast_ref() {
                Some(Error::NoMemory { .. }) if chunks < CHUNKS.1 => chunks *= 4,
                Some(Error::NoMemory { .. }) => {
                    bail!("{name} needs more than 4 GB of nodes: give fewer --pages")
                }
                _ => return Err(error).with_context(|| name.to_owned()),
            },
        }
    }
}

fn measure_in<'n, S: Structure>(
    name: &str,
    structure: &S,
    run: &Run<'_>,
    storage: &'n Storage<'n, S::Word>,
) -> anyhow::Result<Row> {
    let mut table = Local::new(structure.build(storage)?, |_: &Flush| ());
    let empty = storage.bytes();
    let mut model = Model::new();
    for (place, &page) in run.load.pages.iter().enumerate() {
        let (frame, attr) = (frame(place), attr(place));
        table.map(Pages::one(page), frame, PageSize::K4, attr)?;
        model.insert(page, (frame, attr));
    }

    // Space, now that the load has settled.
    let footprint = table.footprint();
    let bytes = match run.layout {
        Layout::Paper => storage.bytes(),
        Layout::Compact => storage.usage().chunks,
    };
    let inner = bytes - footprint.leaf_bytes;
    let mut node_bytes = storage.sizes();
    if let Some(leaf) = footprint.leaf_bytes.checked_div(footprint.leaves)
        && let Some(nodes) = node_bytes.get_mut(&leaf)
    {
        *nodes -= footprint.leaves.min(*nodes);
    }
    node_bytes.retain(|_, nodes| *nodes > 0);
    let peak_bytes = storage.peak();
    let mut verified = footprint.total() == storage.bytes() && footprint.ptes == model.len();

    // A fault in the table that the model knows nothing of; the pages of a stale entry are unmapped below.
    if let (Some(Inject::Lost | Inject::Wrong), Some((&page, &(frame, attr)))) =
        (run.inject, model.iter().nth(model.len() / 2))
    {
        table.unmap(Pages::one(page), Holes::Refuse, None)?;
        if run.inject == Some(Inject::Wrong) {
            table.map(Pages::one(page), Pfn::new(frame.get() ^ 1), PageSize::K4, attr)?;
        }
    }

    let mut refs = Refs::default();
    let mut walks = Vec::with_capacity(run.load.refills.len());
    for &place in &run.load.refills {
        let page = run.load.pages[place as usize];
        storage.take_loads();
        verified &= answers(&table, &model, page);
        let loads = storage.take_loads();
        refs.add(loads);
        walks.push(u32::try_from(loads).unwrap_or(u32::MAX));
    }
    verified &= agrees(&table, &model);

    // Change every third page, unmap every other, and look again.
    for (place, &page) in run.load.pages.iter().enumerate() {
        let Some((_, attr)) = model.get_mut(&page) else { continue };
        if place % 3 == 0 {
            let change = Change { clear: Attr::WRITE, set: Attr::EXEC };
            verified &= table.protect(Pages::one(page), Holes::Refuse, change) == Ok(1);
            *attr = change.apply(*attr);
        }
        if place % 2 == 0 {
            model.remove(&page);
            let stale = run.inject == Some(Inject::Stale) && place == run.load.pages.len() / 4 * 2;
            // One that is left standing must be found by the check, so that is all that happens here.
            verified &= stale || table.unmap(Pages::one(page), Holes::Refuse, None) == Ok(1);
        }
    }
    verified &= agrees(&table, &model);
    verified &= run.load.pages.iter().all(|&page| answers(&table, &model, page));

    // And empty it: no node may be left over.
    for &page in run.load.pages.iter().rev() {
        table.unmap(Pages::one(page), Holes::Skip, None)?;
    }
    verified &= storage.bytes() == empty && agrees(&table, &Model::new());
    table.destroy();
    verified &= storage.bytes() == 0;

    let per_pte = |bytes: u64| bytes as f64 / run.load.pages.len() as f64;
    Ok(Row {
        name: name.to_owned(),
        workload: run.load.name.clone(),
        pages: run.load.pages.len(),
        seed: run.seed,
        layout: run.layout,
        refills: refs.lookups(),
        refs_per_lookup_mean: refs.mean(),
        refs_per_lookup_p99: refs.p99(),
        refs_per_lookup_max: refs.max(),
        bytes,
        ptes: footprint.ptes,
        bytes_per_pte: per_pte(bytes as u64),
        bytes_per_pte_inner: per_pte(inner as u64),
        bytes_per_pte_optimum: (name.starts_with('G') && run.layout == Layout::Paper)
            .then(|| per_pte(run.optimum.bytes)),
        peak_bytes,
        node_bytes,
        verified,
        walks,
    })
}

/// The frame of the page that is mapped as number `place`: no two neighbours, so that a wrong one shows.
fn frame(place: usize) -> Pfn {
    // An odd factor permutes the numbers of 20 bits, which every format holds.
    Pfn::new(place.wrapping_mul(0x9_e377) & 0xf_ffff)
}

fn attr(place: usize) -> Attr {
    let writable = if place % 5 < 3 { Attr::WRITE } else { Attr::empty() };
    Attr::READ | Attr::USER | writable
}

/// Tells whether the table says about `page` what the model does.
fn answers<'n, T: Table<'n>, F: FnMut(&Flush)>(table: &Local<'n, T, F>, model: &Model, page: Vpn) -> bool {
    let leaf = table.lookup(page.address(PageSize::K4));
    leaf.map(|leaf| (leaf.frame, leaf.attr)) == model.get(&page).copied()
}

/// Tells whether the table maps exactly what the model does: by looking up every page and its neighbours, and by
/// listing everything.
fn agrees<'n, T: Table<'n>, F: FnMut(&Flush)>(table: &Local<'n, T, F>, model: &Model) -> bool {
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
    let mut visit = |leaf: tlbkit_pagetable::Leaf| {
        listed += 1;
        agree &= model.get(&leaf.at.vpn(PageSize::K4)) == Some(&(leaf.frame, leaf.attr));
        ControlFlow::Continue(())
    };
    // SAFETY: nothing is reclaimed while the table is borrowed.
    let pinned = unsafe { Pinned::by(table) };
    let _ = everything.map(|pages| table.table().for_each(pinned, pages, &mut visit));
    agree && listed == model.len()
}
