//! Every instruction does in the interpreter what the manual says (MIPS Architecture for Programmers, volume II-A; MIPS
//! R4000 User's Manual, appendix A), and those that a CPU does not have it does not execute.

use crate::guest;

use crate::guest::{CODE, CPUS, K, KSEG0, Ram, assemble, nth, run};
use tlbkit_refill::asm::{Asm, Cp0, K0, K1, Label, ZERO};
use tlbkit_refill::features::{Endian, Features, Isa};
use tlbkit_refill::interp::{Machine, Stop, Windows};

const WORDS: [i32; 9] = [0, 1, 2, 33, -1, -2, i32::MAX, i32::MIN, 0x1234_5678];
const DOUBLES: [i64; 8] = [0, 1, 67, -1, i64::MAX, i64::MIN, 0x0123_4567_89ab_cdef, 0x8000_0000];
const MIPS3: Features = Features::MIPS3;

/// Checks k0 after code, for all values of k1 and k0 before. A register holds a word sign-extended.
fn words(features: Features, what: &str, code: impl Fn(&mut Asm), model: impl Fn(i32, i32) -> i32) {
    for k1 in WORDS {
        for k0 in WORDS {
            let ([result, _], stop) = run(features, [k0 as u64, k1 as u64], &code);
            assert_eq!(stop, Stop::Reached, "{what}");
            assert_eq!(result, model(k1, k0) as u64, "{what} of {k1:#x} and {k0:#x}, {features:?}");
        }
    }
}

/// The same for 64 bits.
fn doubles(what: &str, code: impl Fn(&mut Asm), model: impl Fn(i64, i64) -> i64) {
    for k1 in DOUBLES {
        for k0 in DOUBLES {
            let ([result, _], stop) = run(MIPS3, [k0 as u64, k1 as u64], &code);
            assert_eq!(stop, Stop::Reached, "{what}");
            assert_eq!(result, model(k1, k0) as u64, "{what} of {k1:#x} and {k0:#x}");
        }
    }
}

#[test]
fn arithmetic_of_words() {
    for cpu in CPUS {
        words(cpu, "addu", |a| a.addu(K0, K1, K0), i32::wrapping_add);
        words(cpu, "subu", |a| a.subu(K0, K1, K0), i32::wrapping_sub);
        words(cpu, "and", |a| a.and(K0, K1, K0), |s, t| s & t);
        words(cpu, "or", |a| a.or(K0, K1, K0), |s, t| s | t);
        words(cpu, "xor", |a| a.xor(K0, K1, K0), |s, t| s ^ t);
        words(cpu, "nor", |a| a.nor(K0, K1, K0), |s, t| !(s | t));
        words(cpu, "slt", |a| a.slt(K0, K1, K0), |s, t| (s < t).into());
        words(cpu, "sltu", |a| a.sltu(K0, K1, K0), |s, t| ((s as u32) < t as u32).into());
        for value in [0, 1, -1, 0x7fff, -0x8000] {
            let wide = i32::from(value);
            words(cpu, "addiu", |a| a.addiu(K0, K1, value), |s, _| s.wrapping_add(wide));
            words(cpu, "sltiu", |a| a.sltiu(K0, K1, value), |s, _| ((s as u32) < wide as u32).into());
            let bits = i32::from(value as u16);
            words(cpu, "andi", |a| a.andi(K0, K1, value as u16), |s, _| s & bits);
            words(cpu, "ori", |a| a.ori(K0, K1, value as u16), |s, _| s | bits);
            words(cpu, "xori", |a| a.xori(K0, K1, value as u16), |s, _| s ^ bits);
            words(cpu, "lui", |a| a.lui(K0, value as u16), |_, _| bits << 16);
        }
        words(cpu, "addu to register 0", |a| a.addu(ZERO, K1, K0), |_, t| t);
    }
}

