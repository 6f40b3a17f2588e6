//! Coprocessor 0 in the interpreter: what its registers hold, when a change of them has taken effect, and the TLB's
//! instructions (MIPS Architecture for Programmers, volume III; MIPS R4000 User's Manual, chapter 4).

use crate::guest::{CPUS, K, Ram, assemble, nth, run};
use tlbkit_refill::asm::{Asm, Cp0, K0, K1};
use tlbkit_refill::features::{Features, Isa};
use tlbkit_refill::interp::{Entry, State, Stop};

const MIPS3: Features = Features::MIPS3;

/// The registers that a write changes in all their bits.
const WHOLE: [Cp0; 6] =
    [Cp0::Status, Cp0::Cause, Cp0::Epc, Cp0::ErrorEpc, Cp0::KScratch(2), Cp0::KScratch(4)];

#[test]
fn registers_by_number() {
    let mut known = 0;
    for number in 0..33 {
        for select in 0..9 {
            if let Some(register) = Cp0::from_number(number, select) {
                assert_eq!(register.number(), (number, select), "{register:?}");
                known += 1;
            }
        }
    }
    assert_eq!(known, 14 + 6);
    let manual = [
        (Cp0::Index, 0),
        (Cp0::Random, 1),
        (Cp0::EntryLo0, 2),
        (Cp0::EntryLo1, 3),
        (Cp0::Context, 4),
        (Cp0::PageMask, 5),
        (Cp0::Wired, 6),
        (Cp0::BadVAddr, 8),
        (Cp0::EntryHi, 10),
        (Cp0::Status, 12),
        (Cp0::Cause, 13),
        (Cp0::Epc, 14),
        (Cp0::XContext, 20),
        (Cp0::ErrorEpc, 30),
    ];
    for (register, number) in manual {
        assert_eq!(Cp0::from_number(number, 0), Some(register));
    }
    // KScratch1 to KScratch6.
    assert_eq!(Cp0::from_number(31, 2), Some(Cp0::KScratch(2)));
    assert_eq!(Cp0::from_number(31, 7), Some(Cp0::KScratch(7)));
    assert_eq!(Cp0::from_number(31, 1), None);
}

/// Writes a register that holds `old`, and returns what it holds then.
fn written(features: Features, register: Cp0, old: fn(&mut State), value: u64) -> u64 {
    let ram = Ram::new();
    let code = assemble(features, |a| {
        if features.isa == Isa::Mips3 {
            a.dmtc0(K0, register);
            a.barrier();
            a.dmfc0(K1, register);
        } else {
            a.mtc0(K0, register);
            a.barrier();
            a.mfc0(K1, register);
        }
    });
    let mut cpu = ram.cpu(features, code.words());
    old(&mut cpu.cp0);
    cpu.gpr[K[0]] = value;
    assert_eq!(cpu.run(9), Stop::Reached, "{register:?}");
    cpu.gpr[K[1]]
}

#[test]
fn registers_hold_what_they_have_bits_for() {
    let ones = |register| written(Features::P5600, register, |_| (), u64::MAX);
    assert_eq!(ones(Cp0::Index), 0x3f);
    assert_eq!(ones(Cp0::EntryLo0), 0x3fff_ffff);
    assert_eq!(ones(Cp0::EntryLo1), 0x3fff_ffff);
    assert_eq!(ones(Cp0::PageMask), 0x1fff_e000);
    assert_eq!(ones(Cp0::EntryHi), !0x1f00);
    for register in WHOLE {
        assert_eq!(ones(register), u64::MAX, "{register:?}");
    }
    // One scratch register is none of the others.
    let ([k0, _], stop) = run(Features::P5600, [7, 0], |a| {
        for select in [2, 3, 4] {
            a.mtc0(K0, Cp0::KScratch(select));
            a.addiu(K0, K0, 1);
        }
        a.barrier();
        a.mfc0(K0, Cp0::KScratch(3));
    });
    assert_eq!((k0, stop), (8, Stop::Reached));
}

