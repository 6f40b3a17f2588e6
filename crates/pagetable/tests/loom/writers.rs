//! Two writers of one table, and a walker.

use tlbkit_addr::{PageSize, Pages, Vpn};
use tlbkit_conformance::scenes::Watched;
use tlbkit_pagetable::format::Compact32;
use tlbkit_pagetable::mpt::{Encoded, Mpt};
use tlbkit_pagetable::{Error, Holes, PageTurn, Table as _, Writer};

use super::WRITE;
use super::two_writers::{Scene, frame, page, play};

/// Eight pages in three levels of one bit.
type Tiny = tlbkit_conformance::scenes::Tiny;

type Shared = Mpt<'static, Tiny, Compact32, Watched<u32>>;

/// A change, as [`Scene::make`] says.
type Step = fn(&Shared) -> Result<(), Error>;

/// Becomes the writer of pages, and of what their changes concern.
fn over(table: &Shared, pages: Pages) -> Result<Writer<'_, 'static, Shared>, Error> {
    Writer::over(table, pages, &mut || false)
}

/// Gives up a right. Its nodes become a debt of the table, which the next writer of all pages takes up, and at the end `destroy`: after
/// the walker has ended.
fn finish(writer: Writer<'_, 'static, Shared>) {
    drop(writer.finish());
}

/// Maps a page: by one store, if its node is there.
fn map(table: &Shared, number: usize) -> Result<(), Error> {
    let done = {
        let mut turn = PageTurn::new(table, Vpn::new(number))?;
        turn.slot().is_some_and(|slot| slot.map(frame(number), Encoded::new(WRITE).unwrap()).is_some())
    };
    if !done {
        let mut writer = over(table, page(number))?;
        writer.map(page(number), frame(number), PageSize::K4, WRITE).unwrap();
        finish(writer);
    }
    Ok(())
}

/// Unmaps a page: by one store, if another page of the node is mapped.
fn unmap(table: &Shared, number: usize) -> Result<(), Error> {
    let done = {
        let mut turn = PageTurn::new(table, Vpn::new(number))?;
        turn.slot().is_some_and(|slot| slot.unmap().is_some())
    };
    if !done {
        let mut writer = over(table, page(number))?;
        assert_eq!(writer.unmap(page(number), Holes::Refuse), Ok(1));
        finish(writer);
    }
    Ok(())
}

/// Runs two writers and a walker that looks for `probe`, in a table in which `before` are mapped. Then `after` are.
fn check(before: &'static [usize], steps: [Step; 2], probe: usize, after: &'static [usize]) {
    play(Scene::<Shared, Step> {
        new: |storage, locks| Shared::new(storage).unwrap().with_locks(locks),
        make: |table, step| step(table),
        before,
        steps,
        probe,
        after,
        counts: |table, after| {
            // Three levels: the root, and the nodes of one and of two bits that have a page below.
            let nodes = |shift: usize| {
                let mut nodes: Vec<_> = after.iter().map(|page| page >> shift).collect();
                nodes.dedup();
                nodes.len()
            };
            assert_eq!(table.footprint().nodes, 1 + nodes(1) + nodes(2));
        },
    });
}

#[test]
fn two_pages_of_a_node_appear() {
    check(&[], [|table| map(table, 2), |table| map(table, 3)], 2, &[2, 3]);
}

#[test]
fn one_page_of_a_node_appears_and_the_other_disappears() {
    check(&[3], [|table| map(table, 2), |table| unmap(table, 3)], 3, &[2]);
}

#[test]
fn the_last_two_pages_below_a_node_disappear() {
    check(&[0, 2], [|table| unmap(table, 0), |table| unmap(table, 2)], 0, &[]);
}

#[test]
fn a_range_disappears_while_its_neighbour_appears() {
    check(
        &[0, 1],
        [
            |table| {
                let pages = Pages::count(Vpn::new(0), 2).unwrap();
                let mut writer = over(table, pages)?;
                assert_eq!(writer.unmap(pages, Holes::Refuse), Ok(2));
                finish(writer);
                Ok(())
            },
            |table| map(table, 2),
        ],
        1,
        &[2],
    );
}

/// A writer with a batch has the lock of the node, and the other one changes a page of it by one store, or unlinks it.
#[test]
fn one_page_of_a_node_disappears_by_an_edit_and_the_other_by_a_store() {
    let edit: Step = |table| {
        let mut writer = over(table, page(2))?;
        assert_eq!(writer.unmap(page(2), Holes::Refuse), Ok(1));
        finish(writer);
        Ok(())
    };
    check(&[2, 3], [edit, |table| unmap(table, 3)], 3, &[]);
}

/// Two writers of one page: the second one finds what the first has done.
#[test]
fn the_loser_of_a_race_finds_the_page_mapped() {
    let fault: Step = |table| {
        let mut writer = over(table, page(4))?;
        match writer.map(page(4), frame(4), PageSize::K4, WRITE) {
            Ok(()) | Err(Error::Occupied { .. }) => {}
            wrong => panic!("{wrong:?}"),
        }
        finish(writer);
        Ok(())
    };
    check(&[], [fault; 2], 4, &[4]);
}
