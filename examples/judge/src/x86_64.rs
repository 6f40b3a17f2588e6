//! x86-64 with four or five levels, on QEMU's PC.
//!
//! The kernel runs in ring 0, mapped one to one by the table that is judged, away from the addresses that are looked at.
//! Accesses of the user are made in ring 3, by two instructions in a page that is the user's; a fetch by going to an
//! instruction that comes back at once. QEMU keeps its TLB when the ring changes, so this kernel judges entries and flushes.

use core::arch::{asm, global_asm};
use core::fmt::{self, Write};
use core::ptr;

use tlbkit_addr::{Attr, Flush, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::Format as _;
use tlbkit_pagetable::nodes::NodeAddr;
use tlbkit_pagetable::{Error, Geometry as _, Local, Table};

use crate::{Access, BASE, Fault};

/// With the PAT bit and protection keys, or without; with XD, or without.
pub(crate) type Format = tlbkit_pagetable::format::X86Of<KEYS, KEYS, NX>;
const KEYS: bool = cfg!(feature = "keys");
const NX: bool = cfg!(not(feature = "old"));

/// The number of levels, which the build chooses.
#[cfg(not(feature = "la57"))]
mod levels {
    #[cfg(not(feature = "old"))]
    pub(crate) use tlbkit_pagetable::geometry::Va48 as Shape;
    #[cfg(feature = "old")]
    pub(crate) type Shape = tlbkit_pagetable::geometry::UpToM2<tlbkit_pagetable::geometry::Va48>;
    pub(crate) const NAME: &str = if cfg!(feature = "keys") {
        "x86-64 with PAT and keys"
    } else if cfg!(feature = "old") {
        "x86-64 without XD and 1 GiB pages"
    } else {
        "x86-64"
    };
    pub(crate) const CR4_LA57: u32 = 0;
}
#[cfg(feature = "la57")]
mod levels {
    pub(crate) use tlbkit_pagetable::geometry::Va57 as Shape;
    pub(crate) const NAME: &str = "x86-64 LA57";
    pub(crate) const CR4_LA57: u32 = 1 << 12;
}

pub(crate) use levels::{NAME, Shape};

/// A flush that is missing is seen.
pub(crate) const FLUSHES: bool = true;
/// QEMU has no PCIDs: a switch forgets what is not global.
pub(crate) const NUMBERS: bool = false;
pub(crate) const PLACES: usize = 4;
/// Both halves are a space's.
pub(crate) const SPACE_PLACES: usize = 4;
/// No physical address is told: none is mapped where there is no memory.
pub(crate) const FAR: usize = 0;
pub(crate) const FAR_SHIFT: u32 = BASE.shift();
pub(crate) const SPACE_NUMBERS: [usize; 2] = [0; 2];
pub(crate) const MEMORY: usize = 0;
pub(crate) const ATTRIBUTES: Attr = Format::OPTIONAL.difference(Attr::READ);

/// PKRU, two bits a key: of keys 1, 5, 9 and 13 nothing may be accessed, of 2, 6, 10 and 14 nothing written, of 3, 7, 11 and
/// 15 neither.
const PKRU: u32 = 0b11_10_01_00 * 0x0101_0101;

/// `int 0x80`: comes to ring 0 from wherever it is.
pub(crate) const TRAP: usize = 0x80cd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    User,
    /// Ring 0 with EFLAGS.AC: the user's pages are for its data accesses too.
    Kernel,
    /// Ring 0 under SMAP: the user's pages are not.
    KernelNever,
}

pub(crate) const MODES: [Mode; 3] = [Mode::User, Mode::Kernel, Mode::KernelNever];

/// The mode of the pages that are not the user's.
pub(crate) const KERNEL: Mode = Mode::Kernel;

const MEMORY_PAGES: usize = 1 << 16;
/// Where the user's own two instructions are mapped: right behind memory.
const USER: usize = MEMORY_PAGES << 12;

