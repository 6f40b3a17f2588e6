//! What `tlblab mapping` times: a benchmark of each table, with static dispatch inside.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tlbkit_addr::{Attr, PageSize, Pages, Pfn, Vpn};
use tlbkit_names::{C128K, G16, GA, H8K, H128K, HR, MPT};
use tlbkit_pagetable::format::Paper;
use tlbkit_pagetable::geometry::Va64;
use tlbkit_pagetable::gpt::{self, Adaptive, Fixed, Gpt};
use tlbkit_pagetable::hpt::{Buckets, Hashed};
use tlbkit_pagetable::mpt::Mpt;
use tlbkit_pagetable::nodes::Slab;
use tlbkit_pagetable::{Change, Error, Holes, Local, Private, Solo};

/// Node storage for the benchmarks.
pub type Nodes<'m> = Slab<'m, u32, Solo>;

/// A benchmark.
#[derive(Clone, Debug)]
pub enum Job {
    /// Creates a table, maps a page and destroys the table, so many times.
    Tasks(usize),
    /// Write-protects pages, and unprotects them one by one.
    Protect {
        /// What else is mapped.
        others: Vec<Pages>,
        /// The pages, in the order in which they are unprotected.
        pages: Vec<Vpn>,
        /// The region that holds them.
        region: Pages,
        /// Whether the pages of the region are protected one by one, and not in one call. All of them are mapped.
        one_by_one: bool,
    },
}

/// Does a round and returns the time that a task, or a page, has taken.
pub type Round<'n> = Box<dyn FnMut() -> Result<Duration, Error> + 'n>;

/// Sets a table up for a benchmark.
pub type Start = for<'n> fn(&'n Nodes<'n>, Job) -> Result<Round<'n>, Error>;

/// The page that a task maps.
const TASK: Pages = Pages::one(Vpn::new(0x400));
const RIGHTS: Attr = Attr::READ.union(Attr::WRITE);

/// Returns the name of every table, and the function that sets it up.
pub fn all() -> Vec<(&'static str, Start)> {
    macro_rules! structures {
        ($($name:ident $make:expr;)*) => {
            vec![$( ($name, |nodes, job| start(job, move || $make(nodes))) ),*]
        };
    }
    structures! {
        MPT Mpt::<Va64, Paper, _>::new;
        G16 Gpt::<Va64, Paper, _, gpt::TwoWords, Fixed<4>>::new;
        GA Gpt::<Va64, Paper, _, gpt::TwoWords, Adaptive>::new;
        H8K Hashed::<Va64, Paper, _, Buckets<1, 8, 0>>::new;
        H128K Hashed::<Va64, Paper, _, Buckets<1, 12, 0>>::new;
        HR Hashed::<Va64, Paper, _, Buckets<1, 1, 100>>::new;
        C128K Hashed::<Va64, Paper, _, Buckets<3, 10, 0>>::new;
    }
}

/// Sets a table up and returns its round.
fn start<'n, T: Private<'n> + 'n>(
    job: Job,
    make: impl Fn() -> Result<T, Error> + 'n,
) -> Result<Round<'n>, Error> {
    // Nothing walks beside this thread and there is no TLB: a flush is nothing.
    let task = move || Ok(Local::new(make()?, |_stale: &_| ()));
    let (others, pages, region, one_by_one) = match job {
        Job::Tasks(tasks) => {
            return Ok(Box::new(move || {
                let start = Instant::now();
                for _ in 0..tasks {
                    let mut table = task()?;
                    table.map(TASK, Pfn::new(1), PageSize::K4, RIGHTS)?;
                    black_box(&table);
                    table.destroy();
                }
                Ok(start.elapsed() / tasks as u32)
            }));
        }
        Job::Protect { others, pages, region, one_by_one } => (others, pages, region, one_by_one),
    };
    let mut table = task()?;
    for others in others {
        table.map(others, Pfn::new(0), PageSize::K4, RIGHTS)?;
    }
    for (frame, &page) in pages.iter().enumerate() {
        table.map(Pages::one(page), Pfn::new(frame), PageSize::K4, RIGHTS)?;
    }
    let (protect, unprotect) = (Change::clear(Attr::WRITE), Change::set(Attr::WRITE));
    Ok(Box::new(move || {
        let start = Instant::now();
        if one_by_one {
            for page in region {
                table.protect(Pages::one(black_box(page)), Holes::Refuse, protect)?;
            }
        } else {
            table.protect(black_box(region), Holes::Skip, protect)?;
        }
        for &page in &pages {
            table.protect(Pages::one(black_box(page)), Holes::Refuse, unprotect)?;
        }
        Ok(start.elapsed() / pages.len() as u32)
    }))
}
