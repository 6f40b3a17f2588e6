//! The x86-64 section of `docs/embedding.md`: the guide has the same lines. The instructions are compiled; what calls them runs
//! here, on instructions that are noted down.
#![cfg(all(target_arch = "x86_64", not(miri)))]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use tlbkit::{
    AddressSpace, Asid, Attr, CpuSet, Flush, Kernel, Mmu, Overdue, PageSize, Pages, Pfn, PhysAddr, Record,
    Run, VirtAddr, arch,
};

/// The instructions, which are not executed here.
#[allow(dead_code, unreachable_pub, reason = "they are privileged, and are as in the guide")]
mod hardware {
    // guide: begin
    use core::arch::asm;
    /// Removes from the TLB what `INVPCID` of a type names; the processor has it, and CR4.PCIDE is on.
    pub fn invpcid(kind: usize, pcid: u16, at: usize) {
        let what = [usize::from(pcid), at];
        // SAFETY: the instruction only makes the processor walk again.
        unsafe { asm!("invpcid {}, [{}]", in(reg) kind, in(reg) &what, options(nostack, preserves_flags)) }
    }
    pub fn load_cr3(root: usize) {
        // SAFETY: every root maps the kernel.
        unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) }
    }
    pub fn masked<R>(f: impl FnOnce() -> R) -> R {
        let flags: usize;
        // SAFETY: the flags are read, and interrupts masked.
        unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) }
        let result = f();
        if flags & 1 << 9 != 0 {
            // SAFETY: interrupts were not masked before.
            unsafe { asm!("sti") }
        }
        result
    }
    /// Sends the interrupt of a vector, by the x2APIC.
    pub fn send(apic: u32, vector: u8) {
        let icr = [u32::from(vector), apic];
        // SAFETY: the vector is the shootdown's. A write of this register is no barrier, and what was stored precedes it.
        unsafe { asm!("mfence", "lfence", "wrmsr", in("ecx") 0x830, in("eax") icr[0], in("edx") icr[1]) }
    }
    // guide: end
}

/// What the kernel has the processors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Invpcid(usize, u16, usize),
    Cr3(usize),
    Sent(u32),
}

static DONE: Mutex<Vec<Done>> = Mutex::new(Vec::new());
static CPU: AtomicUsize = AtomicUsize::new(0);

mod cpu {
    use super::{DONE, Done};

    pub(crate) fn invpcid(kind: usize, pcid: u16, at: usize) {
        DONE.lock().unwrap().push(Done::Invpcid(kind, pcid, at));
    }
    pub(crate) fn load_cr3(root: usize) {
        DONE.lock().unwrap().push(Done::Cr3(root));
    }
    pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
    pub(crate) fn send(apic: u32, _vector: u8) {
        DONE.lock().unwrap().push(Done::Sent(apic));
    }
    pub(crate) fn number() -> usize {
        super::CPU.load(super::Ordering::Relaxed)
    }
}

const CPUS: usize = 2;
const FRAMES: usize = 64;
const BASE: usize = 0x100_0000;
const SHOOTDOWN: u8 = 0xf0;
const KERNEL_CR3: usize = 0x1000;
static APIC: [AtomicU32; CPUS] = [AtomicU32::new(10), AtomicU32::new(11)];
static RECORDS: [Record; FRAMES] = [const { Record::new(0) }; FRAMES];
static NEXT: AtomicUsize = AtomicUsize::new(0);

#[repr(C, align(4096))]
struct Frame([AtomicU32; 1024]);
static ARENA: [Frame; FRAMES] = [const { Frame([const { AtomicU32::new(0) }; 1024]) }; FRAMES];

struct Mine;
static MMU: Mmu<Mine, CPUS> = Mmu::new(Mine);

