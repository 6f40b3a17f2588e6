//! What is right: entries that say what the table says, faults that the table agrees with, records of what happened.

use proptest::test_runner::TestCaseError;
use tlbkit_addr::{Attr, Flush, PageSize, VirtAddr};
use tlbkit_pagetable::{Leaf, Local, Table};
use tlbkit_refill::handler::Form;
use tlbkit_refill::interp::{Access, Machine, Windows};
use tlbkit_refill::{Block, Log};

use super::{RECORDS, Seen, TLB, USER};

macro_rules! check {
    ($cond:expr, $($what:tt)*) => {
        if !$cond {
            return Err(TestCaseError::fail(format!($($what)*)));
        }
    };
}

pub(super) use check;

pub(super) type Entries = [Option<tlbkit_refill::interp::Entry>; TLB];

pub(super) fn drain(
    log: &Log<RECORDS>,
    block: &Block,
    expected: &mut Vec<(u32, u32, Entries, u64)>,
    seen: &mut Seen,
) -> Result<(), TestCaseError> {
    let mut misses = Vec::new();
    log.drain(block, |miss| misses.push(miss));
    check!(misses.len() == expected.len(), "{} records for {} misses", misses.len(), expected.len());
    for (miss, (at, entry_hi, before, index)) in misses.into_iter().zip(expected.drain(..)) {
        seen.reports += 1;
        let old = before[index as usize].unwrap_or_default();
        check!(miss.at == at && miss.entry_hi == entry_hi, "{miss:x?} is not the miss at {at:#x}");
        let evicted = miss.evicted;
        let same = (evicted.entry_hi, evicted.page_mask, evicted.lo0, evicted.lo1)
            == (old.hi as u32, old.page_mask as u32, old.lo[0] as u32, old.lo[1] as u32);
        check!(same, "{miss:x?} is not the eviction of {old:x?}");
    }
    Ok(())
}

pub(super) type Rig<'m, const W: usize> = Machine<Windows<'m, W>, TLB>;

/// Tells whether a page allows nothing.
fn is_closed(leaf: Leaf) -> bool {
    !leaf.attr.intersects(Attr::READ | Attr::WRITE | Attr::EXEC)
}

/// The kernel's fault handler sees the access as it was, and the table agrees that it is one.
pub(super) fn judge_fault<'m, T: Table<'m>, F: FnMut(&Flush), const W: usize>(
    machine: &Rig<'_, W>,
    table: &Local<'m, T, F>,
    at: usize,
    access: Access,
) -> Result<(), TestCaseError> {
    let leaf = table.lookup(VirtAddr::new(at));
    let cp0 = &machine.cp0;
    let wide = at as u32 as i32 as u64;
    check!(cp0.bad_vaddr == wide, "BadVAddr is {:#x} for {at:#x}", cp0.bad_vaddr);
    check!(cp0.entry_hi & !0xff == wide & !0x1fff, "EntryHi is {:#x} for {at:#x}", cp0.entry_hi);
    check!(cp0.epc == USER && cp0.exl(), "EPC is {:#x}", cp0.epc);
    check!(cp0.context & 0x7f_fff0 == wide >> 9 & 0x7f_fff0, "Context is {:#x} for {at:#x}", cp0.context);
    let code = cp0.cause >> 2 & 31;
    match (code, access) {
        (1, Access::Store) => {
            let clean =
                leaf.is_some_and(|leaf| !leaf.attr.contains(Attr::WRITE | Attr::DIRTY) && !is_closed(leaf));
            check!(clean, "TLB Modified at {at:#x}, which is {leaf:?}");
        }
        (2, Access::Load) | (3, Access::Store) => {
            check!(leaf.is_none_or(is_closed), "a miss at {at:#x}: {leaf:?}");
        }
        _ => check!(false, "cause {code} for {access:?}"),
    }
    Ok(())
}

/// The TLB's entry says what the table says, of both halves.
pub(super) fn judge_entry<'m, T: Table<'m>, F: FnMut(&Flush), const W: usize>(
    machine: &Rig<'_, W>,
    table: &Local<'m, T, F>,
    at: usize,
    physical: u64,
    access: Access,
    form: Form,
    seen: &mut Seen,
) -> Result<(), TestCaseError> {
    let translated = table.translate(VirtAddr::new(at)).map(|at| at.get() as u64);
    check!(translated == Some(physical), "{at:#x} is at {physical:#x}, not {translated:x?}");
    let asid = machine.cp0.asid();
    let found = |at: usize| machine.tlb.find(at as u32 as i32 as u64, asid);
    let Some(own) = found(at) else { return Err(TestCaseError::fail("no entry")) };
    check!(form.sized || own.bytes == 4096, "a page of {} bytes", own.bytes);
    seen.larger += usize::from(own.bytes > 4096);
    let leaf = table.lookup(VirtAddr::new(at));
    seen.whole +=
        usize::from(own.bytes > 4096 && leaf.is_some_and(|leaf| leaf.size.bytes() as u64 == own.bytes));
    for half in [at, at ^ own.bytes as usize] {
        let leaf = table.lookup(VirtAddr::new(half));
        let Some(entry) = found(half) else { return Err(TestCaseError::fail("no entry")) };
        let Some(leaf) = leaf.filter(|&leaf| !is_closed(leaf)) else {
            check!(entry.lo & 2 == 0, "{half:#x} allows nothing, and its entry is {:#x}", entry.lo);
            continue;
        };
        let size = leaf.size.bytes() as u64;
        check!(own.bytes == size || own.bytes == size / 4, "{} bytes of {leaf}", own.bytes);
        let frame = (entry.lo >> 6 & 0xff_ffff) << 12 & !(own.bytes - 1);
        let start = leaf.phys(VirtAddr::new(half & !(own.bytes as usize - 1)), PageSize::K4).get() as u64;
        let dirty = leaf.attr.contains(Attr::WRITE | Attr::DIRTY);
        let cached = if leaf.attr.contains(Attr::UNCACHED) { 2 } else { 3 };
        let bits = cached << 3 | u64::from(dirty) << 2 | 2;
        check!(entry.lo & 0x3e == bits, "{half:#x}: bits {:#x} for {leaf}", entry.lo & 0x3f);
        check!(frame == start, "{half:#x}: frame {frame:#x}, not {start:#x}");
    }
    check!(access == Access::Load || own.lo & 4 != 0, "a store to a page without D");
    Ok(())
}