#[test]
fn shifts_of_words() {
    for cpu in CPUS {
        for shift in 0..32 {
            words(cpu, "sll", |a| a.sll(K0, K1, shift), |t, _| t << shift);
            words(cpu, "srl", |a| a.srl(K0, K1, shift), |t, _| (t as u32 >> shift) as i32);
            words(cpu, "sra", |a| a.sra(K0, K1, shift), |t, _| t >> shift);
            if cpu.isa == Isa::R2 {
                words(cpu, "rotr", |a| a.rotr(K0, K1, shift), |t, _| t.rotate_right(shift));
            }
        }
        words(cpu, "sllv", |a| a.sllv(K0, K1, K0), |t, s| t << (s & 31));
        words(cpu, "srlv", |a| a.srlv(K0, K1, K0), |t, s| (t as u32 >> (s & 31)) as i32);
        words(cpu, "srav", |a| a.srav(K0, K1, K0), |t, s| t >> (s & 31));
    }
    let rotated = |t: i32, s: i32| t.rotate_right(s as u32 & 31);
    words(Features::R2, "rotrv", |a| a.rotrv(K0, K1, K0), rotated);
}

#[test]
fn arithmetic_of_double_words() {
    doubles("daddu", |a| a.daddu(K0, K1, K0), i64::wrapping_add);
    doubles("dsubu", |a| a.dsubu(K0, K1, K0), i64::wrapping_sub);
    doubles("and", |a| a.and(K0, K1, K0), |s, t| s & t);
    doubles("or", |a| a.or(K0, K1, K0), |s, t| s | t);
    doubles("xor", |a| a.xor(K0, K1, K0), |s, t| s ^ t);
    doubles("nor", |a| a.nor(K0, K1, K0), |s, t| !(s | t));
    doubles("slt", |a| a.slt(K0, K1, K0), |s, t| (s < t).into());
    doubles("sltu", |a| a.sltu(K0, K1, K0), |s, t| ((s as u64) < t as u64).into());
    for value in [0, 1, -1, 0x7fff, -0x8000] {
        let wide = i64::from(value);
        doubles("daddiu", |a| a.daddiu(K0, K1, value), |s, _| s.wrapping_add(wide));
        doubles("sltiu", |a| a.sltiu(K0, K1, value), |s, _| ((s as u64) < wide as u64).into());
        doubles("andi", |a| a.andi(K0, K1, value as u16), |s, _| s & i64::from(value as u16));
        doubles("ori", |a| a.ori(K0, K1, value as u16), |s, _| s | i64::from(value as u16));
        doubles("xori", |a| a.xori(K0, K1, value as u16), |s, _| s ^ i64::from(value as u16));
    }
}

#[test]
fn shifts_of_double_words() {
    for shift in 0..32 {
        doubles("dsll", |a| a.dsll(K0, K1, shift), |t, _| t << shift);
        doubles("dsrl", |a| a.dsrl(K0, K1, shift), |t, _| (t as u64 >> shift) as i64);
        doubles("dsra", |a| a.dsra(K0, K1, shift), |t, _| t >> shift);
        doubles("dsll32", |a| a.dsll32(K0, K1, shift), |t, _| t << (shift + 32));
        doubles("dsrl32", |a| a.dsrl32(K0, K1, shift), |t, _| (t as u64 >> (shift + 32)) as i64);
        doubles("dsra32", |a| a.dsra32(K0, K1, shift), |t, _| t >> (shift + 32));
        // A shift of words drops the upper half: the way to sign-extend one.
        doubles("sll", |a| a.sll(K0, K1, shift), |t, _| i64::from((t as i32) << shift));
    }
    doubles("dsllv", |a| a.dsllv(K0, K1, K0), |t, s| t << (s & 63));
    doubles("dsrlv", |a| a.dsrlv(K0, K1, K0), |t, s| (t as u64 >> (s & 63)) as i64);
    doubles("dsrav", |a| a.dsrav(K0, K1, K0), |t, s| t >> (s & 63));
}

#[test]
fn bit_fields() {
    for low in 0..32 {
        for bits in 1..=32 - low {
            let mask = (u64::MAX >> (64 - bits)) as i32;
            let extracted = |s: i32, _| (s as u32 >> low) as i32 & mask;
            words(Features::R2, "ext", |a| a.ext(K0, K1, low, bits), extracted);
            let inserted = |s: i32, t: i32| t & !(mask << low) | (s & mask) << low;
            words(Features::R2, "ins", |a| a.ins(K0, K1, low, bits), inserted);
        }
    }
}

