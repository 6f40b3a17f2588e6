//! What the tables are given to do: pages to map, and the refills that a program's references cause.

use std::collections::HashMap;
use std::io::Cursor;

use anyhow::{Context, ensure};
use indicatif::ProgressStyle;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tlbkit_addr::{PageSize, Vpn};

use super::machine::{Machine, Refill, Way};
use crate::cycles::Program;
use crate::progress;
use crate::tlb::{Tlb, TlbArgs};
use crate::trace::{self, Counts, Header, Input, LINE, Trace, TraceError};
use crate::workload::{FileSizes, Workload};

/// The trace that is used when nothing is named: `traces/README.md` says how it was made.
const SHIPPED: (&str, &[u8]) = ("cc1.tlbt", include_bytes!("../../traces/cc1.tlbt"));

/// Pages in the order in which they are first needed, and the refills of the modelled TLB.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// What it is called: the workload, or the file.
    pub(crate) name: String,
    /// The pages to map, all different.
    pub(crate) pages: Vec<Vpn>,
    /// What missed in the TLB, while the page table was in physical memory.
    pub(super) refills: Vec<Refill>,
    /// What missed while it was a linear one in virtual memory; nothing, if that was not asked for.
    pub(super) linear: Vec<Refill>,
    /// What a recorded trace says about itself.
    pub(crate) about: Option<Header>,
    /// The program's references to lines, if the machines keep them.
    pub(crate) program: Option<Program>,
}

impl Load {
    /// Runs a trace, the shipped one if none is named, on the machines, whose pages have size `base`; no more of it than
    /// this many instructions, if `most` says so.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read to its end or holds no reference.
    pub(super) fn from_trace(
        input: Option<&Input>,
        base: PageSize,
        most: Option<u64>,
        machines: Machines,
    ) -> anyhow::Result<Self> {
        let bar = progress::bar(None).with_style(ProgressStyle::with_template(
            "reading the trace {wide_bar} {bytes} of {total_bytes}, {eta} left",
        )?);
        let (name, trace) = match input {
            Some(input) => (input.to_string(), trace::open(input, &bar)),
            None => {
                bar.set_length(SHIPPED.1.len() as u64);
                (SHIPPED.0.into(), trace::read(bar.wrap_read(Cursor::new(SHIPPED.1))))
            }
        };
        let load = match trace {
            Ok(trace) => Self::replay(name.clone(), trace, base, most, machines).with_context(|| name)?,
            // It names the file itself.
            Err(error @ TraceError::Open { .. }) => return Err(error.into()),
            Err(error) => return Err(error).context(name),
        };
        bar.finish_and_clear();
        Ok(load)
    }

    fn replay(
        name: String,
        mut trace: Trace,
        base: PageSize,
        most: Option<u64>,
        mut machines: Machines,
    ) -> anyhow::Result<Self> {
        let mut about = trace.header().cloned();
        let (unit, accesses) = trace.raw();
        ensure!(
            machines.program.is_none() || unit == LINE,
            "cycles need a trace of lines: make one with `tlblab capture --lines`"
        );
        let mut pages = Vec::new();
        let mut places = HashMap::new();
        let mut counts = Counts::default();
        for access in accesses {
            if most.is_some_and(|most| counts.instructions >= most) {
                break;
            }
            let access = access?;
            counts.add(&access);
            let page = access.page.address(unit).vpn(base);
            let place = *places.entry(page).or_insert_with(|| {
                pages.push(page);
                pages.len() - 1
            });
            // What follows the first reference of a run hits, whatever the TLB.
            machines.refer(page, u32::try_from(place)?)?;
            if let Some(program) = &mut machines.program {
                program.push(&access, base, place);
            }
        }
        if pages.is_empty() {
            return Err(TraceError::NoReference.into());
        }
        counts.pages = pages.len() as u64;
        about.iter_mut().for_each(|about| about.counts = counts);
        Ok(machines.load(name, pages, about))
    }

    /// Draws a workload. Its references are to every page once, in a random order.
    ///
    /// # Errors
    ///
    /// If the numbers are out of range.
    pub(super) fn from_workload(
        workload: Workload,
        pages: Option<usize>,
        base: PageSize,
        sizes: FileSizes,
        mut machines: Machines,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let pages = pages.unwrap_or(workload.default_pages(base));
        workload.check(pages, base)?;
        sizes.check()?;
        let ranges = workload.ranges(pages, base, seed, sizes);
        let pages: Vec<_> = ranges.iter().flat_map(|range| range.iter()).collect();
        ensure!(u32::try_from(pages.len()).is_ok(), "too many pages: give a smaller --pages");
        let mut order: Vec<_> = (0..pages.len() as u32).collect();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Stream 0 has drawn the pages.
        random.set_stream(1);
        order.shuffle(&mut random);
        order.iter().try_for_each(|&place| machines.refer(pages[place as usize], place))?;
        let name = serde_json::to_value(workload)?.as_str().unwrap_or_default().to_owned();
        Ok(machines.load(name, pages, None))
    }
}

/// The machines that a program runs on, side by side.
#[derive(Debug)]
pub(super) struct Machines {
    physical: Machine,
    linear: Option<Machine>,
    program: Option<Program>,
}

impl Machines {
    /// Returns machines with empty TLBs; one has its page table in virtual memory, if `linear` tells where.
    ///
    /// # Errors
    ///
    /// If there is no such TLB.
    pub(super) fn new(tlb: &TlbArgs, seed: u64, linear: Option<Way>) -> anyhow::Result<Self> {
        let machine = |linear| anyhow::Ok(Machine::new(Tlb::new(tlb, seed)?, linear));
        let linear = linear.map(|way| machine(Some(way))).transpose()?;
        Ok(Self { physical: machine(None)?, linear, program: None })
    }

    /// Keeps the program's references to lines, if `keep`.
    pub(super) fn keeping(self, keep: bool) -> Self {
        Self { program: keep.then(Program::default), ..self }
    }

    #[inline]
    fn refer(&mut self, page: Vpn, place: u32) -> anyhow::Result<()> {
        let run = u32::try_from(self.program.as_ref().map_or(0, Program::len))?;
        self.physical.refer(page, place, run);
        if let Some(linear) = &mut self.linear {
            linear.refer(page, place, run);
        }
        Ok(())
    }

    fn load(self, name: String, pages: Vec<Vpn>, about: Option<Header>) -> Load {
        let linear = self.linear.map(|machine| machine.refills).unwrap_or_default();
        Load { name, pages, refills: self.physical.refills, linear, about, program: self.program }
    }
}
