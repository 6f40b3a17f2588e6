//! What happens to a guest, and on which CPU: what proptest draws.

use proptest::prelude::*;
use tlbkit_addr::{Attr, PageSize};
use tlbkit_refill::features::{Endian, Features};
use tlbkit_refill::handler::{Form, Root, Write};

use super::Config;

/// What happens to one of the spaces.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Map {
        first: usize,
        count: usize,
        frame: usize,
        size: usize,
        attr: usize,
    },
    Unmap {
        first: usize,
        count: usize,
    },
    Protect {
        first: usize,
        count: usize,
        attr: usize,
    },
    Resize {
        first: usize,
        size: usize,
    },
    /// A mark in the place of what is there: the number's low 27 bits, or a guard where there are none.
    Mark {
        page: usize,
        payload: u32,
    },
    /// Of a page with a mark.
    Fill {
        page: usize,
        frame: usize,
    },
    /// Of a page, or of one in or near the range that was mapped so many maps ago.
    Touch {
        page: usize,
        ago: Option<usize>,
        offset: usize,
        store: bool,
    },
    Switch,
    /// The kernel empties the TLB.
    Forget,
}

/// Pages that collide in every way: neighbours, pairs, blocks, nodes of a table, buckets of a hash, ends of the space.
fn page() -> impl Strategy<Value = usize> {
    let base = prop_oneof![
        4 => Just(0usize),
        2 => Just(0x3f8),
        2 => Just(0x400),
        1 => Just(0x800),
        1 => Just(0x1_0000),
        1 => Just(0x7_fff0),
        1 => Just(0xc_0400),
        1 => Just(0xf_fff0),
        1 => (0usize..0x80).prop_map(|n| n << 12),
    ];
    (base, 0usize..16).prop_map(|(base, page)| base + page)
}

/// Returns a strategy for steps. `sizes` counts the page sizes, 4 KiB times powers of four.
pub(crate) fn steps(sizes: usize) -> impl Strategy<Value = Vec<Step>> {
    let count = prop_oneof![4 => Just(1usize), 2 => Just(2), 1 => 1usize..20];
    let size = prop_oneof![3 => Just(0), 2 => 0..sizes];
    let map = (page(), count.clone(), 0usize..0x8000, size.clone(), 0usize..8)
        .prop_map(|(first, count, frame, size, attr)| Step::Map { first, count, frame, size, attr })
        .boxed();
    let step = prop_oneof![
        3 => map.clone(),
        2 => (page(), count.clone()).prop_map(|(first, count)| Step::Unmap { first, count }),
        1 => (page(), count, 0usize..8)
            .prop_map(|(first, count, attr)| Step::Protect { first, count, attr }),
        1 => (page(), size).prop_map(|(first, size)| Step::Resize { first, size }),
        2 => (page(), any::<u32>(), 0..25).prop_map(|(page, any, bits)| Step::Mark { page, payload: any >> 8 >> bits }),
        1 => (page(), 0usize..0x8000).prop_map(|(page, frame)| Step::Fill { page, frame }),
        12 => (page(), prop::option::weighted(0.8, 0usize..6), 0usize..0x400, any::<bool>())
            .prop_map(|(page, ago, offset, store)| Step::Touch { page, ago, offset: offset << 2, store }),
        1 => Just(Step::Switch),
        1 => Just(Step::Forget),
    ];
    let begin = prop::collection::vec(map, 0..8);
    (begin, prop::collection::vec(step, 1..60)).prop_map(|(begin, then)| [begin, then].concat())
}

const ROOTS: [Root; 4] = [Root::Block, Root::ErrorEpc, Root::Cell, Root::KScratch(3)];

/// Returns a strategy for CPUs and handlers of these forms.
pub(crate) fn config(forms: &'static [Form]) -> impl Strategy<Value = Config> {
    let features = prop_oneof![Just(Features::R1), Just(Features::R2), Just(Features::P5600)];
    let endian = prop_oneof![Just(Endian::Little), Just(Endian::Big)];
    let root = prop::sample::select(&ROOTS[..]);
    let write = prop_oneof![Just(Write::Random), Just(Write::Index)];
    let form = prop::sample::select(forms);
    (features, endian, root, any::<bool>(), form, write, any::<bool>()).prop_map(
        |(features, endian, root, stlb, form, write, near)| {
            let has = match root {
                Root::KScratch(select) => features.has_kscratch(select),
                _ => true,
            };
            Config {
                features: features.with_endian(endian),
                root: if has { root } else { Root::Block },
                stlb,
                form,
                write: if form.reporting { Write::Index } else { write },
                near,
            }
        },
    )
}

pub(super) const fn size_of_index(index: usize) -> PageSize {
    match PageSize::from_shift(12 + 2 * index as u32) {
        Some(size) => size,
        None => PageSize::K4,
    }
}

/// Attributes that [`EntryLo`] can express. With two spaces nothing is global.
pub(super) fn attr(index: usize) -> Attr {
    let all = Attr::READ | Attr::EXEC | Attr::USER;
    match index {
        0..=2 => all | Attr::WRITE | Attr::DIRTY,
        3 => all | Attr::WRITE,
        4 => all | Attr::UNCACHED | Attr::WRITE | Attr::DIRTY,
        5 => all | Attr::DIRTY,
        6 => all,
        // Closed, as written.
        _ => Attr::USER | Attr::DIRTY,
    }
}