/// k1 is 0 before, 1 after a branch that is taken, 3 after one that is not: the delay slot is executed in either case.
#[test]
fn branches() {
    let taken = |k: [u64; 2], branch: &dyn Fn(&mut Asm, Label)| {
        let ([_, k1], stop) = run(Features::R2, k, |a| {
            let end = a.label();
            branch(a, end);
            a.addiu(K1, ZERO, 1);
            a.addiu(K1, K1, 2);
            a.bind(end);
        });
        assert_eq!(stop, Stop::Reached);
        assert!([1, 3].contains(&k1), "the delay slot was not executed: {k1}");
        k1 == 1
    };
    for s in WORDS {
        let k = [s as u64, 0];
        assert_eq!(taken(k, &|a, to| a.blez(K0, to)), s <= 0, "blez {s}");
        assert_eq!(taken(k, &|a, to| a.bgtz(K0, to)), s > 0, "bgtz {s}");
        assert_eq!(taken(k, &|a, to| a.bltz(K0, to)), s < 0, "bltz {s}");
        assert_eq!(taken(k, &|a, to| a.bgez(K0, to)), s >= 0, "bgez {s}");
        assert!(taken(k, &|a, to| a.b(to)));
        for t in WORDS {
            let k = [s as u64, t as u64];
            assert_eq!(taken(k, &|a, to| a.beq(K0, K1, to)), s == t, "beq {s} {t}");
            assert_eq!(taken(k, &|a, to| a.bne(K0, K1, to)), s != t, "bne {s} {t}");
        }
    }
}

#[test]
fn branches_backwards() {
    let code = |a: &mut Asm| {
        let again = a.here();
        a.addiu(K0, K0, -1);
        a.bgtz(K0, again);
        a.addiu(K1, K1, 10);
    };
    assert_eq!(run(Features::R1, [4, 0], code), ([0, 40], Stop::Reached));
}

#[test]
fn jumps_stay_in_the_region_of_the_delay_slot() {
    let code = assemble(Features::R2, |a| {
        a.j(0x8000_1010);
        a.addiu(K0, K0, 1);
        a.addiu(K0, K0, 10);
        a.addiu(K0, K0, 10);
        a.addiu(K0, K0, 2);
    });
    // kseg1 is the same memory.
    for base in [KSEG0, KSEG0 + 0x2000_0000] {
        let ram = Ram::new();
        let mut cpu = ram.cpu(Features::R2, code.words());
        cpu.pc = base + CODE as u64;
        cpu.stop = cpu.pc + 4 * 5;
        assert_eq!((cpu.run(9), cpu.gpr[K[0]], cpu.counts.instructions), (Stop::Reached, 3, 3));
    }

    // The last word of 256 MiB: its delay slot is in the next.
    let ram = Ram::new();
    ram.put(0, code.words());
    let mut cpu = Machine::<_, 8>::new(Features::R2, Windows([ram.window(0x0fff_fffc)]));
    cpu.pc = KSEG0 + 0x0fff_fffc;
    assert_eq!((cpu.run(2), cpu.pc), (Stop::Limit, KSEG0 + 0x1000_1010));
}

#[test]
fn no_branch_stands_in_a_delay_slot() {
    for k0 in [0, 1] {
        let code = |a: &mut Asm| {
            let end = a.here();
            a.beq(K0, ZERO, end);
            a.b(end);
        };
        assert_eq!(run(Features::R2, [k0, 0], code).1, Stop::Slot { pc: nth(1) }, "taken or not");
    }
}

/// Two words, and the bytes that they are.
const MEMORY: [u32; 2] = [0x81a2_43c4, 0x1586_77f8];
/// Where they are, with nothing before them.
const DATA: usize = 0x800;

fn bytes(endian: Endian) -> [u8; 8] {
    let word = |word: u32| match endian {
        Endian::Little => word.to_le_bytes(),
        Endian::Big => word.to_be_bytes(),
    };
    let [first, second] = MEMORY.map(word);
    [first, second].concat().try_into().unwrap()
}

