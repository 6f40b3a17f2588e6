//! Policies by name.

use std::fmt;
use std::str::FromStr;

use anyhow::bail;
use tlbkit_addr::PageSize;
use tlbkit_superpage::{
    ApproxOnline, Asap, Asap464, Background, Coverage, Online, OnlineMemory, Policy, PolicyMemory,
    Reservation, Runs, SegmentMemory, Setup, Slot, StackEntry, Thrift, Utilization,
};

use super::scan::ByScan;
use super::simulation::{Sizing, Tlbs};
use super::tlb::Bare;

/// A policy as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// Pages of one size.
    Fixed(PageSize),
    Asap,
    Asap464,
    Online,
    Approx,
    /// APPROX-ONLINE that scans the TLB.
    ApproxScan,
    Offline,
    /// Reservations, promoted when full (Navarro et al., FreeBSD).
    Reserve,
    /// Reservations under partial subblock entries of 64 KB (Talluri and Hill).
    Subblock,
    /// Runs of 64 KB that the first touch maps whole (Linux's mTHP and contpte).
    Runs,
    Khugepaged,
    Ingens,
    Hawkeye,
    /// This project's own.
    Thrift,
}

/// What `--policy all` stands for.
pub(super) const ALL: &str = "FIXED-4K,FIXED-16K,FIXED-64K,OFFLINE,ASAP,ASAP-4-64,ONLINE,APPROX-ONLINE,THRIFT,RESERVE,SUBBLOCK,RUNS,KHUGEPAGED,INGENS,HAWKEYE";

impl FromStr for Named {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let upper = name.to_ascii_uppercase();
        Ok(match upper.as_str() {
            "ASAP" => Self::Asap,
            "ASAP-4-64" => Self::Asap464,
            "ONLINE" => Self::Online,
            "APPROX-ONLINE" => Self::Approx,
            "APPROX-ONLINE-SCAN" => Self::ApproxScan,
            "OFFLINE" => Self::Offline,
            "RESERVE" => Self::Reserve,
            "SUBBLOCK" => Self::Subblock,
            "RUNS" => Self::Runs,
            "KHUGEPAGED" => Self::Khugepaged,
            "INGENS" => Self::Ingens,
            "HAWKEYE" => Self::Hawkeye,
            "THRIFT" => Self::Thrift,
            _ => match upper.strip_prefix("FIXED-").and_then(size) {
                Some(size) if size >= PageSize::K4 && size.shift() <= 30 => Self::Fixed(size),
                Some(_) => bail!("`{name}` is out of range: fixed sizes are 4K to 1G"),
                None => bail!("there is no policy `{name}`: choose from {ALL}, or FIXED-<size>"),
            },
        })
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Thrift => "THRIFT",
            Self::Fixed(size) => return write!(f, "FIXED-{size}"),
            Self::Asap => "ASAP",
            Self::Asap464 => "ASAP-4-64",
            Self::Online => "ONLINE",
            Self::Approx => "APPROX-ONLINE",
            Self::ApproxScan => "APPROX-ONLINE-SCAN",
            Self::Offline => "OFFLINE",
            Self::Reserve => "RESERVE",
            Self::Subblock => "SUBBLOCK",
            Self::Runs => "RUNS",
            Self::Khugepaged => "KHUGEPAGED",
            Self::Ingens => "INGENS",
            Self::Hawkeye => "HAWKEYE",
        })
    }
}

impl Named {
    /// Tells whether the policy counts misses, and so can be inactive while there are few.
    pub(super) fn is_counting(self) -> bool {
        matches!(self, Self::Online | Self::Approx | Self::Thrift)
    }
}

/// Parses `4K`, `8M`, `1G`, `1T`.
pub(super) fn size(text: &str) -> Option<PageSize> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        b'T' | b't' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: usize = digits.parse().ok()?;
    PageSize::from_bytes(number.checked_mul(1 << shift)?)
}

/// Memory for one policy's counters.
#[derive(Default)]
pub(super) struct Arena {
    pools: [(Vec<Slot>, Vec<usize>, Vec<u16>); 2],
    stacks: [Vec<StackEntry>; 2],
}

impl Arena {
    fn pool(footprint: SegmentMemory, segments: usize) -> (Vec<Slot>, Vec<usize>, Vec<u16>) {
        (
            vec![Slot::default(); segments * SegmentMemory::SLOTS],
            vec![0; segments * footprint.bits],
            vec![0; segments * footprint.counters],
        )
    }

