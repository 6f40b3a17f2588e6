//! From OpenSBI to the kernel, and what the boot loader hands over in the device tree.

use core::arch::{asm, global_asm};
use core::slice;

use super::{KERNEL as MEMORY, MAPPED_LEN as MEMORY_LEN, SOFTWARE, TIMER, sbi};

global_asm!(
    r#"
    .section .text.boot, "ax"
    .globl _start
    # a0 is the hart, a1 the device tree.
_start:
    la      t0, _bss
    la      t1, _bss_end
1:  bgeu    t0, t1, 2f
    sd      zero, (t0)
    addi    t0, t0, 8
    j       1b
2:  call    hart_stack
    j       {first}

    # As above, on every other hart.
    .balign 4
{entry}:
    call    hart_stack
    j       {other}

hart_stack:
    mv      tp, a0
    la      sp, _stacks
    addi    t0, a0, 1
    slli    t0, t0, 16
    add     sp, sp, t0
    ret
    "#,
    entry = sym entry,
    first = sym first,
    other = sym other,
);

unsafe extern "C" {
    safe fn entry();
}

/// What the boot loader hands over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boot {
    /// The kernel's command line.
    pub(crate) words: &'static str,
    /// The user programs, an ELF file.
    pub(crate) programs: &'static [u8],
}

extern "C" fn first(_hart: usize, tree: usize) -> ! {
    prepare();
    let words = |at: usize, len: usize| {
        assert!(
            at >= MEMORY && len <= MEMORY_LEN && at - MEMORY <= MEMORY_LEN - len,
            "{at:#x} is outside of memory"
        );
        // SAFETY: it is memory that OpenSBI and the boot loader have filled, outside of the kernel, and nobody writes it.
        unsafe { slice::from_raw_parts(at as *const u8, len) }
    };
    let number = |property: &[u8]| property.iter().fold(0, |number, &byte| number << 8 | usize::from(byte));
    let tree = words(tree, number(&words(tree, 8)[4..]));
    let found = |name| property(tree, name).unwrap_or_default();
    let (start, end) = (number(found("linux,initrd-start")), number(found("linux,initrd-end")));
    assert!(start < end, "there are no programs: QEMU takes them as -initrd");
    crate::first(Boot {
        words: str::from_utf8(found("bootargs")).unwrap_or_default().trim_end_matches('\0'),
        programs: words(start, end - start),
    })
}

extern "C" fn other(_hart: usize) -> ! {
    prepare();
    crate::other()
}

/// Lets the interrupts through that user mode takes.
fn prepare() {
    super::trap::prepare();
    // SAFETY: supervisor mode takes no interrupt; user mode takes these two.
    unsafe { asm!("csrw sie, {}", in(reg) SOFTWARE | TIMER, options(nostack)) };
}

/// Starts every other hart below `limit`, and returns how many harts run then.
pub(crate) fn start_others(limit: usize) -> usize {
    let own = super::cpu();
    1 + (0..limit).filter(|&hart| hart != own && sbi::start(hart, entry as *const () as usize)).count()
}

/// Returns a property of the node `chosen` of a flattened device tree, whose nodes have no property of the same name
/// elsewhere: Devicetree Specification 0.4, chapter 5.
fn property<'t>(tree: &'t [u8], wanted: &str) -> Option<&'t [u8]> {
    let word = |at: usize| Some(u32::from_be_bytes(tree.get(at..at + 4)?.try_into().ok()?) as usize);
    let (mut at, strings) = (word(8)?, word(12)?);
    loop {
        let token = word(at)?;
        at += 4;
        match token {
            // A node begins, with its name.
            1 => at += (tree.get(at..)?.iter().position(|&byte| byte == 0)? + 1).next_multiple_of(4),
            // A property: its length and where its name is.
            3 => {
                let (len, name) = (word(at)?, tree.get(strings + word(at + 4)?..)?);
                let value = tree.get(at + 8..at + 8 + len)?;
                if name.split(|&byte| byte == 0).next() == Some(wanted.as_bytes()) {
                    return Some(value);
                }
                at += 8 + len.next_multiple_of(4);
            }
            // The end of a node, or nothing.
            2 | 4 => {}
            _ => return None,
        }
    }
}
