//! Publication and retirement: one line taken out, and a test that must notice.

use super::{Change, Mutation, Test};

const fn mutation(
    what: &'static str,
    file: &'static str,
    [after, line, instead]: [&'static str; 3],
    test: Test,
) -> Mutation {
    Mutation { what, file, change: Change { after, line, instead }, test }
}

const PAGETABLE: &str = "tlbkit-pagetable";

pub(super) const MUTATIONS: [Mutation; 39] = [
    mutation(
        "a word is published without what it leads to",
        "crates/pagetable/src/word.rs",
        ["fn publish(cell", "cell.store(word, Ordering::Release)", "cell.store(word, Ordering::Relaxed)"],
        Test::Walkers("::map"),
    ),
    mutation(
        "several writers: a writer of a page does not look for those of ranges",
        "crates/pagetable/src/node_locks.rs",
        [
            "pub(crate) fn try_node(",
            "if self.ranges.count.load(Ordering::SeqCst) != 0 && self.ranges.overlap_after(block) {",
            "if self.ranges.count.load(Ordering::SeqCst) == usize::MAX && self.ranges.overlap_after(block) {",
        ],
        Test::Walkers("writers::"),
    ),
    mutation(
        "several writers: a writer of a range does not wait for those of pages",
        "crates/pagetable/src/node_locks.rs",
        ["pub(crate) fn is_clear(", "!is_taken", "!is_taken || true"],
        Test::Walkers("writers::"),
    ),
    mutation(
        "several writers: a range has a node in which it has every entry",
        "crates/pagetable/src/mpt/part.rs",
        [
            "fn find_part(",
            "let keeps_others = live > to - from + 1 || live > used();",
            "let keeps_others = live + used() < usize::MAX;",
        ],
        Test::Walkers("writers::"),
    ),
    mutation(
        "several writers: a writer of a page does not wait for that of its chain",
        "crates/pagetable/src/hpt/node/bucket.rs",
        [
            "pub(crate) fn try_lock(",
            "if is_taken { Some(ChainLock(place)) } else { None }",
            "if is_taken { Some(ChainLock(place)) } else { Some(ChainLock(place)) }",
        ],
        Test::Walkers("writers::"),
    ),
    mutation(
        "several writers: of two chains that are joined each has its lock",
        "crates/pagetable/src/hpt/node/writing.rs",
        [
            "pub(crate) fn chain(&mut self) -> Option<Locked",
            "let pair = if walk.has_joined() { walk.pair(key) } else { None };",
            "let pair = if walk.has_joined() && key == usize::MAX { walk.pair(key) } else { None };",
        ],
        Test::Plain(PAGETABLE, "hashed_writers::chains_"),
    ),
    mutation(
        "MPT: a node is not linked",
        "crates/pagetable/src/mpt/node/subtree.rs",
        ["pub(crate) fn link(", "self.put(index, new);", "let _ = new;"],
        Test::Walkers("mpt::map"),
    ),
    mutation(
        "MPT: an emptied node stays linked, and is retired",
        "crates/pagetable/src/mpt/node/subtree.rs",
        ["pub(crate) fn unlink(", "place.put_relaxed(F::Word::ZERO);", ""],
        Test::Walkers("mpt::unmap"),
    ),
    mutation(
        "MPT: an emptied node is not retired",
        "crates/pagetable/src/mpt/node/subtree.rs",
        ["fn retire_child(", "unsafe { self.retire_as(gone, empty) };", "let _ = (gone, empty);"],
        Test::Walkers("mpt::unmap"),
    ),
    mutation(
        "MPT: what a change of size replaces is not retired",
        "crates/pagetable/src/mpt/resize.rs",
        ["let old = node.replace(index, new);", "node.discard(old);", "let _ = old;"],
        Test::Walkers("mpt::promote"),
    ),
    mutation(
        "MPT: a link that moves is stored nowhere",
        "crates/pagetable/src/mpt/node/subtree.rs",
        ["fn move_link(", "Place { node: target.node, index }.put(word);", "let _ = (word, index);"],
        Test::Walkers("mpt::move_node"),
    ),
    mutation(
        "MPT: what hardware notes while a page moves is lost",
        "crates/pagetable/src/mpt/moving.rs",
        ["fn move_slots(", "let word = old.take(seen);", "let word = (old.take(seen), seen).1;"],
        Test::Plain(PAGETABLE, "moving::what_hardware_notes_at_any_moment_of_a_move_is_kept"),
    ),
    mutation(
        "MPT: no flush is asked for after a node has moved",
        "crates/pagetable/src/mpt/moving.rs",
        ["fn flush_move(", "flush_all_cpus(&flush);", "let _ = flush_all_cpus;"],
        Test::Plain(PAGETABLE, "moving::a_node_moves_by_its_link_where_both_places_are_alike"),
    ),
    mutation(
        "GPT: a node that an insertion replaces is not published",
        "crates/pagetable/src/gpt/insert.rs",
        ["fn link(&mut self", "slot.publish(new);", ""],
        Test::Plain(PAGETABLE, "gpt_properties::g16_32_shared::agrees"),
    ),
    mutation(
        "GPT: a node with one entry left is not retired",
        "crates/pagetable/src/gpt/one_page.rs",
        ["fn unmap_last(", "self.retire(above);", "let _ = above;"],
        Test::Walkers("g2::unmap_one"),
    ),
    mutation(
        "HPT: a tag is not published",
        "crates/pagetable/src/hpt/node/bucket.rs",
        ["for unit in 0..Self::UNITS {", "self.at(unit * Self::UNIT).store_relaxed(tag);", ""],
        Test::Walkers("hpt::map"),
    ),
    mutation(
        "HPT: an overflow bucket is retired and stays in its chain",
        "crates/pagetable/src/hpt/node/chain.rs",
        ["fn unlink(", "self.bucket(at).publish_link(behind);", ""],
        Test::Walkers("hpt::unmap"),
    ),
    mutation(
        "HPT: an overflow bucket is unlinked and not retired",
        "crates/pagetable/src/hpt/node/chain.rs",
        ["fn unlink(", "self.writing.retire(here.node);", ""],
        Test::Walkers("hpt::"),
    ),
    mutation(
        "CPT: of a bucket's tags only the first is killed",
        "crates/pagetable/src/hpt/node/bucket.rs",
        [
            "fn reflag(",
            "self.publish_tag(Self::flagged(self.tag(), flag));",
            "self.at(0).publish(F::Word::from_usize(Self::flagged(self.tag(), flag)));",
        ],
        Test::Walkers("cpt::reuse"),
    ),
    mutation(
        "HPT: a segment that is split is not published",
        "crates/pagetable/src/hpt/grow/split.rs",
        ["fn split(", "unsafe { self.publish_only(only, 2 * heads) };", ""],
        Test::Plain(PAGETABLE, "hashed_properties::grows_odd_shared"),
    ),
    mutation(
        "HPT: a segment that is split is not retired",
        "crates/pagetable/src/hpt/grow/split.rs",
        ["fn split(", "unsafe { self.retire_array(old, added * Self::STRIDE) };", ""],
        Test::Plain(PAGETABLE, "hashed_properties::grows_odd_shared"),
    ),
    mutation(
        "HPT: a change that may lead a walker astray is not counted",
        "crates/pagetable/src/hpt/grow/split.rs",
        ["fn unzip(", "self.count_change(at(owner));", ""],
        Test::Walkers("grows::grow"),
    ),
    mutation(
        "HPT: a lookup does not notice that it may have been led astray",
        "crates/pagetable/src/hpt/grow.rs",
        ["fn has_stepped(", "self.steps.load(Ordering::Relaxed) != before", "before == usize::MAX"],
        Test::Walkers("grows::grow_chain"),
    ),
    mutation(
        "a place in a bucket is used again before the shootdown of its page",
        "crates/pagetable/src/retired.rs",
        ["pub fn quarantine(", "self.nodes.held().quarantine();", ""],
        Test::Walkers("::replace"),
    ),
    mutation(
        "a batch forgets the nodes before the last",
        "crates/pagetable/src/retired.rs",
        ["pub unsafe fn push(", "ListLink::word(next, clean)", "ListLink::word(0, clean)"],
        Test::Walkers("mpt::unmap"),
    ),
    mutation(
        "a batch keeps what a change pushed that has unwound",
        "crates/pagetable/src/retired.rs",
        ["pub unsafe fn change_late<T>(", "(batch.head, batch.count) = (head, count);", ""],
        Test::Plain(PAGETABLE, "unwinding::g16"),
    ),
    mutation(
        "no writer takes up what a dropped writer owes",
        "crates/pagetable/src/writer.rs",
        ["pub fn new(table: &'t T)", "unsafe { batch.take_up(table.writer_flag()) };", ""],
        Test::Plain(PAGETABLE, "obligation::a_writer"),
    ),
    mutation(
        "a node is retired as clean that is not",
        "crates/pagetable/src/hpt/node/writing.rs",
        [
            "unsafe fn retire(",
            "push_sized(self.table.nodes, node, Self::NODE, false)",
            "push_sized(self.table.nodes, node, Self::NODE, true)",
        ],
        Test::Walkers("hpt::"),
    ),
    mutation(
        "HPT: a vacant bucket is under a larger page",
        "crates/pagetable/src/hpt/map.rs",
        ["fn map_range(", "self.again().clear_way(pages);", ""],
        Test::Plain(PAGETABLE, "vacant::no_vacant_bucket"),
    ),
    mutation(
        "HPT: a page moves to another grain uncounted",
        "crates/pagetable/src/hpt/resize.rs",
        ["fn remake(", "self.count_move();", ""],
        Test::Plain(PAGETABLE, "hashed::no_visit_misses"),
    ),
    mutation(
        "MPT: a lent link is replaced and its node retired",
        "crates/pagetable/src/mpt/resize.rs",
        ["pub(super) fn resize(", "table.check_lent(pages, to)?;", ""],
        Test::Plain(PAGETABLE, "mpt_share::no_page_takes"),
    ),
    mutation(
        "MPT: a link goes, and the flush does not say so",
        "crates/pagetable/src/mpt/unmap.rs",
        ["fn prune(", "self.touch(FlushScope::Everywhere, page, true);", ""],
        Test::Plain(PAGETABLE, "mpt::wide::va48_x86_shared::agrees"),
    ),
    mutation(
        "MPT: what hardware notes before the exchange is overwritten",
        "crates/pagetable/src/mpt/resize.rs",
        ["self.swap_seen(&mut seen, &mut new)", "new.note(seen.status());", ""],
        Test::Plain(PAGETABLE, "mpt_hardware::what_hardware_notes_at_any_moment"),
    ),
    mutation(
        "MPT: what hardware notes through a cached link is not read",
        "crates/pagetable/src/mpt/resize.rs",
        [
            "flush_all_cpus();",
            "self.at(index).change_live(|word| F::change(word, noted, last));",
            "let _ = (noted, last);",
        ],
        Test::Plain(PAGETABLE, "mpt_hardware::what_hardware_notes_at_any_moment"),
    ),
    mutation(
        "a table has two writers",
        "crates/pagetable/src/table.rs",
        ["fn try_take(", "self.lock.try_take(Block::ALL)", "self.lock.try_take(Block::ALL) || true"],
        Test::Plain(PAGETABLE, "mpt::va32_compact32_shared::agrees"),
    ),
    mutation(
        "shared STLB: a reader does not revalidate",
        "crates/stlb/src/shared.rs",
        [
            "fence(Ordering::Acquire);",
            "if set.version.load(Ordering::Relaxed) == version & !1 {",
            "if version & 1 == 0 {",
        ],
        Test::SharedCache("never"),
    ),
    mutation(
        "shared STLB: the version becomes odd after the words that it is about",
        "crates/stlb/src/shared.rs",
        ["fn own(", "fence(Ordering::Release);", ""],
        Test::SharedCache("never"),
    ),
    mutation(
        "shared STLB: a fill that was overtaken by an invalidation leaves its entry",
        "crates/stlb/src/shared.rs",
        ["fn release(", "self.empty(|_| true);", ""],
        Test::SharedCache("never"),
    ),
    mutation(
        "shared STLB: an invalidation revokes no ticket",
        "crates/stlb/src/shared.rs",
        [
            "fn release(",
            "self.version.compare_exchange(owned, owned.wrapping_add(1)",
            "self.version.compare_exchange(owned, from",
        ],
        Test::SharedCache("never"),
    ),
];
