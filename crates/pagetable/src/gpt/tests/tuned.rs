//! After a change, a step pays at no node, but at one that has changes that are too few to read its slots: tuning has looked at all
//! that the change touched.

use super::space::{Random, file};
use super::*;

impl<G: Geometry, F: Format, N: Nodes<Word = F::Word>, L: Layout<N>, P: NodeSize> Gpt<'_, G, F, N, L, P> {
    /// Returns at how many nodes a step pays that have no changes since they were tuned.
    fn untuned(&self) -> usize {
        let mut pays = 0;
        // SAFETY: no CPU writes meanwhile, and no batch is completed.
        let mut rest = vec![unsafe { View::sole(self) }.root().read()];
        while let Some(next) = rest.pop() {
            if let Some(node) = next.filter(|node| !node.is_leaf()) {
                if node.changes() == 0 && node.step().is_some() {
                    pays += 1;
                }
                rest.extend(node.children());
            }
        }
        pays
    }
}

/// Maps and unmaps pages that `choose` chooses. Returns the sum over all changes of the nodes at which a step pays then.
fn mixture<L, F>(choose: impl Fn(&mut Random) -> Pages, changes: usize, seed: u64) -> usize
where
    F: Format<Word = u32>,
    L: for<'m> Layout<Slab<'m, u32, Solo>>,
{
    let mut memory = memory(1000);
    let slab = Slab::<u32, Solo>::new(&mut memory, 0).unwrap();
    let mut table = Local::new(Gpt::<Va64, F, _, L, Adaptive>::new(&slab).unwrap(), |_| ());
    let mut random = Random(seed);
    let mut pays = 0;
    for change in 0..changes {
        let pages = choose(&mut random);
        // Up, then a long mixture, then down. Pages that are mapped already are refused.
        if change < changes / 6 || change < 4 * changes / 6 && random.next().is_multiple_of(2) {
            let _ = table.map(pages, Pfn::new(1), PageSize::K4, Attr::READ);
        } else {
            table.unmap(pages, Holes::Skip).unwrap();
        }
        pays += table.table().untuned();
    }
    table.destroy();
    pays
}

// Of some loads these two are not true: a step may make nodes further below than those that are tuned with it (`DEEP`).

#[test]
#[cfg_attr(miri, ignore = "it is about bytes; the histories take the same ways")]
fn gpt_no_step_pays_after_the_change_of_a_page() {
    let count = if cfg!(miri) { 3 } else { 300 };
    for seed in 4..if cfg!(miri) { 5 } else { 7 } {
        let mut random = Random(seed);
        let crowd: Vec<_> = (0..count).map(|_| random.next() as usize % (8 * count)).collect();
        for (name, pages) in [("file", file(count, seed)), ("crowd", crowd)] {
            let choose = |random: &mut Random| Pages::one(Vpn::new(pages[random.next() as usize % count]));
            let paper = mixture::<TwoWords, format::Paper>(choose, 12 * count, seed);
            let compact = mixture::<OneWord, format::Compact32>(choose, 12 * count, seed);
            assert_eq!((paper, compact), (0, 0), "{name} {seed}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "it is about bytes; the histories take the same ways")]
fn gpt_no_step_pays_after_the_change_of_a_range() {
    let changes = if cfg!(miri) { 6 } else { 1000 };
    for longest in [4, 40] {
        for seed in 1..if cfg!(miri) { 2 } else { 3 } {
            let choose = |random: &mut Random| {
                let first = Vpn::new(random.next() as usize % 3000);
                Pages::count(first, 1 + random.next() as usize % longest).unwrap()
            };
            let paper = mixture::<TwoWords, format::Paper>(choose, changes, seed);
            let compact = mixture::<OneWord, format::Compact32>(choose, changes, seed);
            assert_eq!((paper, compact), (0, 0), "up to {longest} pages, {seed}");
        }
    }
}
