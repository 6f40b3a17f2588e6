//! The handlers as a disassembler reads them, compared with the listings in `tests/listings`.
//!
//! `UPDATE_LISTINGS=1 cargo test -p tlbkit-refill --test all listing` writes them anew; the difference is then to be read.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

use crate::common::tables::Kind;
use crate::common::{Base32, Config};
use capstone::prelude::*;
use tlbkit_pagetable::geometry::{Va32, Va64};
use tlbkit_refill::asm::{Asm, Cp0, K0, K1, ZERO};
use tlbkit_refill::features::{Features, Isa};
use tlbkit_refill::handler::{Form, Gpt, Root, Spec, Walk, Write};
use tlbkit_refill::mips3;

/// Reads words, which are at `at`, as instructions: one line each.
fn disassemble(words: &[u32], at: u64, wide: bool) -> Vec<String> {
    let mode = if wide { arch::mips::ArchMode::Mips64 } else { arch::mips::ArchMode::Mips32 };
    let capstone = Capstone::new().mips().mode(mode).endian(capstone::Endian::Big).build().unwrap();
    let bytes: Vec<_> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let read = capstone.disasm_all(&bytes, at).unwrap();
    assert_eq!(read.len(), words.len(), "the disassembler does not know {:#x}", words[read.len()]);
    let line = |(instruction, &word): (&capstone::Insn<'_>, &u32)| {
        let name = instruction.mnemonic().unwrap();
        let operands = instruction.op_str().unwrap_or_default();
        // The disassembler prints coprocessor 0's registers as if they were general ones.
        let operands = match Cp0::from_number(word >> 11 & 31, word & 7) {
            Some(register) if name.ends_with("c0") => {
                format!("{}, {register:?}", operands.split(',').next().unwrap())
            }
            _ => operands.into(),
        };
        format!("{name:<6} {operands}").trim_end().into()
    };
    read.iter().zip(words).map(line).collect()
}

/// Lists code that is somewhere above the first vector, if there is any.
fn list(text: &mut String, name: &str, from: usize, words: &[u32], wide: bool) {
    if !words.is_empty() {
        writeln!(text, "{name}: {} instructions", words.len()).unwrap();
    }
    for (index, line) in disassemble(words, from as u64, wide).iter().enumerate() {
        writeln!(text, "  {:03x}  {:08x}  {line}", from + 4 * index, words[index]).unwrap();
    }
}

fn listing(spec: &Spec) -> String {
    let handler = spec.assemble().unwrap();
    let mut text = String::new();
    list(&mut text, "refill vector", 0, handler.refill.words(), false);
    list(&mut text, "general vector", 0x180, handler.general.words(), false);
    list(&mut text, "tail", spec.place.tail as usize, handler.tail.words(), false);
    text
}

fn wide_listing(spec: &mips3::Spec) -> String {
    let handler = spec.assemble().unwrap();
    let mut text = String::new();
    list(&mut text, "refill vector", mips3::VECTOR as usize, handler.refill.words(), true);
    list(&mut text, "general vector", mips3::GENERAL as usize, handler.general.words(), true);
    list(&mut text, "tail", mips3::TAIL as usize, handler.tail.words(), true);
    text
}

/// Compares with the listing of this name, or writes it.
fn compare(name: &str, text: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/listings");
    let file = folder.join(format!("{name}.txt"));
    if env::var_os("UPDATE_LISTINGS").is_some() {
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, text).unwrap();
    }
    let listed = fs::read_to_string(&file).unwrap();
    let different = listed.lines().zip(text.lines()).find(|(old, new)| old != new);
    assert_eq!(different, None, "{name}: what is listed, and what is assembled");
    assert_eq!(listed.lines().count(), text.lines().count(), "{name}");
}

