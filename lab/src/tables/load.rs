//! What the tables are given to do: pages to map, and the refills that a program's references cause.

use std::collections::HashMap;
use std::io::Cursor;

use anyhow::{Context, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tlbkit_addr::Vpn;

use crate::tlb::{Tlb, TlbArgs};
use crate::trace::{self, Header, Input, Trace, TraceError};
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
    /// The pages that missed, in order, by their places in `pages`.
    ///
    /// This grows with the trace, by four bytes a refill: every structure answers the same refills one after the
    /// other, and a trace from standard input cannot be read twice.
    pub(crate) refills: Vec<u32>,
    /// What a recorded trace says about itself.
    pub(crate) about: Option<Header>,
}

impl Load {
    /// Runs a trace, the shipped one if none is named, through the TLB.
    ///
    /// # Errors
    ///
    /// If the trace cannot be read to its end or holds no reference.
    pub(crate) fn from_trace(input: Option<&Input>, tlb: &TlbArgs, seed: u64) -> anyhow::Result<Self> {
        let bar = ProgressBar::no_length().with_style(ProgressStyle::with_template(
            "reading the trace {wide_bar} {bytes} of {total_bytes}, {eta} left",
        )?);
        let (name, trace) = match input {
            Some(input) => (input.to_string(), trace::open(input, &bar)),
            None => {
                bar.set_length(SHIPPED.1.len() as u64);
                (SHIPPED.0.into(), trace::read(bar.wrap_read(Cursor::new(SHIPPED.1))))
            }
        };
        let tlb = Tlb::new(tlb, seed)?;
        let load = match trace {
            Ok(trace) => Self::replay(name.clone(), trace, tlb).with_context(|| name)?,
            // It names the file itself.
            Err(error @ TraceError::Open { .. }) => return Err(error.into()),
            Err(error) => return Err(error).context(name),
        };
        bar.finish_and_clear();
        Ok(load)
    }

    fn replay(name: String, trace: Trace, mut tlb: Tlb) -> anyhow::Result<Self> {
        let about = trace.header().cloned();
        let mut load = Self { name, pages: Vec::new(), refills: Vec::new(), about };
        let mut places = HashMap::new();
        for access in trace {
            let page = access?.page;
            let place = *places.entry(page).or_insert_with(|| {
                load.pages.push(page);
                load.pages.len() - 1
            });
            // What follows the first reference of a run hits, whatever the TLB.
            if tlb.misses(page) {
                load.refills.push(u32::try_from(place)?);
            }
        }
        if load.pages.is_empty() {
            bail!("the trace holds no reference: capture anew");
        }
        Ok(load)
    }

    /// Draws a workload. Its references are to every page once, in a random order.
    ///
    /// # Errors
    ///
    /// If the numbers are out of range.
    pub(crate) fn from_workload(
        workload: Workload,
        pages: Option<usize>,
        sizes: FileSizes,
        tlb: &TlbArgs,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let pages = pages.unwrap_or(workload.default_pages());
        workload.check(pages)?;
        sizes.check()?;
        let mut tlb = Tlb::new(tlb, seed)?;
        let ranges = workload.ranges(pages, seed, sizes);
        let pages: Vec<_> = ranges.iter().flat_map(|range| range.iter()).collect();
        ensure!(u32::try_from(pages.len()).is_ok(), "too many pages: give a smaller --pages");
        let mut order: Vec<_> = (0..pages.len() as u32).collect();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // Stream 0 has drawn the pages.
        random.set_stream(1);
        order.shuffle(&mut random);
        order.retain(|&place| tlb.misses(pages[place as usize]));
        let name = serde_json::to_value(workload)?.as_str().unwrap_or_default().to_owned();
        Ok(Self { name, pages, refills: order, about: None })
    }
}
