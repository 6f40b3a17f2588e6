//! Exceptions in the interpreter: when one is taken, what it says, and how it ends (MIPS Architecture for Programmers, volume
//! III; MIPS R4000 User's Manual, chapters 4 and 5).

use crate::guest::{CODE, CPUS, Cpu, K, KSEG0, Ram, assemble, nth};
use tlbkit_refill::asm::{Asm, Cp0, K0, K1, ZERO};
use tlbkit_refill::features::{Features, Isa};
use tlbkit_refill::interp::{Access, Cause, Machine, State, Stop, Windows};

const MIPS3: Features = Features::MIPS3;

const AT: u64 = 0x1234_5678;

/// Returns a CPU in user mode, in the space with ASID 0x5a, with something in every register that an exception writes.
fn user(ram: &Ram, features: Features) -> Cpu<'_> {
    let mut cpu = ram.cpu(features, &[]);
    (cpu.pc, cpu.cp0.entry_hi) = (0x0040_0000, 0xffff_e05a);
    (cpu.cp0.context, cpu.cp0.xcontext) = (0xffff_ffff_80f0_1230, 0xabcd_ef83_1111_1110);
    (cpu.cp0.status, cpu.cp0.cause) = (0x1000_0001, 0x8000_1070);
    cpu
}

#[test]
fn an_exception_says_what_happened() {
    let ram = Ram::new();
    let causes = [
        (Cause::Refill(Access::Load), 2),
        (Cause::Refill(Access::Store), 3),
        (Cause::Invalid(Access::Load), 2),
        (Cause::Invalid(Access::Store), 3),
        (Cause::Modified, 1),
    ];
    for features in CPUS {
        for (cause, code) in causes {
            let mut cpu = user(&ram, features);
            cpu.raise(cause, AT);
            let vector = match cause {
                Cause::Refill(_) if features.isa == Isa::Mips3 => 0x80,
                Cause::Refill(_) => 0,
                _ => 0x180,
            };
            assert_eq!(cpu.pc, KSEG0 + vector, "{cause:?} {features:?}");
            assert_eq!(cpu.cp0.bad_vaddr, AT);
            assert_eq!(cpu.cp0.context, 0xffff_ffff_8080_0000 | AT >> 13 << 4);
            assert_eq!(cpu.cp0.entry_hi, AT >> 13 << 13 | 0x5a);
            assert_eq!(cpu.cp0.epc, 0x0040_0000);
            assert_eq!(cpu.cp0.cause, code << 2, "no delay slot, and the code");
            assert_eq!(cpu.cp0.status, 0x1000_0003, "EXL");
            assert_eq!((cpu.counts.exceptions, cpu.counts.nested), (1, 0));
        }
    }
}

#[test]
fn an_exception_of_64_bits() {
    let ram = Ram::new();
    // Its region, the number of its pair, and what lies between and has no room.
    let at = 0xcfff_f012_3456_7abc;
    let mut cpu = user(&ram, MIPS3);
    cpu.raise(Cause::Refill(Access::Load), at);
    assert_eq!(cpu.cp0.bad_vaddr, at);
    assert_eq!(cpu.cp0.entry_hi, 0xcfff_f012_3456_605a);
    // BadVPN2 is bits 39 to 13, R is bits 63 and 62; PTEBase stays.
    let pair = (at >> 13 & 0x7ff_ffff) << 4;
    assert_eq!(cpu.cp0.xcontext, 0xabcd_ef82_0000_0000 | 3 << 31 | pair);
    assert_eq!(cpu.cp0.context & 0x7f_ffff, (at >> 13 & 0x7_ffff) << 4);
}

#[test]
fn an_exception_within_another_leaves_the_way_back_alone() {
    let ram = Ram::new();
    for (cause, code) in [(Cause::Refill(Access::Load), 2), (Cause::Modified, 1)] {
        let mut cpu = user(&ram, Features::R2);
        cpu.cp0.status |= State::EXL;
        cpu.cp0.epc = 0x0055_5550;
        cpu.raise(cause, AT);
        cpu.raise(cause, AT + 0x2000);
        // A refill, too, goes to the general vector.
        assert_eq!((cpu.pc, cpu.cp0.epc), (KSEG0 + 0x180, 0x0055_5550));
        assert_eq!(cpu.cp0.cause, 0x8000_1000 | code << 2, "all but the code");
        assert_eq!(cpu.cp0.bad_vaddr, AT + 0x2000);
        assert_eq!((cpu.counts.exceptions, cpu.counts.nested), (2, 2));
    }
}

