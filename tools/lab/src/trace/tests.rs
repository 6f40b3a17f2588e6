//! Traces survive the way through a file, and damaged ones are never mistaken for others.

use std::io::{Cursor, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tlbkit_addr::{PageSize, Vpn};

use super::input::read;
use super::*;

fn kinds() -> impl Strategy<Value = Kind> {
    use Kind::{Instr, Load, Modify, Rest, Store};
    prop::sample::select(vec![Instr, Rest, Load, Store, Modify])
}

/// Accesses near each other, far from each other and at both ends of the address space.
fn accesses() -> impl Strategy<Value = Vec<Access>> {
    let top = usize::MAX >> 12;
    let pages = prop_oneof![0..3usize, 0x400..0x500usize, top - 2..=top, 0..=top];
    let counts = prop_oneof![4 => 1..3u32, 2 => 14..19u32, 1 => 1..=u32::MAX];
    let one =
        (kinds(), counts, pages).prop_map(|(kind, count, page)| Access { kind, count, page: Vpn::new(page) });
    prop::collection::vec(one, 0..200)
}

fn record(accesses: &[Access]) -> Vec<u8> {
    record_by(PageSize::K4, accesses)
}

fn record_by(page: PageSize, accesses: &[Access]) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let header = Header::new("sort", &["-r".into(), "words".into()], page);
    let mut writer = Writer::create(&mut file, header).unwrap();
    for &access in accesses {
        writer.push(access).unwrap();
    }
    writer.finish().unwrap();
    file.into_inner()
}

fn replay(bytes: &[u8]) -> Result<Vec<Access>, TraceError> {
    read(Cursor::new(bytes.to_vec()))?.collect()
}

/// Joins neighbours of the same kind and page, by the definition.
fn joined(accesses: &[Access]) -> Vec<(Kind, Vpn, u64)> {
    let mut runs: Vec<(Kind, Vpn, u64)> = Vec::new();
    for access in accesses {
        match runs.last_mut() {
            Some((kind, page, count)) if (*kind, *page) == (access.kind, access.page) => {
                *count += u64::from(access.count);
            }
            _ => runs.push((access.kind, access.page, access.count.into())),
        }
    }
    runs
}

/// A trace of a few blocks: two loops, and pages that do not pack.
fn long() -> Vec<Access> {
    let mut state = 1u64;
    (0..2_000_000)
        .map(|step| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = if step % 64 == 0 { (state >> 20) as usize } else { step % 7 };
            let kind = if step % 2 == 0 { Kind::Load } else { Kind::Instr };
            Access { kind, count: 1 + (step % 40) as u32, page: Vpn::new(page) }
        })
        .collect()
}

