//! Two writers of one hashed or clustered table, and a walker.

use tlbkit_addr::{PageSize, Vpn};
use tlbkit_conformance::scenes::{Tiny, Watched};
use tlbkit_pagetable::format::Compact32;
use tlbkit_pagetable::hpt::{Buckets, Hashed, Sizes};
use tlbkit_pagetable::mpt::Encoded;
use tlbkit_pagetable::{Error, Geometry, Holes, PageTurn, Writer};

use super::WRITE;
use super::two_writers::{Scene, frame, page, play};

/// Tables of four buckets at first. A block is in the bucket of its number's low two bits. Pages 0, 1, 6 and 7 have one lock, and the others
/// the other one.
type Shared<G, const CLUSTER_LOG: u32> =
    Hashed<'static, G, Compact32, Watched<u32>, Buckets<CLUSTER_LOG, 2, 100>>;

/// A space whose tags have 64 bits, so that the first bucket of a clustered table has room for a lock.
#[derive(Debug)]
struct Wide;

impl Geometry for Wide {
    const VA_BITS: u32 = 40;
    const BASE: PageSize = PageSize::K4;
    const SIZES: &'static [PageSize] = &[PageSize::K4];
}

use Step::{Map, MapWhole, Unmap};

/// A change of a page.
#[derive(Clone, Copy)]
enum Step {
    Map(usize),
    Unmap(usize),
    /// Maps a page as the writer of the whole table.
    MapWhole(usize),
}

impl Step {
    fn page(self) -> usize {
        let (Map(page) | Unmap(page) | MapWhole(page)) = self;
        page
    }
}

/// Makes a change: by the page's slot, if that is enough. A batch becomes a debt of the table, which `destroy` takes up after the walker
/// has ended.
fn make<G: Geometry, S: Sizes>(
    table: &Hashed<'static, G, Compact32, Watched<u32>, S>,
    step: Step,
) -> Result<(), Error> {
    let number = step.page();
    let done = !matches!(step, MapWhole(_)) && {
        let mut turn = PageTurn::new(table, Vpn::new(number))?;
        turn.slot().is_some_and(|slot| match step {
            Map(_) | MapWhole(_) => slot.map(frame(number), Encoded::new(WRITE).unwrap()).is_some(),
            Unmap(_) => slot.unmap().is_some(),
        })
    };
    if !done {
        let mut writer = Writer::over(table, page(number), &mut || false)?;
        match step {
            Map(_) | MapWhole(_) => writer.map(page(number), frame(number), PageSize::K4, WRITE).unwrap(),
            Unmap(_) => assert_eq!(writer.unmap(page(number), Holes::Refuse), Ok(1)),
        }
        drop(writer.finish());
    }
    Ok(())
}

/// Runs two writers and a walker that looks for `probe`, in a table in which `before` are mapped. Then `after` are.
fn check<G: Geometry + Send + Sync + 'static, const CLUSTER_LOG: u32>(
    before: &'static [usize],
    steps: [Step; 2],
    probe: usize,
    after: &'static [usize],
) {
    play(Scene::<Shared<G, CLUSTER_LOG>, Step> {
        new: |storage, locks| Shared::<G, CLUSTER_LOG>::new(storage).unwrap().with_locks(locks),
        make,
        before,
        steps,
        probe,
        after,
        counts: |table, after| {
            let mut blocks: Vec<_> = after.iter().map(|page| page >> CLUSTER_LOG).collect();
            blocks.dedup();
            assert_eq!(table.blocks(), blocks.len());
        },
    });
}

#[test]
fn pages_of_different_chains_appear() {
    check::<Tiny, 0>(&[1, 2], [Map(5), Map(6)], 6, &[1, 2, 5, 6]);
}

#[test]
fn pages_of_one_chain_appear() {
    check::<Tiny, 0>(&[], [Map(0), Map(4)], 4, &[0, 4]);
}

#[test]
fn a_page_appears_and_one_of_another_chain_disappears() {
    check::<Tiny, 0>(&[0, 1], [Unmap(0), Map(5)], 0, &[1, 5]);
}

/// The fifth page splits the buckets, while a page of a chain that is joined then appears. The walker looks for one that stays.
#[test]
fn a_page_appears_while_the_table_grows() {
    check::<Tiny, 0>(&[0, 4, 1, 5], [MapWhole(2), Map(3)], 4, &[0, 1, 2, 3, 4, 5]);
}

/// The chains are joined, and pages appear in two of them.
#[test]
fn pages_of_joined_chains_appear() {
    check::<Tiny, 0>(&[0, 4, 1, 5, 2], [Map(6), Map(3)], 4, &[0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn pages_of_one_block_appear_and_disappear() {
    check::<Wide, 1>(&[0], [Map(1), Unmap(0)], 0, &[1]);
}

#[test]
fn pages_of_two_blocks_appear_and_disappear() {
    check::<Wide, 1>(&[0, 1, 2], [Unmap(1), Map(3)], 1, &[0, 2, 3]);
}