/// Runs an instruction with the address of the first byte of memory in k1, and a value in k0. Returns k0 and memory.
fn access(
    features: Features,
    k0: u64,
    code: impl FnOnce(&mut Asm),
) -> (Result<u64, Stop>, [u32; 2], [u64; 3]) {
    let ram = Ram::new();
    ram.put(DATA, &MEMORY);
    let mut cpu = ram.cpu(features, assemble(features, code).words());
    (cpu.gpr[K[0]], cpu.gpr[K[1]]) = (k0, KSEG0 + DATA as u64);
    let result = match cpu.run(9) {
        Stop::Reached => Ok(cpu.gpr[K[0]]),
        stop => Err(stop),
    };
    let counts = [cpu.counts.instructions, cpu.counts.loads, cpu.counts.stores];
    (result, [ram.word(DATA), ram.word(DATA + 4)], counts)
}

#[test]
fn loads_take_words_apart_in_either_order() {
    for endian in [Endian::Little, Endian::Big] {
        let (bytes, wide) = (bytes(endian), MIPS3.with_endian(endian));
        for cpu in CPUS.map(|cpu| cpu.with_endian(endian)) {
            let loaded = |code: &dyn Fn(&mut Asm)| {
                let (result, memory, counts) = access(cpu, 0, |a| code(a));
                assert_eq!((memory, counts), (MEMORY, [1, 1, 0]));
                result.unwrap()
            };
            for (at, byte) in bytes.into_iter().enumerate() {
                let offset = at as i16;
                assert_eq!(loaded(&|a| a.lbu(K0, offset, K1)), byte.into(), "lbu {at} {endian:?}");
                assert_eq!(loaded(&|a| a.lb(K0, offset, K1)), byte as i8 as u64, "lb {at} {endian:?}");
                if at % 2 == 0 {
                    let half = match endian {
                        Endian::Little => u16::from_le_bytes([byte, bytes[at + 1]]),
                        Endian::Big => u16::from_be_bytes([byte, bytes[at + 1]]),
                    };
                    assert_eq!(loaded(&|a| a.lhu(K0, offset, K1)), half.into(), "lhu {at} {endian:?}");
                    assert_eq!(loaded(&|a| a.lh(K0, offset, K1)), half as i16 as u64, "lh {at} {endian:?}");
                }
            }
            // A word is what Rust stored, in either order.
            assert_eq!(loaded(&|a| a.lw(K0, 0, K1)), MEMORY[0] as i32 as u64);
            assert_eq!(loaded(&|a| a.lw(K0, 4, K1)), MEMORY[1].into());
        }
        assert_eq!(access(wide, 0, |a| a.lwu(K0, 0, K1)).0, Ok(MEMORY[0].into()));
        let double = match endian {
            Endian::Little => u64::from_le_bytes(bytes),
            Endian::Big => u64::from_be_bytes(bytes),
        };
        assert_eq!(access(wide, 0, |a| a.ld(K0, 0, K1)), (Ok(double), MEMORY, [1, 1, 0]));
        let below = |a: &mut Asm| {
            a.addiu(K1, K1, 0x100);
            a.lw(K0, -0xfc, K1);
        };
        assert_eq!(access(wide, 0, below).0, Ok(MEMORY[1].into()));
    }
}

#[test]
fn stores_put_words_together_in_either_order() {
    let value = 0x8123_4567_89ab_cdef;
    for (endian, halves) in
        [(Endian::Little, [0x89ab_cdef, 0x8123_4567]), (Endian::Big, [0x8123_4567, 0x89ab_cdef])]
    {
        for cpu in CPUS.map(|cpu| cpu.with_endian(endian)) {
            let stored = access(cpu, value, |a| a.sw(K0, 4, K1));
            assert_eq!(stored, (Ok(value), [MEMORY[0], 0x89ab_cdef], [1, 0, 1]));
        }
        let stored = access(MIPS3.with_endian(endian), value, |a| a.sd(K0, 0, K1));
        assert_eq!(stored, (Ok(value), halves, [1, 0, 1]));
    }
}