#[test]
fn an_exception_in_a_delay_slot_is_the_branchs() {
    let ram = Ram::new();
    let code = assemble(Features::R2, |a| {
        let end = a.label();
        a.nop();
        a.b(end);
        a.lw(K0, 0x100, ZERO);
        a.bind(end);
        a.lw(K0, 0x100, ZERO);
    });
    let mut cpu = ram.cpu(Features::R2, code.words());
    assert_eq!(cpu.run(3), Stop::Limit);
    assert_eq!((cpu.pc, cpu.cp0.epc, cpu.cp0.cause), (KSEG0, nth(1), 1 << 31 | 2 << 2));
    assert_eq!(cpu.cp0.bad_vaddr, 0x100);
    assert_eq!((cpu.counts.instructions, cpu.counts.loads), (3, 0), "the load did not happen");
    // The branch is forgotten: the handler's first instruction is followed by its second.
    assert_eq!((cpu.run(1), cpu.pc), (Stop::Limit, KSEG0 + 4));

    let mut cpu = ram.cpu(Features::R2, code.words());
    cpu.pc = nth(3);
    assert_eq!(cpu.run(1), Stop::Limit);
    assert_eq!((cpu.pc, cpu.cp0.epc, cpu.cp0.cause), (KSEG0, nth(3), 2 << 2));
}

#[test]
fn an_exception_is_a_barrier() {
    let ram = Ram::new();
    let code = assemble(Features::R2, |a| {
        a.mtc0(K0, Cp0::EntryLo0);
        a.sw(K0, 0x100, ZERO);
    });
    let handler = assemble(Features::R2, |a| {
        a.mfc0(K1, Cp0::EntryLo0);
        a.b_to_itself();
    });
    ram.put(0, handler.words());
    let mut cpu = ram.cpu(Features::R2, code.words());
    cpu.gpr[K[0]] = 0x1e;
    assert_eq!((cpu.run(3), cpu.gpr[K[1]]), (Stop::Limit, 0x1e));
    assert_eq!((cpu.cp0.cause, cpu.counts.stores), (3 << 2, 0));
}

/// The general vector's own first instruction misses, while EXL is set: it is there again, for ever.
#[test]
fn an_exception_at_the_vector_is_taken() {
    let ram = Ram::new();
    ram.put(0x180, assemble(Features::R2, |a| a.lw(K0, 0x100, ZERO)).words());
    let mut cpu = ram.cpu(Features::R2, &[]);
    (cpu.pc, cpu.cp0.status) = (KSEG0 + 0x180, State::EXL);
    assert_eq!((cpu.run(5), cpu.pc), (Stop::Limit, KSEG0 + 0x180));
    assert_eq!((cpu.counts.exceptions, cpu.counts.nested), (5, 5));
}

#[test]
fn fetching_misses_too() {
    let ram = Ram::new();
    let mut cpu = user(&ram, Features::R2);
    cpu.step().unwrap();
    assert_eq!((cpu.pc, cpu.cp0.epc, cpu.cp0.bad_vaddr), (KSEG0, 0x0040_0000, 0x0040_0000));
    assert_eq!((cpu.cp0.cause, cpu.counts.instructions), (2 << 2, 0), "as a load, and nothing was executed");
}

/// Puts a handler at the refill vector.
fn with_handler(ram: &Ram, code: impl FnOnce(&mut Asm)) {
    ram.put(0, assemble(Features::R2, code).words());
}

#[test]
fn accesses_are_tried_again_until_they_are_served() {
    let ram = Ram::new();
    let new = || {
        let mut cpu = user(&ram, Features::R2);
        (cpu.stop, cpu.cp0.status) = (KSEG0 + 0x180, 0);
        cpu
    };
    let served = |lo: u16| {
        move |a: &mut Asm| {
            a.addiu(K0, ZERO, lo as i16);
            a.mtc0(K0, Cp0::EntryLo0);
            a.mtc0(K0, Cp0::EntryLo1);
            a.barrier();
            a.tlbwr();
            a.eret();
        }
    };
    with_handler(&ram, served(0x1e));
    let mut cpu = new();
    assert_eq!(cpu.touch(AT, Access::Store), Err(Stop::Returned));
    assert_eq!(cpu.touch(AT, Access::Store), Ok(0x678));
    let mut cpu = new();
    assert_eq!(cpu.settle(AT, Access::Store), Ok(0x678));
    assert_eq!((cpu.counts.exceptions, cpu.pc), (1, 0x0040_0000));

    // A page without D, and one without V: the kernel's turn.
    for (lo, code) in [(0x1a, 1), (0x1c, 3)] {
        with_handler(&ram, served(lo));
        let mut cpu = new();
        assert_eq!(cpu.settle(AT, Access::Store), Err(Stop::Reached));
        assert_eq!((cpu.counts.exceptions, cpu.cp0.cause), (2, code << 2));
    }

    // A handler that does nothing, and one that does not end.
    with_handler(&ram, Asm::eret);
    let mut cpu = new();
    assert_eq!(cpu.settle(AT, Access::Load), Err(Stop::Limit));
    assert_eq!(cpu.counts.exceptions, 16);
    with_handler(&ram, |a| a.b_to_itself());
    let mut cpu = new();
    assert_eq!(cpu.touch(AT, Access::Load), Err(Stop::Limit));
    assert_eq!(cpu.counts.instructions, 10_000);
}