#[test]
fn the_hardware_keeps_its_part_of_a_register() {
    // PTEBase is the kernel's; the number of the pair that missed is not, and the four bits below are zero.
    let context: fn(&mut State) = |cp0| cp0.context = 0x0012_3450;
    assert_eq!(written(Features::R2, Cp0::Context, context, 0x7fff_ffff), 0x7f92_3450);
    assert_eq!(written(Features::R2, Cp0::Context, context, 0), 0x0012_3450);
    let xcontext: fn(&mut State) = |cp0| cp0.xcontext = 0x1_8765_4320;
    assert_eq!(written(MIPS3, Cp0::XContext, xcontext, u64::MAX), 0xffff_ffff_8765_4320);
    assert_eq!(written(MIPS3, Cp0::XContext, xcontext, 0), 0x1_8765_4320);
    // These are not written at all.
    assert_eq!(written(Features::R2, Cp0::BadVAddr, |cp0| cp0.bad_vaddr = 0x1234, 7), 0x1234);
}

#[test]
fn moves_have_a_width() {
    let value = 0x1234_5678_9abc_def0;
    // A 32-bit move takes the low half, and sign-extends it, both ways.
    let code = |a: &mut Asm| {
        a.mtc0(K0, Cp0::ErrorEpc);
        a.barrier();
        a.dmfc0(K0, Cp0::ErrorEpc);
        a.dmtc0(K1, Cp0::Epc);
        a.barrier();
        a.mfc0(K1, Cp0::Epc);
    };
    let word = 0xffff_ffff_9abc_def0;
    assert_eq!(run(MIPS3, [value, value], code), ([word, word], Stop::Reached));
    assert_eq!(written(MIPS3, Cp0::ErrorEpc, |_| (), value), value);
}

#[test]
fn random_counts_down_to_wired() {
    let ram = Ram::new();
    let code = assemble(Features::R2, |a| (0..20).for_each(|_| a.nop()));
    let mut cpu = ram.cpu(Features::R2, code.words());
    assert_eq!(cpu.cp0.random, 7);
    cpu.cp0.wired = 5;
    let seen: Vec<_> = (0..5)
        .map(|_| {
            cpu.step().unwrap();
            cpu.cp0.random
        })
        .collect();
    assert_eq!(seen, [6, 5, 7, 6, 5]);
    // Writing Wired sets Random to the last entry; one more instruction has been executed then.
    let mut cpu = ram.cpu(Features::R2, assemble(Features::R2, |a| a.mtc0(K0, Cp0::Wired)).words());
    (cpu.gpr[K[0]], cpu.cp0.random) = (3, 4);
    assert_eq!(cpu.run(9), Stop::Reached);
    assert_eq!((cpu.cp0.wired, cpu.cp0.random), (3, 6));
    // No more entries can be wired than leave one.
    assert_eq!(written(Features::R2, Cp0::Wired, |_| (), 9), 7);
}

/// What `tlbwi` and `tlbwr` write, and `tlbr` reads.
const ENTRY: [Cp0; 4] = [Cp0::EntryHi, Cp0::PageMask, Cp0::EntryLo0, Cp0::EntryLo1];