#[test]
fn an_access_is_aligned_and_there_is_memory() {
    let stop = |code: &dyn Fn(&mut Asm)| access(MIPS3, 0, |a| code(a)).0;
    let bus = |at| Err(Stop::Bus { pc: nth(0), at: KSEG0 + at });
    let data = DATA as u64;
    assert_eq!(stop(&|a| a.lh(K0, 1, K1)), bus(data + 1));
    assert_eq!(stop(&|a| a.lhu(K0, 3, K1)), bus(data + 3));
    assert_eq!(stop(&|a| a.lw(K0, 2, K1)), bus(data + 2));
    assert_eq!(stop(&|a| a.lwu(K0, 1, K1)), bus(data + 1));
    assert_eq!(stop(&|a| a.ld(K0, 4, K1)), bus(data + 4));
    assert_eq!(stop(&|a| a.sw(K0, 2, K1)), bus(data + 2));
    assert_eq!(stop(&|a| a.sd(K0, 4, K1)), bus(data + 4));
    // The last word, and the one behind it: the address is the virtual one.
    let (last, behind) = ((guest::END - 4 - DATA) as i16, guest::END as u64);
    assert_eq!(stop(&|a| a.lw(K0, last, K1)), Ok(0));
    assert_eq!(stop(&|a| a.lw(K0, last + 4, K1)), bus(behind));
    assert_eq!(stop(&|a| a.lb(K0, last + 7, K1)), bus(behind + 3));
    assert_eq!(stop(&|a| a.ld(K0, last + 4, K1)), bus(behind));
    assert_eq!(stop(&|a| a.sw(K0, last, K1)), Ok(0));
    assert_eq!(stop(&|a| a.sw(K0, last + 4, K1)), bus(behind));
    assert_eq!(stop(&|a| a.sd(K0, last + 4, K1)), bus(behind));
    // An instruction is fetched from memory, too.
    let ram = Ram::new();
    let mut cpu = ram.cpu(MIPS3, &[]);
    cpu.pc = KSEG0 + behind;
    assert_eq!(cpu.run(1), Stop::Bus { pc: KSEG0 + behind, at: KSEG0 + behind });
}

/// The sum of base and offset has 32 bits on a CPU of 32 bits, and 64 on one of 64.
#[test]
fn addresses_wrap_at_their_width() {
    let load = |features| {
        let ram = Ram::new();
        let code = assemble(features, |a| a.lw(K0, 0x7ffc, K1));
        let mut cpu = ram.cpu(features, code.words());
        cpu.gpr[K[1]] = 0x7fff_8804;
        (cpu.run(1), cpu.cp0.bad_vaddr)
    };
    assert_eq!(load(Features::R2), (Stop::Reached, 0));
    assert_eq!(load(MIPS3), (Stop::Limit, 0x8000_0800));
}

/// Returns what a CPU makes of a word.
fn executes(features: Features, word: u32) -> Result<(), Stop> {
    let ram = Ram::new();
    let mut cpu = ram.cpu(features, &[word]);
    cpu.gpr[K[1]] = KSEG0 + DATA as u64;
    cpu.step()
}

#[test]
fn a_cpu_knows_what_it_has_and_nothing_else() {
    let unknown = |word| Err(Stop::Unknown { pc: nth(0), word });
    let release2 = assemble(Features::R2, |a| {
        a.rotr(K0, K1, 3);
        a.rotrv(K0, K1, K0);
        a.ext(K0, K1, 3, 4);
        a.ins(K0, K1, 3, 4);
    });
    for &word in release2.words() {
        assert_eq!(executes(Features::R2, word), Ok(()), "{word:#x}");
        assert_eq!(executes(Features::R1, word), unknown(word));
        assert_eq!(executes(MIPS3, word), unknown(word));
    }
    let wide = assemble(MIPS3, |a| {
        a.lwu(K0, 0, K1);
        a.ld(K0, 0, K1);
        a.sd(K0, 0, K1);
        a.daddu(K0, K1, K0);
        a.dsubu(K0, K1, K0);
        a.daddiu(K0, K1, 1);
        a.dsll(K0, K1, 1);
        a.dsrl(K0, K1, 1);
        a.dsra(K0, K1, 1);
        a.dsll32(K0, K1, 1);
        a.dsrl32(K0, K1, 1);
        a.dsra32(K0, K1, 1);
        a.dsllv(K0, K1, K0);
        a.dsrlv(K0, K1, K0);
        a.dsrav(K0, K1, K0);
        a.dmfc0(K0, Cp0::XContext);
        a.dmtc0(K0, Cp0::XContext);
    });
    for &word in wide.words() {
        assert_eq!(executes(MIPS3, word), Ok(()), "{word:#x}");
        assert_eq!(executes(Features::R1, word), unknown(word));
        assert_eq!(executes(Features::P5600, word), unknown(word));
    }
}

