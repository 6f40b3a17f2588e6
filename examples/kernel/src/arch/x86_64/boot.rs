//! From QEMU to the kernel, on each CPU, and what the boot loader hands over.
//!
//! ```text
//!   first CPU   _start: 32 bits (PVH) ------------+--> to_long: paging, 64 bits --> high: a stack
//!   others      trampoline: 16 bits, below 1 MiB -+
//! ```

use core::arch::{asm, global_asm};
use core::slice;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::{BOOT_ROOT, KERNEL, MAPPED_LEN, apic, tables};
use crate::arch::Boot;

/// Where the other CPUs begin: a page below 1 MiB that the firmware has no use for any more.
const TRAMPOLINE: usize = 0x8000;

/// Bits of CR4.
const PAE: u32 = 1 << 5;
pub(super) const PGE: u32 = 1 << 7;
const SMEP: u32 = 1 << 20;
const SMAP: u32 = 1 << 21;

global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long   4, 8, 18                # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz  "Xen"
    .quad   _start

    .section .boot, "awx"
    .code32
    .globl _start
_start:                             # Protected mode, nothing translated; ebx is what the boot loader hands over.
    lgdt    [boot_gdt_pointer]
    jmp     to_long

    .code16
trampoline:                         # Real mode, at the page that the interrupt has named.
    cli
    xor     ax, ax
    mov     ds, ax
    .byte   0x0f, 0x01, 0x16        # lgdt, of 24 bits.
    .word   {trampoline} + boot_gdt_pointer - trampoline
    mov     eax, cr0
    or      al, 1
    mov     cr0, eax
    .byte   0x66, 0xea              # A far jump to 32 bits.
    .long   other_cpu
    .word   {code_32}
boot_gdt_pointer:
    .word   boot_gdt_pointer_end - boot_gdt - 1
    .long   boot_gdt
trampoline_end:

    .code32
other_cpu:
    xor     ebx, ebx
to_long:
    mov     eax, {kernel_data}
    mov     ds, eax
    mov     es, eax
    mov     ss, eax
    mov     eax, {cr4}
    mov     cr4, eax
    mov     eax, offset boot_root
    mov     cr3, eax
    mov     ecx, 0xc0000080         # EFER: LME, NXE.
    rdmsr
    or      eax, 0x900
    wrmsr
    mov     eax, 0x80010035         # CR0: PG, WP, NE, ET, EM, PE. Threads have no x87 registers: none are saved.
    mov     cr0, eax
    .byte   0xea                    # A far jump to 64 bits.
    .long   long_mode
    .word   {kernel_code}
    .code64
long_mode:
    movabs  rax, offset {high}
    jmp     rax

    .balign 8
boot_gdt:                           # As `tables::GDT` begins, and a segment of 32 bits.
    .quad   0
    .quad   0x00af9a000000ffff
    .quad   0x00cf92000000ffff
    .quad   0, 0
    .quad   0x00cf9a000000ffff
boot_gdt_pointer_end:
    .balign 4096
boot_root:                          # The first gigabyte where it is, and the kernel's half.
    .quad   boot_upper + 3
    .fill   255, 8, 0
    .quad   boot_upper + 3
    .fill   255, 8, 0
boot_upper:
    .quad   boot_memory + 3, 0, 0, boot_devices + 3
    .fill   508, 8, 0
boot_memory:
    .set    page, 0
    .rept   512
    .quad   page * 0x200000 + 0x83
    .set    page, page + 1
    .endr
boot_devices:                       # The local APIC's 2 MiB, not cached.
    .fill   503, 8, 0
    .quad   0xfee0009b
    .fill   8, 8, 0

    .section .text
{high}:
    mov     r12d, ebx
    mov     eax, 1
    cpuid
    shr     ebx, 24                 # Which CPU is this? Its local APIC's number.
    cmp     ebx, 8
    jae     3f
    lea     rsp, [rip + _stacks]
    lea     eax, [rbx + 1]
    shl     eax, 16
    add     rsp, rax
    mov     edi, ebx
    test    r12d, r12d
    jz      2f
    lea     rdi, [rip + _bss]
    lea     rcx, [rip + _bss_end]
    sub     rcx, rdi
    shr     rcx, 3
    xor     eax, eax
    cld
    rep     stosq
    mov     edi, ebx
    mov     esi, r12d
    call    {first}