const CR4_PAE: u32 = 1 << 5;
const CR4_PGE: u32 = 1 << 7;
const CR4_SMEP: u32 = 1 << 20;
const CR4_SMAP: u32 = 1 << 21;
const CR4_PKE: u32 = if KEYS { 1 << 22 } else { 0 };

/// LME, and NXE: without it XD is reserved.
const EFER: u32 = 1 << 8 | (NX as u32) << 11;

/// Selectors: the kernel's and the user's segments, and the task state.
const KERNEL_CODE: u16 = 0x08;
const USER_DATA: u16 = 0x18 | 3;
const USER_CODE: u16 = 0x20 | 3;
const TASK: u16 = 0x28;

/// Vectors: general protection, page fault, and what [`TRAP`] raises.
const PROTECTION: usize = 13;
const PAGE_FAULT: usize = 14;
const TRAPPED: usize = 0x80;

global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long   4, 8, 18                # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz  "Xen"
    .quad   _start

    .section .text.boot, "ax"
    .code32
    .globl _start
_start:                             # Protected mode, nothing translated.
    mov     edi, offset _bss
    mov     ecx, offset _bss_end
    sub     ecx, edi
    xor     eax, eax
    cld
    rep     stosb
    mov     esp, offset _stack
    mov     eax, {cr4}
    mov     cr4, eax
    .if     {five}
    mov     eax, offset boot_top
    .else
    mov     eax, offset boot_node
    .endif
    mov     cr3, eax
    mov     ecx, 0xc0000080         # EFER: LME, and NXE if there is XD.
    rdmsr
    or      eax, {efer}
    wrmsr
    mov     eax, 0x80010001         # CR0: PG, WP, PE.
    mov     cr0, eax
    lgdt    [boot_gdt_pointer]
    push    {kernel_code}
    mov     eax, offset long_mode
    push    eax
    retf
    .code64
long_mode:
    mov     eax, 0x10
    mov     ss, eax
    mov     ds, eax
    mov     es, eax
    lea     rsp, [rip + _stack]
    call    {judge}

    # What an exception comes back to is in `resume`: where, and the stack. The vector goes into r11, the error code into r10.
    .macro  entry name, vector, has_error
\name:
    .if     \has_error
    pop     r10
    .else
    xor     r10d, r10d
    .endif
    mov     r11d, \vector
    jmp     resume
    .endm
    entry   protection, {protection}, 1
    entry   page_fault, {page_fault}, 1
    entry   trapped, {trapped}, 0
    entry   other, 0, 0
resume:
    cmp     qword ptr [rip + {resume}], 0
    je      3f
    mov     rsp, [rip + {resume} + 8]
    jmp     [rip + {resume}]
3:  mov     rdi, r11
    mov     rsi, r10
    mov     rdx, [rsp]
    mov     rcx, cr2
    lea     rsp, [rip + _stack]
    call    {unexpected}

    .section .user, "ax"
user_load:
    mov     rax, [rdi]
    int     0x80
    .balign 16
user_store:
    mov     [rdi], rax
    int     0x80

    .section .data.boot, "aw"
    .balign 8
boot_gdt:
    .quad   0
    .quad   0x00af9a000000ffff      # The kernel's code and data, the user's data and code.
    .quad   0x00cf92000000ffff
    .quad   0x00cff2000000ffff
    .quad   0x00affa000000ffff
boot_task:
    .quad   0, 0
boot_gdt_pointer:
    .word   boot_gdt_pointer - boot_gdt - 1
    .quad   boot_gdt
    .balign 4096
boot_top:
    .quad   boot_node + 3
    .fill   511, 8, 0
boot_node:
    .quad   boot_low + 3
    .fill   511, 8, 0
boot_low:
    .quad   boot_pages + 3
    .fill   511, 8, 0
boot_pages:                         # The first gigabyte.
    .set    at, 0x83
    .rept   512
    .quad   at
    .set    at, at + 0x200000
    .endr
    "#,
    five = const (levels::CR4_LA57 != 0) as usize,
    cr4 = const CR4_PAE | CR4_PGE | levels::CR4_LA57,
    efer = const EFER,
    kernel_code = const KERNEL_CODE,
    protection = const PROTECTION,
    page_fault = const PAGE_FAULT,
    trapped = const TRAPPED,
    judge = sym crate::judge,
    resume = sym RESUME,
    unexpected = sym unexpected,
);

