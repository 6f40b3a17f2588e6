//! x86-64 with PCIDs, which QEMU has not, and with two CPUs: `flush` of the guide's file, and what `docs/embedding-x86_64.md` shows for
//! several CPUs. The instructions are compiled; what calls them runs here, on instructions that are noted down.
#![cfg(all(target_arch = "x86_64", not(miri)))]

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use tlbkit::{
    AddressSpace, Asid, Attr, CpuSet, Error, Flush, Kernel, Mmu, Overdue, PageSize, Pages, Pfn, PhysAddr,
    Record, Run, Stopped, VirtAddr, arch,
};

/// The instructions, which are not executed here.
#[allow(dead_code, unreachable_pub, reason = "they are privileged, and are as in the guide")]
mod hardware {
    // page: begin
    use core::arch::asm;

    /// Sends the interrupt of a vector, by the x2APIC.
    pub fn send(apic: u32, vector: u8) {
        let icr = [u32::from(vector), apic];
        // SAFETY: the vector is the shootdown's. A write of this register is no barrier, and what was stored precedes it.
        unsafe { asm!("mfence", "lfence", "wrmsr", in("ecx") 0x830, in("eax") icr[0], in("edx") icr[1]) }
    }
    // page: end
}

/// What the kernel has the processors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Invpcid(usize, u16, usize),
    Invlpg(usize),
    Toggled,
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
    pub(crate) fn invlpg(at: usize) {
        DONE.lock().unwrap().push(Done::Invlpg(at));
    }
    pub(crate) fn toggle_global_pages() {
        DONE.lock().unwrap().push(Done::Toggled);
    }
    pub(crate) fn send(apic: u32, _vector: u8) {
        DONE.lock().unwrap().push(Done::Sent(apic));
    }
    pub(crate) fn number() -> usize {
        super::CPU.load(super::Relaxed)
    }
}

const CPUS: usize = 2;
const FRAMES: usize = 64;
const BASE: usize = 0x100_0000;
const SHOOTDOWN: u8 = 0xf0;
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
        let next = NEXT.fetch_add(1, Relaxed);
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
        let me = CPU.load(Relaxed);
        CPU.store(1 - me, Relaxed);
        MMU.on_interrupt();
        CPU.store(me, Relaxed);
    }
    type Machine = arch::X86_64;
    fn masked<R>(&self, f: impl FnOnce() -> R) -> R {
        f()
    }
    fn flush(&self, named: &Flush<'_>, asid: Option<Asid>) {
        flush(named, asid);
    }
    fn load(&self, root: usize) {
        DONE.lock().unwrap().push(Done::Cr3(root));
    }
    fn unload(&self) {}
    fn asid_bits(&self) -> u32 {
        if HAS_PCIDS.load(Relaxed) { 12 } else { 0 }
    }
    // page: begin
    fn cpu(&self) -> usize {
        cpu::number()
    }
    fn interrupt(&self, cpus: CpuSet) {
        cpus.into_iter().for_each(|cpu| cpu::send(APIC[cpu].load(Relaxed), SHOOTDOWN));
    }
    // page: end
}

static HAS_PCIDS: AtomicBool = AtomicBool::new(true);
use cpu::{invlpg, invpcid, toggle_global_pages};

#[allow(unreachable_pub, reason = "the file is a module of a kernel")]
// file: begin
/// Flushes what `flush` names. Without PCIDs `asid` is always `None`.
#[inline(always)]
pub fn flush(flush: &Flush<'_>, asid: Option<Asid>) {
    let has_pcids = HAS_PCIDS.load(Relaxed);
    match (flush.by_address(), asid) {
        (Some(pages), Some(pcid)) => pages.for_each(|at| invpcid(0, pcid.get(), at.get())),
        (None, Some(pcid)) => invpcid(1, pcid.get(), 0),
        // The kernel's part: its links may be cached under each PCID.
        (_, None) if has_pcids => invpcid(2, 0, 0),
        (Some(pages), None) => pages.for_each(|at| invlpg(at.get())),
        (None, None) => toggle_global_pages(),
    }
}
// file: end

#[test]
fn the_guide_has_the_lines_that_are_compiled_here() {
    let page = include_str!("../../../../docs/embedding-x86_64.md");
    let file = include_str!("../../../../examples/kernel/embedding/cpu/x86_64.rs");
    let parts = |begin: &'static str, end: &'static str| {
        let parts = include_str!("x86_64.rs").split(begin).skip(1);
        parts
            .map(move |part| part.split(end).next().unwrap().trim_end())
            .filter(|part| !part.starts_with('"'))
    };
    assert_eq!(parts("// page: begin\n", "// page: end").count(), 2);
    for part in parts("// page: begin\n", "// page: end") {
        let lines = part.lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
        assert!(page.contains(&lines.collect::<Vec<_>>().join("\n")), "the page's lines are others");
    }
    assert_eq!(parts("// file: begin\n", "// file: end").count(), 1);
    assert!(
        parts("// file: begin\n", "// file: end").all(|part| file.contains(part)),
        "the file's lines are others"
    );
}

#[test]
fn a_change_costs_what_the_guide_says() {
    let done = || std::mem::take(&mut *DONE.lock().unwrap());
    let page = |at: usize| Pages::one(VirtAddr::new(at).vpn(PageSize::K4));
    let rights = Attr::READ | Attr::WRITE | Attr::USER;
    let space = AddressSpace::new(&MMU).unwrap();
    for cpu in [1, 0] {
        CPU.store(cpu, Relaxed);
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

    // A kernel that has no `user_memory` is told so.
    let frame = Pfn::new(0x303);
    space.map(page(0x40_2000), frame, rights | Attr::ACCESSED | Attr::DIRTY).unwrap();
    let why = Error::NotUserMemory { frame };
    let stopped = Err(Stopped { copied: 0, error: Some(why) });
    assert_eq!(space.copy_to_user(VirtAddr::new(0x40_2000), &[1], |_, _, _| Ok(false)), stopped);
    assert_eq!((MMU.clear_frame(frame), MMU.copy_frame(frame, frame)), (Err(why), Err(why)));
    for cpu in [1, 0] {
        CPU.store(cpu, Relaxed);
        MMU.idle().unwrap();
    }
    drop(space);
    done();

    // The same without PCIDs: a load of CR3 keeps nothing, and what is forgotten has no number.
    HAS_PCIDS.store(false, Relaxed);
    let space = AddressSpace::new(&MMU).unwrap();
    space.activate().unwrap();
    let did = done();
    assert!(did.iter().any(|done| matches!(done, Done::Cr3(root) if root >> 63 == 0 && root & 0xfff == 0)));
    assert!(did.iter().all(|done| matches!(done, Done::Cr3(_) | Done::Toggled)), "{did:x?}");
    space.map(page(0x40_0000), Pfn::new(0x300), rights).unwrap();
    assert_eq!((done(), space.unmap(page(0x40_0000))), (vec![], Ok(1)));
    assert_eq!(done(), [Done::Invlpg(0x40_0000)]);
    MMU.idle().unwrap();
}
