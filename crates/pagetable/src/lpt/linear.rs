//! The geometry and format by which a radix table is a linear table: links are PTEs.

use core::marker::PhantomData;

use tlbkit_addr::{Attr, FlushScope, PageSize, Pfn, VirtAddr, WalkCache};

use crate::format::{Format, Masks};
use crate::nodes::{LinkRange, NodeAddr};
use crate::{Change, Error, Geometry, Half, Radix, Stage, Word};

/// The geometry and format of a linear table of geometry `G` and format `F` at the virtual address `AT`: a link is the leaf
/// that maps a page of the table, and leaves of the program's pages, of any size, are at the last level only.
#[derive(Debug)]
pub struct Linear<G, F, const AT: usize>(PhantomData<(G, F)>);

impl<G: Radix, F: Format, const AT: usize> Geometry for Linear<G, F, AT> {
    const VA_BITS: u32 = G::VA_BITS;
    const BASE: PageSize = G::BASE;
    const HALF: Half = G::HALF;
    const STAGE: Stage = G::STAGE;

    /// The page sizes that are at most as large as the range that one page of the table maps.
    const SIZES: &'static [PageSize] = {
        let cover = G::BASE.shift() + G::WIDTHS[G::WIDTHS.len() - 1];
        let mut sizes = 0;
        while sizes < G::SIZES.len() && G::SIZES[sizes].shift() <= cover {
            sizes += 1;
        }
        G::SIZES.split_at(sizes).0
    };
}

impl<G: Radix, F: Format, const AT: usize> Radix for Linear<G, F, AT> {
    const WIDTHS: &'static [u32] = G::WIDTHS;

    const LINEAR: Option<VirtAddr> = {
        // The table must end below the top of the address space, and every node below the root must be a page.
        let mut pages = 0usize;
        let mut bits = 0;
        let mut level = 1;
        while level < G::WIDTHS.len() {
            bits += G::WIDTHS[level - 1];
            pages += 1 << bits;
            let extra = if level + 1 == G::WIDTHS.len() { F::EXTRA } else { 0 };
            let bytes = (1 << G::WIDTHS[level]) * (1 + extra) * F::Word::BYTES;
            assert!(bytes == G::BASE.bytes(), "every node below the root of a linear table is a page");
            level += 1;
        }
        let at = VirtAddr::new(AT);
        assert!(at.is_aligned(G::BASE), "a linear table begins with a page");
        assert!(pages <= (usize::MAX - AT) >> G::BASE.shift(), "a linear table ends below the top of memory");
        Some(at)
    };
}

impl<G: Radix, F: Format, const AT: usize> Linear<G, F, AT> {
    /// The attributes of the table's own pages: all rights except execution, and accessed and dirty, so that the writer's
    /// accesses do not trap.
    const TABLE: Attr = F::IMPLIED.union(
        Attr::READ.union(Attr::WRITE).union(Attr::ACCESSED).union(Attr::DIRTY).intersection(F::OPTIONAL),
    );
}

// SAFETY: all leaves are at the last level, and all words above it are links or empty. A link is a leaf of `F`, whose frame
// is the node's page, so `node` decodes what `link` encodes.
unsafe impl<G: Radix, F: Format, const AT: usize> Format for Linear<G, F, AT> {
    type Word = F::Word;

    const BASE: PageSize = F::BASE;
    const STEP: F::Word = F::STEP;
    const LINK_ALIGN: usize = G::BASE.bytes();
    const REACH: LinkRange = F::REACH;
    const IMPLIED: Attr = F::IMPLIED;
    const OPTIONAL: Attr = F::OPTIONAL;
    const CLOSES: bool = F::CLOSES;
    const ABSENT: u32 = F::ABSENT;
    const FIXED: Attr = F::FIXED;
    const APPEARS: FlushScope = F::APPEARS;
    const WALK_CACHE: WalkCache = F::WALK_CACHE;
    const STAGE: Stage = F::STAGE;
    const STATUS: bool = F::STATUS;
    const FLIPS: bool = F::FLIPS;
    const SPREAD: bool = F::SPREAD;
    const BREAK: bool = F::BREAK;
    const BREAK_FRAME: bool = F::BREAK_FRAME;
    const PAIRED: bool = F::PAIRED;
    const EXTRA: usize = F::EXTRA;

    #[inline(always)]
    fn leaf(frame: Pfn, size: PageSize, attr: Attr, _last: bool) -> Result<F::Word, Error> {
        F::leaf(frame, size, attr, true)
    }

    #[inline(always)]
    fn leading_to(first: F::Word, frame: Pfn) -> F::Word {
        F::leading_to(first, frame)
    }

    #[inline(always)]
    fn link(node: NodeAddr) -> F::Word {
        // A table takes only nodes whose addresses a link can hold, so the leaf exists.
        F::leaf(Pfn::new(node.get() >> G::BASE.shift()), G::BASE, Self::TABLE, true).unwrap_or(F::Word::ZERO)
    }

    #[inline(always)]
    fn is_leaf(word: F::Word, last: bool) -> bool {
        last && F::is_leaf(word, true)
    }

    #[inline(always)]
    fn is_link(word: F::Word) -> bool {
        F::is_leaf(word, true)
    }

    #[inline(always)]
    fn node(link: F::Word) -> NodeAddr {
        NodeAddr::new(F::frame(link, G::BASE).get() << G::BASE.shift())
    }

    #[inline(always)]
    fn frame(leaf: F::Word, size: PageSize) -> Pfn {
        F::frame(leaf, size)
    }

    #[inline(always)]
    fn attr(leaf: F::Word, _last: bool) -> Attr {
        F::attr(leaf, true)
    }

    #[inline(always)]
    fn size(leaf: F::Word, slot: PageSize) -> PageSize {
        F::size(leaf, slot)
    }

    #[inline(always)]
    fn has_all_status(leaf: F::Word) -> bool {
        F::has_all_status(leaf)
    }

    #[inline(always)]
    fn change(leaf: F::Word, change: Change, _last: bool) -> F::Word {
        F::change(leaf, change, true)
    }

    #[inline(always)]
    fn masks(change: Change, _last: bool) -> Option<Masks<F::Word>> {
        F::masks(change, true)
    }

    #[inline(always)]
    fn absent(bits: u64) -> F::Word {
        F::absent(bits)
    }

    #[inline(always)]
    fn absent_bits(word: F::Word) -> u64 {
        F::absent_bits(word)
    }

    #[inline(always)]
    fn beside(changed: F::Word, beside: F::Word) -> F::Word {
        F::beside(changed, beside)
    }
}