unsafe extern "C" {
    // What the assembly above defines, and the linker's script.
    safe fn protection();
    safe fn page_fault();
    safe fn trapped();
    safe fn other();
    safe fn user_load();
    safe fn user_store();
    static mut boot_task: [u64; 2];
    static boot_gdt_pointer: [u8; 10];
    static _user: u8;
}

/// Where an exception comes back to, or 0, and its stack.
static mut RESUME: [usize; 2] = [0; 2];

/// The task state segment: the stack that an exception in ring 3 comes to is its second field.
#[repr(C, packed(4))]
struct Task {
    reserved: u32,
    stack: u64,
    rest: [u32; 23],
}

static mut TASK_STATE: Task = Task { reserved: 0, stack: 0, rest: [0; 23] };
static mut TRAP_STACK: [u64; 64] = [0; 64];
static mut VECTORS: [[u64; 2]; 256] = [[0; 2]; 256];

extern "C" fn unexpected(vector: usize, error: usize, at: usize, address: usize) -> ! {
    let _ = writeln!(Console, "exception {vector}, error {error:#x}, at {at:#x}, address {address:#x}");
    stop("an unexpected exception", 2)
}

/// Writes a byte to a port.
fn out(port: u16, byte: u8) {
    // SAFETY: the ports that are used here are the serial line's and that which ends QEMU.
    unsafe { asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack)) };
}

/// The serial line.
pub(crate) struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| out(0x3f8, byte));
        Ok(())
    }
}

/// Says why, if there is something to say, and ends the machine with an exit code.
pub(crate) fn stop(why: &str, code: u32) -> ! {
    if !why.is_empty() {
        let _ = writeln!(Console, "{NAME}: {why}");
    }
    if code == 0 {
        // SAFETY: the machine's power management: soft off. QEMU ends with 0, which its exit device cannot.
        unsafe { asm!("out dx, ax", in("dx") 0x604u16, in("ax") 0x2000u16, options(nomem, nostack)) };
    } else {
        out(0xf4, code as u8);
    }
    loop {
        core::hint::spin_loop();
    }
}

/// Maps memory one to one, for the kernel runs on this table, and the user's instructions.
pub(crate) fn map_kernel<'n, T: Table<'n>, F: FnMut(&Flush)>(
    table: &mut Local<'n, T, F>,
) -> Result<(), Error> {
    let attr = Attr::READ | Attr::GLOBAL | Attr::ACCESSED | Attr::DIRTY | Attr::EXEC;
    let memory = Pages::count(Vpn::new(MEMORY), MEMORY_PAGES).unwrap_or(Pages::one(Vpn::new(MEMORY)));
    table.map(memory, Pfn::new(MEMORY), PageSize::M2, attr | Attr::WRITE)?;
    let code = Pfn::new((&raw const _user).addr() >> PageSize::K4.shift());
    table.map(Pages::one(Vpn::new(MEMORY_PAGES)), code, PageSize::K4, attr | Attr::USER)
}

/// Tells whether the kernel itself is there, or the user's instructions.
pub(crate) const fn spares(at: usize) -> bool {
    at.wrapping_sub(MEMORY) < (MEMORY_PAGES + 1) << 12
}