#[test]
fn a_run_ends_at_the_stop_but_not_in_a_delay_slot() {
    let code = assemble(Features::R2, |a| {
        let end = a.label();
        a.b(end);
        a.addiu(K0, K0, 1);
        a.bind(end);
        a.addiu(K0, K0, 2);
    });
    let ram = Ram::new();
    let mut cpu = ram.cpu(Features::R2, code.words());
    cpu.stop = nth(1);
    assert_eq!(cpu.run(2), Stop::Limit);
    assert_eq!((cpu.gpr[K[0]], cpu.pc), (1, nth(2)));
    cpu.stop = nth(2);
    assert_eq!(cpu.run(0), Stop::Reached, "before the limit");
    assert_eq!((cpu.gpr[K[0]], cpu.counts.instructions), (1, 2));
    assert_eq!(cpu.pc, KSEG0 + CODE as u64 + 8);
}

/// A branch to itself, and its delay slot.
trait Forever {
    fn b_to_itself(&mut self);
}

impl Forever for Asm {
    fn b_to_itself(&mut self) {
        let here = self.here();
        self.b(here);
        self.nop();
    }
}

#[test]
fn the_kernels_segments_are_not_translated() {
    // The words are numbered; each window has one.
    let ram = [1, 2, 3, 4].map(|word| {
        let ram = Ram::new();
        ram.put(0, &[word]);
        ram
    });
    let at = [0, 0x1fff_e800, 0x07ff_ffff_ffff_e800, 0x1_2345_6000];
    let windows = std::array::from_fn::<_, 4, _>(|index| ram[index].window(at[index]));
    let memory = Windows(windows);
    let load = |features: Features, address: u64| {
        let mut cpu = Machine::<_, 8>::new(features, memory);
        // The code is somewhere that is mapped, and so not in the way.
        ram[0].put(CODE, assemble(features, |a| a.lw(K0, 0, K1)).words());
        (cpu.pc, cpu.gpr[K[1]]) = (nth(0), address);
        cpu.step().unwrap();
        if cpu.counts.exceptions > 0 { Err(cpu.cp0.bad_vaddr) } else { Ok(cpu.gpr[K[0]]) }
    };
    for features in CPUS {
        // kseg0 and kseg1 are the same 512 MiB; below and above them it is mapped.
        assert_eq!(load(features, 0xffff_ffff_8000_0000), Ok(1));
        assert_eq!(load(features, 0xffff_ffff_a000_0000), Ok(1));
        assert_eq!(load(features, 0xffff_ffff_9fff_e800), Ok(2));
        assert_eq!(load(features, 0xffff_ffff_bfff_e800), Ok(2));
        for mapped in [0x7fff_fffc, 0xffff_ffff_c000_0000, 0] {
            assert_eq!(load(features, mapped), Err(mapped));
        }
    }
    // xkphys names all of physical memory, by any cache attribute.
    for attribute in [0x8000_0000_0000_0000, 0x9000_0000_0000_0000, 0xb800_0000_0000_0000] {
        assert_eq!(load(MIPS3, attribute), Ok(1));
        assert_eq!(load(MIPS3, attribute | 0x1_2345_6000), Ok(4));
        assert_eq!(load(MIPS3, attribute | 0x07ff_ffff_ffff_e800), Ok(3));
    }
    for mapped in [0x7fff_ffff_ffff_fffc, 0xc000_0000_0000_0000] {
        assert_eq!(load(MIPS3, mapped), Err(mapped));
    }
    // A CPU of 32 bits has no such segment: an instruction there is missed.
    let mut cpu = Machine::<_, 8>::new(Features::R2, memory);
    cpu.pc = 0x9000_0000_0000_0000 + CODE as u64;
    assert_eq!((cpu.run(1), cpu.cp0.bad_vaddr), (Stop::Limit, 0x9000_0000_0000_0000 + CODE as u64));
}
