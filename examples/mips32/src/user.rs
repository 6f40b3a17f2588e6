//! Programs: a few instructions each, which run wherever they are mapped.
//!
//! They lie together in the image and are copied to a frame at boot. The kernel starts one by its offset there.
//!
//! | in | means |
//! |-|-|
//! | `v0` | the system call's number: [`DONE`], or another, which goes on behind it |
//! | `a0` .. `a3` | its arguments |

use core::arch::global_asm;

use tlbkit_addr::{Attr, PageSize, Pfn};
use tlbkit_malta::trap::{Frame, SYSCALL, code, enter};
use tlbkit_malta::{KSEG0, vectors};

use crate::machine::{self, Space};
use crate::tables::{Nodes, Structure};

/// Where the programs' page is, in every address space that runs one.
pub const CODE: u32 = 0x0040_0000;

/// The system call that ends a program: `a0` is what it found wrong.
pub const DONE: u32 = 1;
/// Write-protects one page of another space, at `a0`.
pub const PROTECT: u32 = 2;
/// Makes that page writable again.
pub const UNPROTECT: u32 = 3;
/// Write-protects a range of `a1` pages from `a0` on.
pub const PROTECT_ALL: u32 = 4;

unsafe extern "C" {
    static user_begin: u8;
    static user_end: u8;
    static user_message: u8;
    static user_list: u8;
    static user_serve: u8;
}

/// A program.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// Sends one message.
    Message,
    /// Makes the system call `a2` for each of `a1` words at `a0`.
    List,
    /// Serves messages for ever: touches its stack, its message buffer at `a3` and `a1` words at random in 4 MB from
    /// `a0` on, adds one to the message in `v0`, and sends it. `a2` is where its random numbers start.
    Serve,
}

impl Program {
    /// Returns the address at which it begins.
    pub fn entry(self) -> u32 {
        let at = match self {
            Self::Message => &raw const user_message,
            Self::List => &raw const user_list,
            Self::Serve => &raw const user_serve,
        };
        CODE + (at.addr() - (&raw const user_begin).addr()) as u32
    }
}

/// Returns a frame with the programs.
pub fn install() -> Pfn {
    let frame = machine::take();
    let (begin, end) = (&raw const user_begin, &raw const user_end);
    let bytes = end.addr() - begin.addr();
    assert!(bytes <= PageSize::K4.bytes(), "the programs have one page");
    let to = KSEG0 + frame.address(PageSize::K4).get();
    // SAFETY: the image has the bytes, and the frame was just taken. Before anything runs there the instruction cache is told.
    unsafe { core::ptr::copy_nonoverlapping(begin, core::ptr::with_exposed_provenance_mut(to), bytes) };
    vectors::written(to, bytes);
    frame
}

/// A program and its address space.
pub struct Task<S: Structure> {
    pub space: Space<S>,
    frame: Frame,
}

impl<S: Structure> Task<S> {
    /// Returns a program that is about to begin. It shares the frame of the `code`.
    pub fn new(nodes: &'static Nodes<S::Window>, code: Pfn, program: Program, arguments: [u32; 4]) -> Self {
        let mut space = Space::new(nodes);
        space.map_page(CODE, code, Attr::empty()).expect("nothing is there");
        let mut frame = Frame::new(program.entry(), 0);
        frame.registers[4..8].copy_from_slice(&arguments);
        Self { space, frame }
    }

    /// Runs the program until it asks for something: `v0` and `a0`. It will go on behind it.
    pub fn run(&mut self) -> (u32, u32) {
        self.space.activate();
        // SAFETY: the frame is a program's, and its address space is current.
        unsafe { enter(&raw mut self.frame) };
        let Frame { cause, bad_vaddr, .. } = self.frame;
        assert!(code(cause) == SYSCALL, "a program stops with {cause:#x} at {bad_vaddr:#x}");
        self.frame.pc += 4;
        (self.frame.registers[2], self.frame.registers[4])
    }
}

global_asm!(
    ".set push",
    ".set noreorder",
    ".set mips32r2",
    ".section .rodata",
    ".balign 4",
    "user_begin:",
    "user_message:",
    "li $v0, {done}",
    "b 9f",
    "move $a0, $zero",
    "",
    "user_list:",
    "move $s0, $a0",
    "move $s1, $a1",
    "2:",
    "lw $a0, 0($s0)",
    "move $v0, $a2",
    "syscall",
    "addiu $s1, $s1, -1",
    "bnez $s1, 2b",
    "addiu $s0, $s0, 4",
    "li $v0, {done}",
    "b 9f",
    "move $a0, $zero",
    "",
    "user_serve:",
    "lw $t0, 0($sp)",
    "sw $v0, 0($a3)",
    "move $t1, $a1",
    "lui $t2, 0x19",
    "ori $t2, $t2, 0x660d",
    // A linear congruential generator, of which the upper bits choose the word.
    "3:",
    "mul $a2, $a2, $t2",
    "addiu $a2, $a2, 0x3c6f",
    "srl $t3, $a2, 12",
    "sll $t3, $t3, 2",
    "addu $t3, $t3, $a0",
    "addiu $t1, $t1, -1",
    "bnez $t1, 3b",
    "lw $t3, 0($t3)",
    "lw $v0, 0($a3)",
    "sw $t0, 0($sp)",
    "addiu $v0, $v0, 1",
    "syscall",
    "b user_serve",
    "nop",
    "",
    // The end of every program.
    "9:",
    "syscall",
    "b 9b",
    "nop",
    "user_end:",
    ".set pop",
    done = const DONE,
);