    fn first(&mut self) -> PolicyMemory<'_> {
        Self::memory(&mut self.pools[0])
    }

    fn memory((directory, bits, counters): &mut (Vec<Slot>, Vec<usize>, Vec<u16>)) -> PolicyMemory<'_> {
        PolicyMemory { directory, bits, counters }
    }

    /// Sets memory aside for `named`, for this many segments.
    pub(super) fn new(named: Named, setup: &Setup, tlbs: Tlbs, segments: usize) -> anyhow::Result<Self> {
        let mut arena = Self::default();
        match named {
            Named::Fixed(_) | Named::Offline | Named::ApproxScan => {}
            Named::Asap => arena.pools[0] = Self::pool(Asap::segment_memory(&setup.page_sizes), segments),
            Named::Asap464 => {
                arena.pools[0] = Self::pool(Asap464::segment_memory(&setup.page_sizes), segments);
            }
            Named::Approx => arena.pools[0] = Self::pool(ApproxOnline::segment_memory(setup)?, segments),
            Named::Reserve | Named::Subblock => {
                arena.pools[0] = Self::pool(Reservation::segment_memory(&setup.page_sizes), segments);
            }
            Named::Khugepaged | Named::Ingens => {
                arena.pools[0] = Self::pool(Background::segment_memory(&setup.page_sizes), segments);
            }
            Named::Runs => arena.pools[0] = Self::pool(Runs::segment_memory(&setup.page_sizes), segments),
            Named::Hawkeye => {
                let each = Coverage::segment_memory(&setup.page_sizes, Utilization::HAWKEYE);
                arena.pools[0] = Self::pool(each, segments);
            }
            Named::Thrift => {
                arena.pools[0] = Self::pool(Thrift::segment_memory(setup)?, segments);
            }
            Named::Online => {
                let (prefetch, capacity) = Online::segment_memory(setup)?;
                arena.pools = [Self::pool(prefetch, segments), Self::pool(capacity, segments)];
                arena.stacks = [tlbs.data, tlbs.instruction]
                    .map(|size| vec![StackEntry::default(); Online::stack_len(setup, size)]);
            }
        }
        Ok(arena)
    }

    /// Makes the policy in this memory, and says how many cycles of bookkeeping a miss costs it (Table 3).
    pub(super) fn build(
        &mut self,
        named: Named,
        setup: &Setup,
        tlbs: Tlbs,
    ) -> anyhow::Result<(Sizing<'_>, f64)> {
        let (policy, book): (Box<dyn Policy + '_>, f64) = match named {
            Named::Fixed(size) => {
                let bare = [Bare::new(tlbs.data), Bare::new(tlbs.instruction)];
                return Ok((Sizing::Fixed(size.shift() - PageSize::K4.shift(), bare), 0.0));
            }
            Named::Offline => return Ok((Sizing::Chosen, 0.0)),
            Named::Asap => (Box::new(Asap::new(setup.page_sizes, self.first())), 0.0),
            Named::Asap464 => (Box::new(Asap464::new(setup.page_sizes, self.first())), 0.0),
            Named::Approx => (Box::new(ApproxOnline::new(setup, self.first())?), 100.0),
            Named::ApproxScan => (Box::new(ByScan::new(setup)), 100.0),
            Named::Reserve => (Box::new(Reservation::new(setup.page_sizes, self.first())), 0.0),
            Named::Subblock => (Box::new(Reservation::partial(setup.page_sizes, self.first())), 0.0),
            Named::Khugepaged => {
                (Box::new(Background::new(setup.page_sizes, Utilization::KHUGEPAGED, self.first())), 0.0)
            }
            Named::Ingens => {
                (Box::new(Background::new(setup.page_sizes, Utilization::INGENS, self.first())), 0.0)
            }
            Named::Runs => (Box::new(Runs::new(setup.page_sizes, PageSize::K64, self.first())), 0.0),
            Named::Hawkeye => {
                (Box::new(Coverage::new(setup.page_sizes, Utilization::HAWKEYE, self.first())), 0.0)
            }
            Named::Thrift => (Box::new(Thrift::new(setup, self.first())?), 100.0),
            Named::Online => (Box::new(self.online(setup, tlbs)?), 2570.0),
        };
        Ok((Sizing::By(policy), book))
    }

    /// Makes ONLINE in this memory, which was set aside for it.
    pub(super) fn online(&mut self, setup: &Setup, tlbs: Tlbs) -> anyhow::Result<Online<'_>> {
        let ([prefetch, capacity], [data, instruction]) = (&mut self.pools, &mut self.stacks);
        let [prefetch, capacity] = [prefetch, capacity].map(Self::memory);
        let memory = OnlineMemory { prefetch, capacity, stacks: [data, instruction] };
        Ok(Online::new(setup, [tlbs.data, tlbs.instruction], memory)?)
    }
}