#[test]
fn handlers_are_as_listed() {
    let plain = Config {
        features: Features::R2,
        root: Root::Block,
        stlb: false,
        form: Form::PLAIN,
        write: Write::Random,
        near: false,
    };
    let index = Config { write: Write::Index, ..plain };
    let variants = [
        ("plain", plain),
        ("register", Config { root: Root::ErrorEpc, ..plain }),
        ("near", Config { near: true, ..plain }),
        ("index", index),
        ("r1", Config { features: Features::R1, ..plain }),
        ("p5600", Config { features: Features::P5600, root: Root::KScratch(2), ..plain }),
        ("sized", Config { form: Form::SIZED, ..plain }),
        ("reporting", Config { form: Form::REPORTING, ..index }),
        ("stlb", Config { stlb: true, ..plain }),
        ("stlb-sized", Config { stlb: true, form: Form::SIZED, ..plain }),
        ("stlb-both", Config { stlb: true, form: Form::BOTH, ..index }),
    ];
    let fixed = |width| Walk::Gpt(Gpt::fixed::<Va32>(width).unwrap());
    let adaptive = Walk::Gpt(Gpt::adaptive::<Va32>().unwrap());
    let both = |kind: Kind| [kind.walk::<Base32>(), kind.walk::<Va32>()];
    let tables = [
        ("mpt", both(Kind::Mpt)),
        ("lpt", both(Kind::Lpt)),
        ("hpt", both(Kind::Hpt)),
        ("hpt-128k", both(Kind::HptLarge)),
        ("cpt", both(Kind::Cpt)),
        ("cpt-grows", both(Kind::CptGrows)),
        ("g16", [fixed(4); 2]),
        ("g32", [fixed(5); 2]),
        ("ga", [adaptive; 2]),
    ];
    for (table, [small, large]) in tables {
        let mut text = String::new();
        for (variant, config) in &variants {
            let spec = config.spec(if config.form.sized { large } else { small });
            writeln!(text, "# {table}, {variant}\n\n{}", listing(&spec)).unwrap();
        }
        compare(table, &text);
    }
}

#[test]
fn wide_handlers_are_as_listed() {
    let larger = mips3::Hashed::growing(3).and_then(mips3::Hashed::with_larger_pages);
    let walks = [
        ("mpt", mips3::Walk::Mpt(mips3::Mpt::of::<Va64>().unwrap())),
        ("g16", mips3::Walk::Gpt(mips3::Gpt::fixed(4).unwrap())),
        ("h8k", mips3::Walk::Hashed(mips3::Hashed::of(1, 8).unwrap())),
        ("c128k", mips3::Walk::Hashed(mips3::Hashed::of(3, 10).unwrap())),
        ("lpt", mips3::Walk::Lpt(mips3::Lpt::of::<Va64, { 0xff << 56 }>().unwrap())),
        ("ga", mips3::Walk::Gpt(mips3::Gpt::adaptive())),
        ("hr", mips3::Walk::Hashed(mips3::Hashed::growing(1).unwrap())),
        ("cs", mips3::Walk::Hashed(larger.unwrap())),
    ];
    let caches = [("", None), (", S8k in front", Some(mips3::Stlb::new(0x8010_0000, 8 << 10).unwrap()))];
    let mut text = String::new();
    for (table, walk) in walks {
        for (front, cache) in caches {
            let spec = mips3::Spec { block: 0x8000_1000, cache, walk };
            writeln!(text, "# {table}{front}\n\n{}", wide_listing(&spec)).unwrap();
        }
    }
    compare("mips3", &text);
}

