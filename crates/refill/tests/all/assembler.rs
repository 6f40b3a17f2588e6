//! The assembler at its limits: fields, labels, branches, room, and the part of the code that goes elsewhere.

use tlbkit_refill::Error;
use tlbkit_refill::asm::{Asm, Code, Cp0, K0, K1, MOST};
use tlbkit_refill::features::{Features, Isa};

#[test]
fn instructions_that_a_cpu_lacks_and_branches_that_end_nowhere() {
    let mut a = Asm::new(Isa::R1);
    a.ins(K0, K1, 3, 9);
    assert_eq!(a.finish(9), Err(Error::NoInstruction { word: 0, needs: Isa::R2 }));

    let mut a = Asm::new(Isa::R2);
    a.dmfc0(K0, Cp0::BadVAddr);
    assert_eq!(a.finish(9), Err(Error::NoInstruction { word: 0, needs: Isa::Mips3 }));

    let mut a = Asm::new(Isa::R2);
    a.nop();
    a.ext(K0, K1, 30, 3);
    assert_eq!(a.finish(9), Err(Error::TooWide { word: 1 }));

    let mut a = Asm::new(Isa::R2);
    let nowhere = a.label();
    a.b(nowhere);
    assert_eq!(a.clone().finish(9), Err(Error::UnboundLabel { word: 0 }));
    a.bind_at(nowhere, 0x8001);
    assert_eq!(a.clone().finish(9), Err(Error::TooFar { word: 0 }));
    a.bind_at(nowhere, 0x8000);
    assert!(a.finish(9).is_ok());
}

/// What becomes of one instruction.
fn one(isa: Isa, instruction: impl FnOnce(&mut Asm)) -> Result<Code, Error> {
    let mut a = Asm::new(isa);
    instruction(&mut a);
    a.finish(1)
}

#[test]
fn operands_at_the_edge_of_their_fields() {
    let wide = Err(Error::TooWide { word: 0 });
    let shift = |shift| one(Isa::R2, |a| a.srl(K0, K1, shift)).map(|_| ());
    assert_eq!([0, 31, 32].map(shift), [Ok(()), Ok(()), wide]);
    // A field ends within the word, and is not empty.
    let fields: [fn(&mut Asm, u32, u32); 2] =
        [|a, low, bits| a.ext(K0, K1, low, bits), |a, low, bits| a.ins(K0, K1, low, bits)];
    for field in fields {
        let of = |(low, bits)| one(Isa::R2, |a| field(a, low, bits)).map(|_| ());
        assert_eq!([(0, 1), (0, 32), (31, 1), (16, 16)].map(of), [Ok(()); 4]);
        assert_eq!([(0, 0), (0, 33), (31, 2), (16, 17), (32, 1), (32, 0), (40, 1)].map(of), [wide; 7]);
    }
}

#[test]
fn instructions_by_what_brought_them() {
    let lacks = |needs| Err(Error::NoInstruction { word: 0, needs });
    for isa in [Isa::R1, Isa::R2, Isa::Mips3] {
        let has = |instruction: fn(&mut Asm)| one(isa, instruction).map(|_| ());
        assert_eq!(has(|a| a.lw(K0, 0, K1)), Ok(()));
        assert_eq!(has(|a| a.rotr(K0, K1, 1)), if isa == Isa::R2 { Ok(()) } else { lacks(Isa::R2) });
        let wide: [fn(&mut Asm); 4] = [
            |a| a.ld(K0, 0, K1),
            |a| a.daddu(K0, K0, K1),
            |a| a.daddiu(K0, K1, 1),
            |a| a.dmtc0(K0, Cp0::EntryHi),
        ];
        for instruction in wide {
            assert_eq!(has(instruction), if isa == Isa::Mips3 { Ok(()) } else { lacks(Isa::Mips3) });
        }
    }
    // `ehb` where there is one, and cycles before.
    let words = |features: Features, code: fn(&mut Asm)| {
        let mut a = Asm::new(features.isa);
        assert_eq!(a.isa(), features.isa);
        code(&mut a);
        a.finish(4).unwrap().words().to_vec()
    };
    for (features, long) in [
        (Features::R2, [0xc0].as_slice()),
        (Features::R1, &[0x40, 0x40, 0x40, 0xc0]),
        (Features::MIPS3, &[0, 0, 0]),
    ] {
        assert_eq!(words(features, Asm::long_barrier), long);
        // One cycle less, in two parts.
        let short = if features.isa == Isa::R2 { long } else { &long[1..] };
        assert_eq!(words(features, Asm::barrier), short);
        let (tail, head) = short.split_last().unwrap();
        assert_eq!(words(features, Asm::barrier_head), head);
        assert_eq!(words(features, Asm::barrier_tail), [*tail]);
    }
}