proptest! {
    #[test]
    fn what_is_recorded_is_replayed(accesses in accesses()) {
        let back = replay(&record(&accesses)).unwrap();
        prop_assert_eq!(joined(&back), joined(&accesses));
    }

    #[test]
    fn a_trace_cut_anywhere_is_an_error(accesses in accesses(), cut: prop::sample::Index) {
        let file = record(&accesses);
        let cut = &file[..cut.index(file.len())];
        match replay(cut) {
            Err(TraceError::Truncated { .. }) => {}
            Err(TraceError::NotATrace) => prop_assert!(cut.is_empty()),
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn a_flipped_bit_is_an_error(accesses in accesses(), at: prop::sample::Index, bit in 0..8u32) {
        let mut file = record(&accesses);
        let at = at.index(file.len());
        file[at] ^= 1 << bit;
        prop_assert!(replay(&file).is_err());
    }

    #[test]
    fn noise_is_an_error_or_a_trace_but_no_panic(mut noise: Vec<u8>, after: bool) {
        if after {
            let mut file = record(&[]);
            file.truncate(file.len() - 4);
            file.append(&mut noise);
            noise = file;
        }
        let _ = replay(&noise);
    }
}

#[test]
fn blocks_follow_each_other() {
    let accesses = long();
    let file = record(&accesses);
    let mut bytes = Vec::new();
    let mut coder = format::Coder::default();
    accesses.iter().for_each(|access| coder.encode(access, &mut bytes));
    assert!(bytes.len() > format::BLOCK, "{} bytes are no two blocks", bytes.len());
    let mut reader = Reader::new(&file[..]).unwrap();
    assert_eq!(joined(&reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap()), joined(&accesses));
    let counts = reader.header().counts;
    let different: std::collections::BTreeSet<_> = accesses.iter().map(|access| access.page).collect();
    assert_eq!(counts.pages, different.len() as u64);
    assert_eq!(counts.references, accesses.iter().map(|access| u64::from(access.count)).sum::<u64>());
    assert_eq!(counts.instructions, accesses.iter().map(Access::instructions).sum::<u64>());
}

#[test]
fn the_header_names_the_program() {
    let file = record(&[]);
    let reader = Reader::new(&file[..]).unwrap();
    assert_eq!(
        (&*reader.header().program, &*reader.header().args),
        ("sort", &["-r".into(), "words".into()][..])
    );
    assert_eq!(reader.header().page, PageSize::K4);
    assert_eq!(reader.count(), 0);
}

#[test]
fn an_unfinished_trace_is_truncated() {
    let mut file = Cursor::new(Vec::new());
    let mut writer = Writer::create(&mut file, Header::new("sleep", &[], PageSize::K4)).unwrap();
    for access in long() {
        writer.push(access).unwrap();
    }
    drop(writer);
    let mut trace = read(Cursor::new(file.into_inner())).unwrap();
    assert!(trace.by_ref().any(|access| matches!(access, Err(TraceError::Truncated { .. }))));
    assert!(trace.next().is_none());
}

#[test]
fn a_later_version_says_so() {
    let mut file = record(&[]);
    file[8] = 7;
    assert!(matches!(replay(&file), Err(TraceError::Version { found: 7, .. })));
}

const LACKEY: &str = "\
==6678== Lackey, an example Valgrind tool
==6678==\x20
I  0401ab70,3
I  0401ab73,5
 S 1fff000688,8
I  0401bffe,3
 L 1fff000ffc,8
 M 04033e06,1

";

#[test]
fn lines_are_of_the_program_that_was_named_last() {
    let text = "I  1000,3\n@1\nI  1000,3\nI  ff00000000001000,3\n@300\n@0\nI  ff00000000001000,3\n";
    let mut pages = Vec::new();
    let mut bad = 0;
    for access in read(Cursor::new(text)).unwrap() {
        match access {
            Ok(access) => pages.push(access.page.get()),
            Err(TraceError::Line { .. }) => bad += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // An address of the second program that has something where its number is, and a number that is too large.
    assert_eq!((pages, bad), (vec![1, 1 << 44 | 1, 0xff00_0000_0000_1000 >> 12], 2));
}

fn lackey() -> Vec<Access> {
    let access = |kind, count, page| Access { kind, count, page: Vpn::new(page) };
    vec![
        access(Kind::Instr, 2, 0x401a),
        access(Kind::Store, 1, 0x1ff_f000),
        access(Kind::Instr, 1, 0x401b),
        access(Kind::Rest, 1, 0x401c),
        access(Kind::Load, 1, 0x1ff_f000),
        access(Kind::Load, 1, 0x1ff_f001),
        access(Kind::Modify, 1, 0x4033),
    ]
}

#[test]
fn lackeys_text_is_read_plain_and_packed() {
    assert_eq!(replay(LACKEY.as_bytes()).unwrap(), lackey());

    let mut gz = GzEncoder::new(Vec::new(), Compression::best());
    gz.write_all(LACKEY.as_bytes()).unwrap();
    let gz = gz.finish().unwrap();
    assert_eq!(replay(&gz).unwrap(), lackey());
    assert!(matches!(replay(&gz[..gz.len() - 9]), Err(TraceError::Truncated { .. })));

    // `xz` of the text "I  0401ab70,3\n L 1fff000688,8\n".
    let xz = bytes(XZ);
    let two = replay(&xz).unwrap();
    assert_eq!(two.iter().map(|access| access.kind).collect::<Vec<_>>(), [Kind::Instr, Kind::Load]);
    assert!(replay(&xz[..xz.len() - 40]).is_err());
}

#[test]
fn a_trace_of_lines_or_of_larger_pages_is_one_of_pages_too() {
    let text = format!("{LACKEY} L 1fff000688,40\n");
    let lines: Result<Vec<_>, _> = Text::lackey(text.as_bytes(), LINE).collect();
    let lines = lines.unwrap();
    let last: Vec<_> = lines[lines.len() - 3..].iter().map(|access| access.page.get()).collect();
    assert_eq!(last, [0x1_fff0_0068, 0x1_fff0_0069, 0x1_fff0_006a]);

    let file = record_by(LINE, &lines);
    let mut trace = read(Cursor::new(file.clone())).unwrap();
    let (unit, raw) = trace.raw();
    assert_eq!((unit, raw.collect::<Result<Vec<_>, _>>().unwrap()), (LINE, lines));
    let mut pages = lackey();
    pages.push(Access { kind: Kind::Load, count: 3, page: Vpn::new(0x1ff_f000) });
    assert_eq!(joined(&replay(&file).unwrap()), joined(&pages));

    let larger = [Access { kind: Kind::Load, count: 3, page: Vpn::new(5) }];
    let file = record_by(PageSize::from_shift(16).unwrap(), &larger);
    assert_eq!(replay(&file).unwrap(), larger.map(|access| Access { page: Vpn::new(0x50), ..access }));
}

const XZ: &str = "\
    fd 37 7a 58 5a 00 00 04 e6 d6 b4 46 02 00 21 01 16 00 00 00 74 2f e5 a3 01 00 1d 49 20 20 30 34 \
    30 31 61 62 37 30 2c 33 0a 20 4c 20 31 66 66 66 30 30 30 36 38 38 2c 38 0a 00 00 00 51 7e 61 6b \
    05 55 5f 4d 00 01 36 1e 3d 19 95 53 1f b6 f3 7d 01 00 00 00 00 04 59 5a";

const ZSTD: &str = "\
    28 b5 2f fd 04 68 35 01 00 f0 49 20 20 30 34 30 31 61 62 37 30 2c 33 0a 20 4c 20 31 66 66 66 30 \
    30 30 36 38 38 2c 38 0a 01 00 de 08 95 72 02 d7 37 a2 44";

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[test]
fn frames_of_zstd_follow_each_other() {
    // `zstd` of twenty times the text above, without a size, with a checksum.
    let frame = bytes(ZSTD);
    let one = replay(&frame).unwrap();
    assert_eq!(one.len(), 40);
    let three = replay(&frame.repeat(3)).unwrap();
    assert_eq!(three, one.repeat(3));
    for cut in 4..frame.len() {
        assert!(replay(&frame[..cut]).is_err() || cut >= frame.len() - 4, "{cut}");
    }
    assert!(replay(&[&frame[..], b"more"].concat()).is_err());
}

#[test]
fn lines_may_end_as_another_system_ends_them() {
    assert_eq!(replay(LACKEY.replace('\n', "\r\n").as_bytes()).unwrap(), lackey());
    assert_eq!(replay(VIEW.replace('\n', "\r\n").as_bytes()).unwrap(), viewed());
}

const VIEW: &str = "\
Output format:
<--record#-> <--instr#->: <---tid---> <record details>
------------------------------------------------------------
           1           0:     3264503 <marker: version 7>
           2           0:     3264503 <marker: tid 3264503 on core 10>
           3           1:     3264503 ifetch       3 byte(s) @ 0x00007fe7a1c3affe 48 89 e7             mov    %rsp -> %rdi
           4           2:    T3264503 ifetch       8 byte(s) @ 0x00007fe7a1c3b001 48 8d 34 25 00 20 40 lea    0x00402000 -> %rsi
           4           2:     3264503                                             00
           5           2: W0.T3264504 read         8 byte(s) @ 0x00007ffe49ad5ffc by PC 0x00007fe7a1c3b001
           6           2:     3264503 pref-r-L1    1 byte(s) @ 0x0000000000001000 by PC 0x00007fe7a1c3b001
           7           2:     3264503 write        8 byte(s) @ 0x00007ffe49ad6004 by PC 0x00007fe7a1c3b001
           8           2:     3264503 <thread 3264503 exited>
View tool results:
              2 : total instructions
";

fn viewed() -> Vec<Access> {
    let access = |kind, page| Access { kind, count: 1, page: Vpn::new(page) };
    vec![
        access(Kind::Instr, 0x7_fe7a_1c3a),
        access(Kind::Rest, 0x7_fe7a_1c3b),
        access(Kind::Instr, 0x7_fe7a_1c3b),
        access(Kind::Load, 0x7_ffe4_9ad5),
        access(Kind::Load, 0x7_ffe4_9ad6),
        access(Kind::Store, 0x7_ffe4_9ad6),
    ]
}

#[test]
fn what_dynamorio_prints_is_read_with_its_head_and_without() {
    assert_eq!(replay(VIEW.as_bytes()).unwrap(), viewed());
    let (_, rest) = VIEW.split_once("---\n").unwrap();
    assert_eq!(replay(rest.as_bytes()).unwrap(), viewed());
    let bad = VIEW.replace("8 byte(s) @ 0x00007ffe49ad5ffc", "8 byte(s) 0x00007ffe49ad5ffc");
    let read: Vec<_> = read(Cursor::new(bad)).unwrap().collect();
    let errors: Vec<_> =
        read.iter().filter_map(|access| access.as_ref().err()).map(ToString::to_string).collect();
    assert!(
        matches!(&errors[..], [error] if error.starts_with("line 9 (byte") && error.contains("DynamoRIO")),
        "{errors:?}"
    );
    assert_eq!(read.len(), viewed().len() - 2 + 1);
}

/// Returns a record of ChampSim's.
fn record_of_champsim(ip: u64, stores: [u64; 2], loads: [u64; 4]) -> Vec<u8> {
    let mut record = ip.to_le_bytes().to_vec();
    // A branch that is taken, and registers.
    record.extend([1, 1, 6, 0, 25, 6, 0, 0]);
    record.extend(stores.iter().chain(&loads).flat_map(|at| at.to_le_bytes()));
    record
}

#[test]
fn champsims_records_are_read_plain_and_packed() {
    let top = 0xffff_ffff_8100_0000;
    // The first byte is that of an instruction of lackey's.
    let records = [
        record_of_champsim(0x40_1049, [0; 2], [0x7fff_0000_1008, 0x5000, 0, 0]),
        record_of_champsim(top, [0x5008, 0x6000], [0x6000, 0, 0, 0]),
    ]
    .concat();
    let access = |kind, page| Access { kind, count: 1, page: Vpn::new(page) };
    let accesses = vec![
        access(Kind::Instr, 0x401),
        access(Kind::Load, 0x7_fff0_0001),
        access(Kind::Load, 0x5),
        access(Kind::Instr, top as usize >> 12),
        access(Kind::Store, 0x5),
        access(Kind::Modify, 0x6),
    ];
    assert_eq!(replay(&records).unwrap(), accesses);
    assert_eq!(replay(&record(&accesses)).unwrap(), accesses);
    let mut gz = GzEncoder::new(Vec::new(), Compression::best());
    gz.write_all(&records).unwrap();
    assert_eq!(replay(&gz.finish().unwrap()).unwrap(), accesses);
    assert!(matches!(replay(&records[..100]), Err(TraceError::Truncated { offset: 100 })));
    // A flag that is none, and an address whose upper bits differ.
    for (at, byte) in [(8, 2), (6, 1), (38, 1)] {
        let mut other = records.clone();
        other[at] = byte;
        assert!(!matches!(read(Cursor::new(other)), Ok(Trace::ChampSim(_))), "{at}");
    }
}

#[test]
fn a_recording_of_lackeys_text_is_the_same_trace() {
    let lackey = lackey();
    assert_eq!(replay(&record(&lackey)).unwrap(), lackey);
}

#[test]
fn bad_lines_are_named_and_can_be_skipped() {
    let long = "x".repeat(1000);
    let lines = [
        "I  0401ab70,3",
        "I  0401ab7",
        " L 1fff000688,8",
        "I  ,3",
        " L ffffffffffffffff,2",
        " S 10,0",
        "Z  10,4",
        &long,
        " S 10,9999999999999999999999",
        " S 10000000000000000,4",
        "I  0401ab70,3",
    ];
    let text = lines.join("\n");
    let trace: Vec<_> = read(Cursor::new(text.clone().into_bytes())).unwrap().collect();
    let good = trace.iter().filter(|access| access.is_ok()).count();
    let bad: Vec<_> = trace
        .iter()
        .filter_map(|access| match access {
            Err(TraceError::Line { line, offset, text, .. }) => Some((*line, *offset, text)),
            _ => None,
        })
        .collect();
    assert_eq!(good, 3);
    assert_eq!(bad.iter().map(|bad| bad.0).collect::<Vec<_>>(), [2, 4, 5, 6, 7, 8, 9, 10]);
    for (line, offset, begin) in bad {
        assert!(text[offset as usize..].starts_with(&**begin), "line {line}");
    }
}

#[test]
fn other_files_are_no_traces() {
    for bytes in [&b""[..], b"\x7fELF\x02\x01\x01", b"{}", b"TLBTRICK and more than that"] {
        assert!(matches!(replay(bytes), Err(TraceError::NotATrace)), "{bytes:?}");
    }
    let missing = Input::File("no/such/file".into());
    let opened = open(&missing, &indicatif::ProgressBar::hidden());
    assert!(matches!(opened, Err(TraceError::Open { .. })));
}

#[test]
fn every_error_is_one_line() {
    let mut shortened = record(&lackey());
    shortened.truncate(60);
    for bytes in [&b""[..], &shortened, b"I  zzz\n"] {
        let text = replay(bytes).unwrap_err().to_string();
        assert!(!text.contains('\n') && text.len() > 20, "{text}");
    }
}