/// Makes the table at `root` the one that is walked, and this kernel the one that exceptions come to.
pub(crate) fn enter(root: NodeAddr) {
    let gate = |handler: extern "C" fn(), ring: u64| {
        let at = handler as usize as u64;
        let low = at & 0xffff
            | u64::from(KERNEL_CODE) << 16
            | (0x8e00 | ring << 13) << 32
            | (at >> 16 & 0xffff) << 48;
        [low, at >> 32]
    };
    let pointer = |at: usize, bytes: usize| {
        let mut pointer = [0u8; 10];
        pointer[..2].copy_from_slice(&(bytes as u16 - 1).to_le_bytes());
        pointer[2..].copy_from_slice(&at.to_le_bytes());
        pointer
    };
    // SAFETY: there is one CPU, and it is here once; the tables are statics; the kernel is mapped one to one, so that the
    // next instruction is where it was.
    unsafe {
        let vectors = &raw mut VECTORS;
        for vector in 0..256 {
            (*vectors)[vector] = match vector {
                PROTECTION => gate(protection, 0),
                PAGE_FAULT => gate(page_fault, 0),
                TRAPPED => gate(trapped, 3),
                _ => gate(other, 0),
            };
        }
        let vectors = pointer(vectors.addr(), size_of::<[[u64; 2]; 256]>());
        asm!("lidt [{}]", in(reg) &vectors);
        let stack = (&raw mut TRAP_STACK).add(1).addr() as u64;
        ptr::write_unaligned(&raw mut TASK_STATE.stack, stack);
        let task = (&raw const TASK_STATE).addr() as u64;
        let bytes = size_of::<Task>() as u64 - 1;
        boot_task = [bytes | (task & 0xff_ffff) << 16 | 0x89 << 40 | (task >> 24 & 0xff) << 56, task >> 32];
        // The table that the processor has is this one; the pointer covers it to its end.
        asm!("lgdt [{}]", in(reg) &raw const boot_gdt_pointer);
        asm!("ltr {0:x}", in(reg) TASK);
        asm!("mov {0}, cr4", "or {0}, {bits}", "mov cr4, {0}", "mov cr3, {root}",
            out(reg) _, bits = const CR4_SMEP | CR4_SMAP | CR4_PKE, root = in(reg) root.get());
        if KEYS {
            // IA32_PAT; then PKRU.
            asm!("wrmsr", in("ecx") 0x277, in("eax") Format::IA32_PAT as u32, in("edx") (Format::IA32_PAT >> 32) as u32);
            asm!("wrpkru", in("ecx") 0, in("eax") PKRU, in("edx") 0);
        }
    }
}

/// Runs the space of the table at `root`. Without PCIDs the number is nothing to the processor.
pub(crate) fn switch(root: NodeAddr, _number: usize) {
    // SAFETY: each table maps the kernel one to one.
    unsafe { asm!("mov cr3, {0}", in(reg) root.get()) };
}

/// Tells the processor what has changed in a space.
pub(crate) fn flush_of(flush: &Flush, _number: usize) {
    self::flush(flush);
}

/// Nothing: the switch has made the processor forget.
pub(crate) const fn forget(_number: usize) {}

/// Tells the processor what has changed.
pub(crate) fn flush(flush: &Flush) {
    // SAFETY: forgetting translations is always allowed here.
    unsafe {
        match flush.by_address(Format::WALK_CACHE, 512) {
            Some(pages) => {
                for page in pages {
                    asm!("invlpg [{0}]", in(reg) page.address(PageSize::K4).get());
                }
            }
            // A change of CR4.PGE forgets everything, the global translations too.
            None => asm!(
                "mov {old}, cr4", "mov {new}, {old}", "xor {new}, {pge}", "mov cr4, {new}", "mov cr4, {old}",
                old = out(reg) _, new = out(reg) _, pge = const CR4_PGE,
            ),
        }
    }
}

/// Returns what the manual says of an access to a page with these attributes (4.6.1).
pub(crate) fn rules(attr: Attr, access: Access, mode: Mode) -> Result<(), Fault> {
    let user = attr.contains(Attr::USER);
    let in_reach = match (access, mode) {
        (_, Mode::User) => user,
        // SMEP.
        (Access::Fetch, _) => !user,
        (_, Mode::Kernel) => true,
        (_, Mode::KernelNever) => !user,
    };
    let right = match access {
        Access::Load => Attr::READ,
        Access::Store => Attr::WRITE,
        Access::Fetch => Attr::EXEC,
    };
    // A key is about data of the user's pages, whatever privilege accesses them; CR0.WP is on.
    let denied = PKRU >> (2 * u32::from(attr.key()));
    let (disabled, read_only) = (denied & 1 != 0, denied & 2 != 0);
    let kept = user && access != Access::Fetch && (disabled || read_only && access == Access::Store);
    let in_reach = in_reach && !kept;
    // Every processor of this kind sets A and D.
    if in_reach && attr.contains(right) && crate::mmu_marks() { Ok(()) } else { Err(Fault::Forbidden) }
}