#[test]
fn what_was_written_takes_effect_behind_a_barrier() {
    type Code = fn(&mut Asm);
    type Change = Box<dyn Fn(&mut Asm)>;
    let write = |register| move |a: &mut Asm| a.mtc0(K1, register);
    let mut hazards: Vec<(Change, Code)> = vec![
        (Box::new(write(Cp0::Index)), |a| a.mfc0(K0, Cp0::Index)),
        (Box::new(write(Cp0::ErrorEpc)), |a| a.mfc0(K0, Cp0::ErrorEpc)),
        (Box::new(write(Cp0::EntryHi)), Asm::tlbp),
        (Box::new(write(Cp0::Index)), Asm::tlbr),
        (Box::new(write(Cp0::Index)), Asm::tlbwi),
        (Box::new(Asm::tlbp), |a| a.mfc0(K0, Cp0::Index)),
        (Box::new(Asm::tlbp), Asm::tlbr),
        (Box::new(Asm::tlbp), Asm::tlbwi),
        (Box::new(Asm::tlbr), |a| a.mfc0(K0, Cp0::EntryHi)),
        (Box::new(Asm::tlbr), |a| a.mfc0(K0, Cp0::PageMask)),
        (Box::new(Asm::tlbr), |a| a.mfc0(K0, Cp0::EntryLo0)),
        (Box::new(Asm::tlbr), |a| a.mfc0(K0, Cp0::EntryLo1)),
        (Box::new(write(Cp0::Wired)), Asm::tlbwr),
    ];
    for register in ENTRY {
        hazards.push((Box::new(write(register)), Asm::tlbwi));
        hazards.push((Box::new(write(register)), Asm::tlbwr));
    }
    for cpu in CPUS {
        for (number, (change, read)) in hazards.iter().enumerate() {
            let stop = |between: &dyn Fn(&mut Asm)| {
                run(cpu, [0, 1], |a| {
                    change(a);
                    between(a);
                    read(a);
                })
                .1
            };
            let hazard = |after| Stop::Hazard { pc: nth(after) };
            assert_eq!(stop(&|_| ()), hazard(1), "{number}");
            assert_eq!(stop(&Asm::barrier), Stop::Reached, "{number}, {cpu:?}");
            assert_eq!(stop(&Asm::nop), hazard(2), "{number}");
            // Two cycles do it where they must; where there is `ehb` nothing else does.
            let two = |a: &mut Asm| [Asm::nop, Asm::nop].iter().for_each(|nop| nop(a));
            let waited = if cpu.isa == Isa::R2 { hazard(3) } else { Stop::Reached };
            assert_eq!(stop(&two), waited, "{number}, {cpu:?}");
            // Before release 2 it is a `nop` like others.
            let waited = if cpu.isa == Isa::R2 { Stop::Reached } else { hazard(2) };
            assert_eq!(stop(&Asm::ehb), waited, "{number}, {cpu:?}");
            assert_eq!(stop(&Asm::ssnop), hazard(2), "{number}");
        }
    }
}

#[test]
fn nothing_waits_for_what_was_not_written() {
    let code = |a: &mut Asm| {
        a.mtc0(K1, Cp0::EntryLo0);
        a.mfc0(K0, Cp0::EntryLo1);
        a.mfc0(K0, Cp0::BadVAddr);
        a.tlbp();
        a.mfc0(K0, Cp0::EntryHi);
    };
    assert_eq!(run(Features::R2, [0, 1], code).1, Stop::Reached);
    // Both are remembered, not the last alone.
    let code = |a: &mut Asm| {
        a.mtc0(K1, Cp0::EntryLo0);
        a.mtc0(K1, Cp0::EntryLo1);
        a.mfc0(K0, Cp0::EntryLo0);
    };
    assert_eq!(run(Features::R2, [0, 1], code).1, Stop::Hazard { pc: nth(2) });
    // A second change does not undo the first.
    let code = |a: &mut Asm| {
        a.mtc0(K1, Cp0::EntryLo0);
        a.mtc0(K1, Cp0::EntryLo0);
        a.mfc0(K0, Cp0::EntryLo0);
    };
    assert_eq!(run(Features::R2, [0, 1], code).1, Stop::Hazard { pc: nth(2) });
    // `tlbwr` does not look at Index.
    let code = |a: &mut Asm| {
        a.mtc0(K1, Cp0::Index);
        a.tlbwr();
    };
    assert_eq!(run(Features::R2, [0, 1], code).1, Stop::Reached);
}

/// Moves a 64-bit register while a change of it is pending.
#[test]
fn wide_moves_wait_too() {
    let code = |a: &mut Asm| {
        a.dmtc0(K1, Cp0::EntryHi);
        a.dmfc0(K0, Cp0::EntryHi);
    };
    assert_eq!(run(MIPS3, [0, 1], code).1, Stop::Hazard { pc: nth(1) });
}

/// A page of 4 KiB: valid, writable, cached.
const LO: u64 = 0x1234 << 6 | 0b01_1110;