2:  call    {other}
3:  hlt
    jmp     3b
    "#,
    trampoline = const TRAMPOLINE,
    code_32 = const 0x28,
    kernel_code = const tables::KERNEL_CODE,
    kernel_data = const 0x10,
    cr4 = const PAE | PGE,
    high = sym high,
    first = sym first,
    other = sym other,
);

unsafe extern "C" {
    safe fn high();
}

/// Returns what the boot loader has left in memory.
fn left(at: usize, len: usize) -> &'static [u8] {
    assert!(len <= MAPPED_LEN && at <= MAPPED_LEN - len, "{at:#x} is outside of memory");
    // SAFETY: it is memory that the boot loader has filled, outside of the kernel, and nothing writes it.
    unsafe { slice::from_raw_parts(core::ptr::with_exposed_provenance(KERNEL + at), len) }
}

extern "C" fn first(cpu: usize, start_info: usize) -> ! {
    tables::prepare();
    prepare(cpu);
    // The firmware's last line has no end.
    crate::report::say(format_args!(""));
    let root: usize;
    // SAFETY: it reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nomem, nostack, preserves_flags)) };
    BOOT_ROOT.store(root, Ordering::Relaxed);
    let number = |at: usize, len: usize| {
        left(at, len).iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    // The structure of PVH: a magic number, how many modules there are, where they are described, and the command line.
    assert_eq!(number(start_info, 4), 0x336e_c578, "the boot loader has handed over something else");
    assert!(number(start_info + 12, 4) > 0, "there are no programs: QEMU takes them as -initrd");
    let [module, words] = [16, 24].map(|field| number(start_info + field, 8));
    let words = left(words, 4096).split(|&byte| byte == 0).next().unwrap_or_default();
    crate::first(Boot {
        words: str::from_utf8(words).unwrap_or_default(),
        programs: left(number(module, 8), number(module + 8, 8)),
    })
}

/// The CPUs that have come to the kernel, a bit each.
static STARTED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn other(cpu: usize) -> ! {
    prepare(cpu);
    STARTED.fetch_or(1 << cpu, Ordering::Release);
    crate::other()
}

/// Makes a CPU ready for traps and interrupts, and keeps the kernel from the user's pages where the CPU can.
fn prepare(cpu: usize) {
    tables::load(cpu);
    let features = core::arch::x86_64::__cpuid_count(7, 0).ebx;
    let bits = if features >> 7 & 1 == 1 { SMEP } else { 0 } | if features >> 20 & 1 == 1 { SMAP } else { 0 };
    // SAFETY: the processor has what is switched on; no page of the kernel's is the user's.
    unsafe {
        asm!("mov {0}, cr4", "or {0}, {1}", "mov cr4, {0}", out(reg) _, in(reg) u64::from(bits), options(nostack));
    }
    apic::prepare();
}

/// Starts every other CPU below `limit` that answers, and returns how many run then.
pub(crate) fn start_others(limit: usize) -> usize {
    let (from, to): (usize, usize);
    // SAFETY: it computes addresses.
    unsafe {
        asm!("movabs {}, offset trampoline", "movabs {}, offset trampoline_end", out(reg) from, out(reg) to);
    }
    let code = left(from, to - from);
    let page: *mut u8 = core::ptr::with_exposed_provenance_mut(KERNEL + TRAMPOLINE);
    // SAFETY: nothing else is at that page, and no CPU is there yet.
    unsafe { page.copy_from_nonoverlapping(code.as_ptr(), code.len()) };
    (1..limit).fold(1, |running, cpu| {
        let has_started = || STARTED.load(Ordering::Acquire) >> cpu & 1 == 1;
        apic::start(cpu, TRAMPOLINE, has_started);
        running + usize::from(has_started())
    })
}
