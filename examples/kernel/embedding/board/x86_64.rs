//! x86-64: from QEMU to the kernel, as a boot loader hands it over, and its page faults. SMAP is off, so ring 0 loads and stores in user
//! pages.

use core::arch::{asm, global_asm};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tlbkit::{Access, VirtAddr};

/// The machine's name.
pub(crate) const NAME: &str = "x86_64";

/// The kernel's segments.
const CODE: u16 = 0x08;
const DATA: u16 = 0x10;

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
_start:                             # Protected mode, nothing translated.
    lgdt    [boot_gdt_pointer]
    mov     eax, {data}
    mov     ds, eax
    mov     es, eax
    mov     ss, eax
    mov     eax, 0x20               # CR4: PAE.
    mov     cr4, eax
    mov     eax, offset boot_root
    mov     cr3, eax
    mov     ecx, 0xc0000080         # EFER: LME, NXE.
    rdmsr
    or      eax, 0x900
    wrmsr
    mov     eax, 0x80010035         # CR0: PG, WP, NE, ET, EM, PE.
    mov     cr0, eax
    .byte   0xea                    # A far jump to 64 bits.
    .long   long_mode
    .word   {code}
    .code64
long_mode:
    movabs  rax, offset high
    jmp     rax

boot_gdt_pointer:
    .word   boot_gdt_pointer_end - boot_gdt - 1
    .long   boot_gdt
    .balign 8
boot_gdt:
    .quad   0
    .quad   0x00af9a000000ffff
    .quad   0x00cf92000000ffff
boot_gdt_pointer_end:
    .balign 4096
boot_root:                          # The first gigabyte: where it is, at the offset, and at the image.
    .quad   boot_memory + 3
    .fill   255, 8, 0
    .quad   boot_memory + 3
    .fill   254, 8, 0
    .quad   boot_image + 3
boot_memory:
    .quad   boot_pages + 3
    .fill   511, 8, 0
boot_image:
    .fill   510, 8, 0
    .quad   boot_pages + 3, 0
boot_pages:
    .set    page, 0
    .rept   512
    .quad   page * 0x200000 + 0x83
    .set    page, page + 1
    .endr

    .section .text
high:
    lea     rsp, [rip + _stacks + 0x10000]
    lea     rdi, [rip + _bss]
    lea     rcx, [rip + _bss_end]
    sub     rcx, rdi
    shr     rcx, 3
    xor     eax, eax
    cld
    rep     stosq
    call    {start}

    # A page fault of the kernel's own access to a user page: rax, rcx and so on, the error code, rip.
page_fault:
    .irp    register, rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11
    push    \register
    .endr
    mov     rdi, [rsp + 72]
    mov     rsi, cr2
    cld
    call    {fault}
    add     [rsp + 80], rax
    .irp    register, r11, r10, r9, r8, rdi, rsi, rdx, rcx, rax
    pop     \register
    .endr
    add     rsp, 8
    iretq
exception:
    mov     rdi, [rsp]
    mov     rsi, [rsp + 8]
    and     rsp, -16
    call    {unexpected}
    "#,
    code = const CODE,
    data = const DATA,
    start = sym start,
    fault = sym fault,
    unexpected = sym unexpected,
);

static SEGMENTS: [AtomicU64; 3] =
    [AtomicU64::new(0), AtomicU64::new(0x00af_9a00_0000_ffff), AtomicU64::new(0x00cf_9200_0000_ffff)];
static VECTORS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; _];

/// Makes the kernel's own segments and vectors those of the CPU.
extern "C" fn start() -> ! {
    let (exception, page_fault): (u64, u64);
    // SAFETY: it computes addresses.
    unsafe {
        asm!("lea {}, [rip + exception]", "lea {}, [rip + page_fault]", out(reg) exception, out(reg) page_fault);
    }
    for (vector, entry) in VECTORS.chunks(2).enumerate() {
        let at = if vector == 14 { page_fault } else { exception };
        // An interrupt gate: interrupts are masked behind it.
        entry[0]
            .store(at & 0xffff | u64::from(CODE) << 16 | 0x8e00 << 32 | (at >> 16 & 0xffff) << 48, Relaxed);
        entry[1].store(at >> 32, Relaxed);
    }
    let pointer = |table: &'static [AtomicU64]| {
        let at = table.as_ptr().addr();
        [size_of_val(table) as u16 - 1, at as u16, (at >> 16) as u16, (at >> 32) as u16, (at >> 48) as u16]
    };
    let (segments, vectors) = (pointer(&SEGMENTS), pointer(&VECTORS));
    // SAFETY: the tables are statics, and the segments are those that are loaded.
    unsafe { asm!("lgdt [{}]", "lidt [{}]", in(reg) &segments, in(reg) &vectors, options(nostack)) };
    // The firmware's last line has no end.
    let _ = fmt::Write::write_str(&mut Console, "\n");
    crate::run()
}

/// Resolves a page fault. Returns how many bytes of instructions are left out.
extern "C" fn fault(error: u64, at: usize) -> usize {
    if crate::fault(VirtAddr::new(at), Access::from_x86_64(error)) { 0 } else { 3 }
}

extern "C" fn unexpected(first: usize, second: usize) -> ! {
    panic!("an exception, on its stack {first:#x} and {second:#x}")
}

/// Loads a word of the process's; anything if it must not.
pub(crate) fn load(at: usize) -> u64 {
    let word: u64;
    // SAFETY: a load of a user page, or a fault that goes on behind it: of three bytes.
    unsafe { asm!("mov rax, [rcx]", out("rax") word, in("rcx") at) };
    word
}

/// Stores a word of the process's, unless it must not.
pub(crate) fn store(at: usize, word: u64) {
    // SAFETY: a store to a user page, which holds no Rust object, or a fault that goes on behind it: of three bytes.
    unsafe { asm!("mov [rcx], rax", in("rax") word, in("rcx") at) };
}

/// The serial line.
pub(crate) struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the port is the serial line's.
            unsafe {
                asm!("out dx, al", in("dx") 0x3f8u16, in("al") byte, options(nostack, preserves_flags))
            };
        }
        Ok(())
    }
}

/// Ends the machine: soft off, of its power management.
pub(crate) fn stop() -> ! {
    // SAFETY: it is the end.
    unsafe { asm!("out dx, ax", in("dx") 0x604u16, in("ax") 0x2000u16, options(nostack)) };
    loop {
        core::hint::spin_loop();
    }
}
