//! After a change of one page, no step pays at the nodes that the change touched.

use super::space::{Random, file};
use super::*;

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'_, G, F, N, L, P> {
    /// Returns at how many nodes a step pays.
    fn untuned(&self) -> usize {
        let mut pays = 0;
        // SAFETY: no CPU writes meanwhile; the slots are within their nodes.
        unsafe {
            let mut rest = vec![self.edge(Place::Root, G::VA_BITS, 0)];
            while let Some(node) = rest.pop() {
                if node.is_empty() || node.leaf {
                    continue;
                }
                if node.top() > Self::LEAF_TOP && self.step(node).is_some() {
                    pays += 1;
                }
                rest.extend(
                    (0..node.slots()).map(|slot| self.edge(Place::In(node.node, slot), node.shift, 0)),
                );
            }
        }
        pays
    }
}

/// Maps and unmaps single pages in a random order. Returns the sum over all changes of the nodes at which a step pays then.
fn mixture<L, F>(pages: &[usize], seed: u64) -> usize
where
    F: Format<Word = u32>,
    L: for<'m> Layout<Slab<'m, u32, Solo>>,
{
    let mut memory = memory(1000);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, F, _, L, Adaptive>::new(&slab).unwrap(), |_| ());
    let mut random = Random(seed);
    let mut mapped: Vec<usize> = Vec::new();
    let mut pays = 0;
    let count = pages.len();
    // Up, then a long mixture, then down.
    for change in 0..6 * count {
        if change < count || change < 4 * count && random.next().is_multiple_of(2) {
            let page = pages[random.next() as usize % count];
            if table.map(Pages::one(Vpn::new(page)), Pfn::new(1), PageSize::K4, Attr::READ).is_ok() {
                mapped.push(page);
            }
        } else if !mapped.is_empty() {
            let page = mapped.swap_remove(random.next() as usize % mapped.len());
            table.unmap(Pages::one(Vpn::new(page)), Holes::Refuse, None).unwrap();
        }
        pays += table.table().untuned();
    }
    table.destroy();
    pays
}

#[test]
fn gpt_no_step_pays_after_the_change_of_a_page() {
    let count = if cfg!(miri) { 20 } else { 300 };
    // Not true of every load: a step may make nodes further below than the next nodes, which are tuned at their next change.
    for seed in 1..if cfg!(miri) { 2 } else { 3 } {
        let mut random = Random(seed);
        let crowd: Vec<_> = (0..count).map(|_| random.next() as usize % (8 * count)).collect();
        for (name, pages) in [("file", file(count, seed)), ("crowd", crowd)] {
            let paper = mixture::<TwoWords, format::Paper>(&pages, seed);
            let compact = mixture::<OneWord, format::Compact32>(&pages, seed);
            assert_eq!((paper, compact), (0, 0), "{name} {seed}");
        }
    }
}