#[test]
fn the_first_error_is_the_one_that_is_told() {
    let mut a = Asm::new(Isa::R1);
    a.sll(K0, K1, 40);
    a.rotr(K0, K1, 1);
    a.fail(Error::Unsupported);
    assert_eq!(a.finish(0), Err(Error::TooWide { word: 0 }));
}

#[test]
fn words_are_counted() {
    let mut a = Asm::new(Isa::R2);
    assert_eq!((a.is_empty(), a.len()), (true, 0));
    for _ in 0..MOST {
        a.nop();
    }
    assert_eq!((a.is_empty(), a.len()), (false, MOST));
    assert_eq!(a.clone().finish(MOST).map(|code| code.words().len()), Ok(MOST));
    assert_eq!(a.clone().finish(MOST - 1), Err(Error::TooLong { words: MOST, room: MOST - 1 }));
    a.nop();
    assert_eq!(a.finish(usize::MAX), Err(Error::TooLong { words: MOST + 1, room: MOST }));
}

#[test]
fn labels_and_branches_are_counted() {
    let mut a = Asm::new(Isa::R2);
    for _ in 0..64 {
        let _ = a.here();
    }
    assert_eq!(a.clone().finish(0).map(|code| code.words().len()), Ok(0));
    let _ = a.label();
    assert_eq!(a.finish(0), Err(Error::TooManyLabels));

    let mut a = Asm::new(Isa::R2);
    let start = a.here();
    for _ in 0..128 {
        a.b(start);
    }
    assert_eq!(a.clone().finish(128).unwrap().words()[127], 0x1000_ff80);
    a.b(start);
    assert_eq!(a.finish(129), Err(Error::TooManyLabels));
}

#[test]
fn a_branch_reaches_32768_words_back_and_32767_ahead() {
    // From the delay slot on.
    for (at, offset) in [(-0x7ffe, Some(0x8000)), (-0x7fff, None), (0x8001, Some(0x7fff)), (0x8002, None)] {
        let mut a = Asm::new(Isa::R2);
        let label = a.label();
        a.bind_at(label, at);
        a.nop();
        a.b(label);
        let expected = offset.map(|offset| 0x1000_0000 | offset).ok_or(Error::TooFar { word: 1 });
        assert_eq!(a.finish(2).map(|code| code.words()[1]), expected, "{at}");
    }
}

#[test]
fn the_tail_is_where_it_was_said() {
    let mut a = Asm::new(Isa::R2);
    let (first, second) = (a.label(), a.label());
    let start = a.here();
    a.b(first);
    a.b(second);
    a.b(start);
    a.split(0x100);
    a.bind(first);
    a.b(start);
    a.bind(second);
    a.b(first);
    // Once only.
    a.split(0x200);
    a.b(second);
    let (code, tail) = a.clone().finish_parts(3, 3).unwrap();
    assert_eq!(code.words(), [0x1000_00ff, 0x1000_00ff, 0x1000_fffd]);
    assert_eq!(tail.words(), [0x1000_feff, 0x1000_fffe, 0x1000_fffe]);
    // Each part has room of its own.
    assert_eq!(a.clone().finish_parts(2, 3), Err(Error::TooLong { words: 3, room: 2 }));
    assert_eq!(a.clone().finish_parts(3, 2), Err(Error::TooLong { words: 3, room: 2 }));
    assert_eq!(a.finish(3), Err(Error::TooLong { words: 3, room: 0 }), "there is no room for a tail");

    // Code is its words, whatever stood behind them.
    let mut alone = Asm::new(Isa::R2);
    for &word in code.words() {
        alone.word(word);
    }
    let (same, none) = alone.finish_parts(3, 0).unwrap();
    assert_eq!((same, none.words().len()), (code, 0));
}
