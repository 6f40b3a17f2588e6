//! What hashed tables take at every size on the way up, and on the way down.
#![cfg(target_pointer_width = "64")]

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, Vpn};

use tlbkit_pagetable::nodes::{Chunk, Slab};
use tlbkit_pagetable::{Holes, Local, Solo, cpt::Cpt8, hpt::Hr};

/// Looks at a table ten times a doubling from 1000 pages to all of them; where memory is paid for, the chunks count too.
fn most(
    pages: usize,
    place: impl Fn(usize) -> usize,
    mut map: impl FnMut(usize) -> (usize, usize),
) -> [f64; 2] {
    let (mut next, mut most) = (1000, [0.0f64; 2]);
    for at in 0..pages {
        let (bytes, chunks) = map(place(at));
        if at + 1 == next {
            let each = [bytes, chunks].map(|bytes| bytes as f64 / next as f64);
            println!("{next:8} {:6.1} {:6.1}", each[0], each[1]);
            most = [most[0].max(each[0]), most[1].max(each[1])];
            next += next / 10;
        }
    }
    most
}

/// Page numbers all over 36 bits, each once: an odd multiple.
fn sparse(at: usize) -> usize {
    (at.wrapping_mul(0x9_d2c5_6813) >> 2) & 0x3_ffff_ffff
}

macro_rules! check {
    ($table:ty, $pages:expr, $chunks:expr, $place:expr, $most:expr) => {{
        let mut memory = vec![Chunk::ZERO; $chunks];
        let slab = Slab::<u64, Solo>::new(&mut memory, 0).unwrap();
        let mut table = Local::new(<$table>::keyed(&slab, 0x1234_5678_9abc_def1).unwrap(), |_: &Flush| ());
        let each = most($pages, $place, |vpn| {
            let _ = table.map(Pages::one(Vpn::new(vpn)), Pfn::new(vpn & 0xffff), PageSize::K4, Attr::READ);
            (slab.usage().bytes, slab.usage().chunks)
        });
        println!("{each:?}");
        assert!(each[0] < $most, "{each:?}");
        for at in 0..$pages {
            let _ = table.unmap(Pages::one(Vpn::new($place(at))), Holes::Skip);
        }
        println!("empty: {:?} {}", table.footprint(), table.table().buckets());
        assert!(table.footprint().bytes <= 512, "{:?}", table.footprint());
        table.destroy();
    }};
}

const PAGES: usize = if cfg!(miri) { 1500 } else { 30_000 };

#[test]
fn single_pages() {
    check!(Hr<'_, _>, PAGES, 1 << 14, |at| at, 40.0);
    check!(Hr<'_, _>, PAGES, 1 << 14, sparse, 40.0);
}

#[test]
fn clustered_pages() {
    check!(Cpt8<'_, _>, PAGES, 1 << 16, |at| at, 34.0);
    check!(Cpt8<'_, _>, PAGES, 1 << 16, |at| 8 * at, 160.0);
}