// SAFETY: each frame of the arena is taken once, and has its memory and its record. One thread runs as both CPUs, and
// no code walks.
unsafe impl Kernel for Mine {
    fn take_frame(&self) -> Option<PhysAddr> {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        (next < FRAMES).then(|| PhysAddr::new(BASE + (next << 12)))
    }
    fn give_frame(&self, _frame: PhysAddr) {}
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        (&raw const ARENA[(frame.get() - BASE) >> 12]).cast_mut().cast()
    }
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        RECORDS.get((frame.get() - BASE) >> 12)
    }
    fn release(&self, _run: Run) {}
    fn overdue(&self, _what: Overdue) {}
    fn pause(&self) {
        // The other CPU takes its interrupt.
        let me = CPU.load(Ordering::Relaxed);
        CPU.store(1 - me, Ordering::Relaxed);
        MMU.on_interrupt();
        CPU.store(me, Ordering::Relaxed);
    }
    // guide: begin
    type Machine = arch::X86_64;
    fn cpu(&self) -> usize {
        cpu::number()
    }
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        cpu::masked(f)
    }
    fn flush(&self, flush: &Flush<'_>, asid: Option<Asid>) {
        let Some(pcid) = asid.map(Asid::get) else { return cpu::invpcid(2, 0, 0) };
        match flush.by_address(64) {
            Some(pages) => pages.for_each(|at| cpu::invpcid(0, pcid, at.get())),
            None => cpu::invpcid(1, pcid, 0),
        }
    }
    fn interrupt(&self, cpus: CpuSet) {
        cpus.into_iter().for_each(|cpu| cpu::send(APIC[cpu].load(Ordering::Relaxed), SHOOTDOWN));
    }
    fn load(&self, root: usize) {
        cpu::load_cr3(root);
    }
    fn unload(&self) {
        cpu::load_cr3(KERNEL_CR3);
    }
    // guide: end
}

#[test]
fn the_guide_has_the_lines_that_are_compiled_here() {
    let guide = include_str!("../../../../docs/embedding.md");
    let parts: Vec<&str> = include_str!("x86_64.rs")
        .split("// guide: begin\n")
        .skip(1)
        .map(|part| part.split("// guide: end").next().unwrap())
        .take(2)
        .collect();
    assert_eq!(parts.len(), 2);
    for part in parts {
        let lines = part.trim_end().lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
        let part: Vec<&str> = lines.collect();
        assert!(guide.contains(&part.join("\n")), "the guide's lines are others");
    }
}

#[test]
fn a_change_costs_what_the_guide_says() {
    let done = || std::mem::take(&mut *DONE.lock().unwrap());
    let page = |at: usize| Pages::one(VirtAddr::new(at).vpn(PageSize::K4));
    let rights = Attr::READ | Attr::WRITE | Attr::USER;
    let space = AddressSpace::new(&MMU).unwrap();
    for cpu in [1, 0] {
        CPU.store(cpu, Ordering::Relaxed);
        space.activate().unwrap();
    }
    // What is loaded names the PCID, and leaves the TLB as it is.
    let loaded: Vec<usize> = done()
        .iter()
        .filter_map(|done| if let Done::Cr3(root) = done { Some(*root) } else { None })
        .collect();
    assert_eq!(loaded.len(), 2);
    assert!(loaded.iter().all(|root| root >> 63 == 1 && root & 0xfff == 1), "{loaded:x?}");

    // A mapping that appears costs nothing, a second one beside it neither.
    space.map(page(0x40_0000), Pfn::new(0x300), rights).unwrap();
    space.map(page(0x40_1000), Pfn::new(0x302), rights).unwrap();
    assert_eq!(done(), []);

    // One that goes is forgotten by address, here and on the CPU that is interrupted.
    assert_eq!(space.unmap(page(0x40_0000)), Ok(1));
    let forgotten = Done::Invpcid(0, 1, 0x40_0000);
    let did = done();
    assert_eq!(did.iter().filter(|&&done| done == forgotten).count(), 2, "{did:x?}");
    assert_eq!(did.iter().filter(|&&done| done == Done::Sent(11)).count(), 1, "{did:x?}");
    assert_eq!(did.len(), 3, "{did:x?}");
    for cpu in [1, 0] {
        CPU.store(cpu, Ordering::Relaxed);
        MMU.idle().unwrap();
    }
}