/// Nothing: this processor does not tell where an address is.
pub(crate) const fn ask(_at: VirtAddr, _access: Access, _mode: Mode) -> Option<Option<usize>> {
    None
}

/// Nothing: nor of which type the memory is.
pub(crate) const fn is_typed(_at: VirtAddr, _access: Access, _mode: Mode, _attr: Attr) -> Option<bool> {
    None
}

/// Makes one access and returns what was loaded, or the fault.
pub(crate) fn access(at: VirtAddr, access: Access, mode: Mode, value: usize) -> Result<usize, Fault> {
    let user = |code: extern "C" fn()| USER + (code as usize & PageSize::K4.mask());
    let (vector, error): (usize, usize);
    let mut value = value;
    /// Writes an access that an exception ends at label 3; r11 is 0 if none does.
    macro_rules! attempt {
        ($access:literal, $($operands:tt)*) => {
            asm!(
                "lea r10, [rip + 3f]", "mov [rip + {resume}], r10", "mov [rip + {resume} + 8], rsp",
                "xor r10d, r10d", "xor r11d, r11d",
                $access,
                "3: clac", "mov qword ptr [rip + {resume}], 0",
                resume = sym RESUME, out("r10") error, out("r11") vector, inout("rax") value,
                $($operands)*
            )
        };
    }
    // SAFETY: translation is what is judged: a load and a store of a mapped word reach the pool alone, which holds no
    // Rust object; what is fetched there traps at once. An exception comes back to label 3 with r10 and r11 changed and
    // the stack as it was.
    unsafe {
        match (access, mode) {
            (Access::Load, Mode::Kernel) => attempt!("stac
mov rax, [{at}]", at = in(reg) at.get()),
            (Access::Load, Mode::KernelNever) => attempt!("mov rax, [{at}]", at = in(reg) at.get()),
            (Access::Store, Mode::Kernel) => attempt!("stac
mov [{at}], rax", at = in(reg) at.get()),
            (Access::Store, Mode::KernelNever) => attempt!("mov [{at}], rax", at = in(reg) at.get()),
            (Access::Fetch, Mode::Kernel | Mode::KernelNever) => attempt!("jmp {at}", at = in(reg) at.get()),
            (_, Mode::User) => {
                let to = match access {
                    Access::Load => user(user_load),
                    Access::Store => user(user_store),
                    Access::Fetch => at.get(),
                };
                attempt!(
                    "push {data}\npush rsp\npush 2\npush {code}\npush {to}\niretq",
                    data = const USER_DATA, code = const USER_CODE, to = in(reg) to, in("rdi") at.get()
                );
            }
        }
    }
    let complain = |what: &str| -> ! {
        let _ = writeln!(Console, "{access:?} at {at} in {mode:?}: vector {vector}, error {error:#x}");
        stop(what, 1)
    };
    let is_canonical = Shape::VA_BITS == usize::BITS || crate::Space::of::<Shape>().holds(at);
    match vector {
        0 if access != Access::Fetch && mode != Mode::User => Ok(value),
        TRAPPED if access == Access::Fetch || mode == Mode::User => Ok(value),
        PROTECTION if !is_canonical => Err(Fault::Absent),
        PAGE_FAULT => {
            // P is the fault's own; W, U and I are the access's.
            let of = usize::from(access == Access::Store) << 1
                | usize::from(mode == Mode::User) << 2
                | usize::from(access == Access::Fetch) << 4;
            match error ^ of {
                0 => Err(Fault::Absent),
                1 => Err(Fault::Forbidden),
                // PK: the key does not allow it.
                0x21 if KEYS => Err(Fault::Forbidden),
                _ => complain("a fault of another access"),
            }
        }
        _ => complain("a fault that is none of translation"),
    }
}