/// Every instruction of the assembler, with what the disassembler must read.
#[test]
fn the_disassembler_reads_what_was_written() {
    let mut a = Asm::new(Isa::R2);
    let mut expected = Vec::new();
    macro_rules! assemble {
        ($a:ident: $($name:ident($($operand:expr),*) $text:literal)*) => { $(
            $a.$name($($operand),*);
            expected.push($text);
        )* };
    }
    let (start, end) = (a.here(), a.label());
    assemble! { a:
        lb(K0, -1, K1) "lb     $k0, -1($k1)"
        lbu(K0, 1, K1) "lbu    $k0, 1($k1)"
        lh(K0, -2, K1) "lh     $k0, -2($k1)"
        lhu(K0, 2, K1) "lhu    $k0, 2($k1)"
        lw(K1, -0x8000, K0) "lw     $k1, -0x8000($k0)"
        sw(K1, 0x7ffc, K0) "sw     $k1, 0x7ffc($k0)"
        addu(K0, K1, ZERO) "move   $k0, $k1"
        addu(K0, K1, K0) "addu   $k0, $k1, $k0"
        subu(K0, K1, K0) "subu   $k0, $k1, $k0"
        and(K0, K1, K0) "and    $k0, $k1, $k0"
        or(K0, K1, K0) "or     $k0, $k1, $k0"
        xor(K0, K1, K0) "xor    $k0, $k1, $k0"
        nor(K0, K1, K0) "nor    $k0, $k1, $k0"
        slt(K0, K1, K0) "slt    $k0, $k1, $k0"
        sltu(K0, K1, K0) "sltu   $k0, $k1, $k0"
        andi(K0, K1, 0xff8) "andi   $k0, $k1, 0xff8"
        ori(K0, K1, 0xff8) "ori    $k0, $k1, 0xff8"
        xori(K0, K1, 0xff8) "xori   $k0, $k1, 0xff8"
        addiu(K0, K1, -8) "addiu  $k0, $k1, -8"
        sltiu(K0, K1, 16) "sltiu  $k0, $k1, 0x10"
        lui(K0, 0x8000) "lui    $k0, 0x8000"
        sll(K0, K1, 4) "sll    $k0, $k1, 4"
        srl(K0, K1, 4) "srl    $k0, $k1, 4"
        sra(K0, K1, 4) "sra    $k0, $k1, 4"
        rotr(K0, K1, 22) "rotr   $k0, $k1, 0x16"
        sllv(K0, K1, K0) "sllv   $k0, $k1, $k0"
        srlv(K0, K1, K0) "srlv   $k0, $k1, $k0"
        srav(K0, K1, K0) "srav   $k0, $k1, $k0"
        rotrv(K0, K1, K0) "rotrv  $k0, $k1, $k0"
        ext(K0, K1, 13, 9) "ext    $k0, $k1, 0xd, 9"
        ins(K0, K1, 3, 9) "ins    $k0, $k1, 3, 9"
        mfc0(K0, Cp0::Context) "mfc0   $k0, Context"
        mtc0(K1, Cp0::EntryLo1) "mtc0   $k1, EntryLo1"
        mfc0(K0, Cp0::KScratch(3)) "mfc0   $k0, KScratch(3)"
        nop() "nop"
        ssnop() "ssnop"
        ehb() "ehb"
        tlbr() "tlbr"
        tlbwi() "tlbwi"
        tlbwr() "tlbwr"
        tlbp() "tlbp"
        eret() "eret"
        j(0x8000_0400) "j      0x80000400"
        beq(K0, K1, start) "beq    $k0, $k1, 0x80000000"
        bne(K0, K1, end) "bne    $k0, $k1, 0x800000c8"
        blez(K0, end) "blez   $k0, 0x800000c8"
        bgtz(K0, end) "bgtz   $k0, 0x800000c8"
        bltz(K0, end) "bltz   $k0, 0x800000c8"
        bgez(K0, end) "bgez   $k0, 0x800000c8"
        b(end) "b      0x800000c8"
    }
    a.bind(end);
    assert_eq!(disassemble(a.finish(64).unwrap().words(), 0x8000_0000, false), expected);

    let mut a = Asm::new(Isa::Mips3);
    let mut expected = Vec::new();
    macro_rules! assemble {
        ($a:ident: $($name:ident($($operand:expr),*) $text:literal)*) => { $(
            $a.$name($($operand),*);
            expected.push($text);
        )* };
    }
    assemble! { a:
        lwu(K0, 8, K1) "lwu    $k0, 8($k1)"
        ld(K0, 8, K1) "ld     $k0, 8($k1)"
        sd(K0, 8, K1) "sd     $k0, 8($k1)"
        daddu(K0, K1, K0) "daddu  $k0, $k1, $k0"
        dsubu(K0, K1, K0) "dsubu  $k0, $k1, $k0"
        daddiu(K0, K1, -8) "daddiu $k0, $k1, -8"
        dsll(K0, K1, 4) "dsll   $k0, $k1, 4"
        dsrl(K0, K1, 4) "dsrl   $k0, $k1, 4"
        dsra(K0, K1, 4) "dsra   $k0, $k1, 4"
        dsll32(K0, K1, 4) "dsll32 $k0, $k1, 4"
        dsrl32(K0, K1, 4) "dsrl32 $k0, $k1, 4"
        dsra32(K0, K1, 4) "dsra32 $k0, $k1, 4"
        dsllv(K0, K1, K0) "dsllv  $k0, $k1, $k0"
        dsrlv(K0, K1, K0) "dsrlv  $k0, $k1, $k0"
        dsrav(K0, K1, K0) "dsrav  $k0, $k1, $k0"
        dmfc0(K0, Cp0::XContext) "dmfc0  $k0, XContext"
        dmtc0(K1, Cp0::EntryHi) "dmtc0  $k1, EntryHi"
    }
    assert_eq!(disassemble(a.finish(64).unwrap().words(), 0x8000_0000, true), expected);
}