/// Fields that an instruction does not have are zero; others are other instructions.
#[test]
fn words_that_are_no_instructions() {
    let (k0, k1) = (K0.number(), K1.number());
    let special = |rs: u32, shift: u32, function: u32| rs << 21 | k0 << 16 | k0 << 11 | shift << 6 | function;
    // `cache`, `pref`, `mul`, and a move of threads.
    let mut words = vec![0x2f << 26, 0x33 << 26, 0x1c << 26, 0x41a0_0000];
    // Shifts by an immediate have no rs; rotation is one bit of it.
    for function in [0x00, 0x02, 0x03, 0x38, 0x3a, 0x3b, 0x3c, 0x3e, 0x3f] {
        words.extend([special(2, 1, function), special(k1, 1, function)]);
    }
    // The others have no shift.
    for function in
        [0x04, 0x06, 0x07, 0x14, 0x16, 0x17, 0x21, 0x23, 0x24, 0x25, 0x26, 0x27, 0x2a, 0x2b, 0x2d, 0x2f]
    {
        words.push(special(k1, 2, function));
    }
    // Functions, branches, and bit fields that there are not.
    words.extend([special(k1, 0, 0x01), special(k1, 0, 0x3d), 1 << 26 | k1 << 21 | 2 << 16]);
    words.extend([
        6 << 26 | k1 << 21 | 1 << 16,
        7 << 26 | k1 << 21 | 1 << 16,
        0x0f << 26 | k1 << 21 | k0 << 16,
    ]);
    let field = |high: u32, low: u32, function: u32| {
        0x1f << 26 | k1 << 21 | k0 << 16 | high << 11 | low << 6 | function
    };
    words.extend([field(31, 1, 0), field(16, 16, 0), field(3, 4, 4), field(3, 3, 1)]);
    // Registers of coprocessor 0 that there are not, and moves.
    let cp0 = |direction: u32, number: u32, select: u32| {
        0x10 << 26 | direction << 21 | k0 << 16 | number << 11 | select
    };
    words.extend([cp0(0, 7, 0), cp0(0, 8, 1), cp0(4, 31, 1), cp0(2, 8, 0), cp0(0, 31, 5), cp0(4, 31, 7)]);
    for features in CPUS {
        for &word in &words {
            assert_eq!(executes(features, word), Err(Stop::Unknown { pc: nth(0), word }), "{word:#x}");
        }
    }
    // The edges of what there is.
    for word in [field(31, 0, 0), field(15, 16, 0), field(4, 4, 4), cp0(0, 31, 2), cp0(4, 31, 4)] {
        assert_eq!(executes(Features::P5600, word), Ok(()), "{word:#x}");
    }
    assert!(executes(Features::R2, cp0(0, 31, 2)).is_err(), "a 24Kf has no KScratch");
}

#[test]
fn a_handler_has_two_registers() {
    let load = 0x23 << 26 | K1.number() << 21;
    for register in 1..32 {
        let expected =
            if [26, 27].contains(&register) { Ok(()) } else { Err(Stop::Clobbered { pc: nth(0) }) };
        assert_eq!(executes(Features::R1, load | register << 16), expected, "${register}");
    }
    assert_eq!(executes(Features::R1, load), Ok(()));
}