#[test]
fn the_instructions_of_the_tlb() {
    let code = assemble(Features::R2, |a| {
        a.tlbwi();
        a.tlbp();
        a.ehb();
        a.tlbr();
        a.ehb();
        a.mfc0(K0, Cp0::EntryLo0);
        a.mfc0(K1, Cp0::EntryLo1);
    });
    let ram = Ram::new();
    let mut cpu = ram.cpu(Features::R2, code.words());
    (cpu.cp0.index, cpu.cp0.entry_hi, cpu.cp0.page_mask) = (3, 0x0040_6017, 0x6000);
    (cpu.cp0.entry_lo0, cpu.cp0.entry_lo1) = (LO, LO | 1);
    // `tlbwi`: the entry has no bits that PageMask hides, and is global only if both halves are.
    cpu.step().unwrap();
    let entry = Entry { page_mask: 0x6000, hi: 0x0040_0017, lo: [LO, LO] };
    let expected: [_; 8] = std::array::from_fn(|index| (index == 3).then_some(entry));
    assert_eq!(cpu.tlb.entries(), &expected);
    // `tlbp` finds it by any address in it; and the other space's not.
    cpu.cp0.index = 0;
    cpu.step().unwrap();
    assert_eq!(cpu.cp0.index, 3);
    (cpu.pc, cpu.cp0.entry_hi) = (nth(1), 0x0040_6018);
    cpu.step().unwrap();
    assert_eq!(cpu.cp0.index, 1 << 31);
    // `tlbr` reads it into all four registers, whatever they were.
    (cpu.cp0.index, cpu.cp0.page_mask, cpu.cp0.entry_lo0, cpu.cp0.entry_lo1) = (3, 0, 7, 7);
    assert_eq!(cpu.run(9), Stop::Reached);
    assert_eq!((cpu.cp0.page_mask, cpu.cp0.entry_hi), (0x6000, 0x0040_0017));
    assert_eq!([cpu.gpr[K[0]], cpu.gpr[K[1]]], [LO; 2]);

    // `tlbwr` writes where Random says.
    let mut cpu = ram.cpu(Features::R2, assemble(Features::R2, Asm::tlbwr).words());
    (cpu.cp0.entry_hi, cpu.cp0.random, cpu.cp0.index) = (0x0080_0000, 5, 2);
    assert_eq!(cpu.run(9), Stop::Reached);
    let written: Vec<_> = cpu.tlb.entries().iter().map(Option::is_some).collect();
    assert_eq!(written, [false, false, false, false, false, true, false, false]);
    // Before anything is written, an entry reads as zeroes.
    let mut cpu = ram.cpu(Features::R2, assemble(Features::R2, Asm::tlbr).words());
    cpu.tlb.flush();
    (cpu.cp0.entry_hi, cpu.cp0.entry_lo0) = (5, 5);
    assert_eq!((cpu.run(9), cpu.cp0.entry_hi, cpu.cp0.entry_lo0), (Stop::Reached, 0, 0));
    // Two entries for one address are refused.
    let mut cpu = ram.cpu(Features::R2, assemble(Features::R2, Asm::tlbwi).words());
    cpu.tlb.write(1, entry).unwrap();
    (cpu.cp0.index, cpu.cp0.entry_hi) = (2, 0x0040_4017);
    assert_eq!(cpu.run(9), Stop::Duplicate { at: 0x0040_4000 });
}

#[test]
fn eret_returns() {
    let ram = Ram::new();
    let code = assemble(Features::R2, |a| {
        a.mtc0(K0, Cp0::EntryLo0);
        a.eret();
        // There at once.
        a.mfc0(K0, Cp0::EntryLo0);
    });
    let mut cpu = ram.cpu(Features::R2, code.words());
    (cpu.cp0.status, cpu.cp0.epc, cpu.gpr[K[0]]) = (0x1000_0003, nth(2), 6);
    assert_eq!(cpu.run(9), Stop::Returned);
    assert_eq!((cpu.cp0.status, cpu.pc), (0x1000_0001, nth(2)), "EXL alone is cleared");
    assert_eq!(cpu.run(9), Stop::Reached, "nothing is pending");
}
