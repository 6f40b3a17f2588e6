//! `tlblab witness`: what holds, what is told, and what is refused with its line's number.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn witness(args: &[&str], log: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tlblab"))
        .args(["witness", "-"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

const LOG: &str = "\
# One page, which two CPUs reach.
0 write 0x1000 0x2027
0 write 0x2000 0x3027
0 write 0x3000 0x4027
0 write 0x4000 0x80067

0 root 0x1000
1 root 0x1000
0 write 0x4000 0
0 fence va 0
1 fence va 0        # the mended form has this line
0 frame free 0x80000 4096
";

#[test]
fn a_log_that_holds_is_counted_and_one_that_does_not_is_told() {
    let held = witness(&["--arch", "x86_64"], LOG);
    assert_eq!(held.status.code(), Some(0));
    let text = String::from_utf8(held.stdout).unwrap();
    assert_eq!(
        text,
        "10 events hold: 5 writes, 2 fences, 1 nodes and frames freed, 0 changes promised, 0 accesses\n"
    );

    let bad = LOG.replace("1 fence", "# 1 fence");
    let told = witness(&["--arch", "x86_64"], &bad);
    assert_eq!(told.status.code(), Some(1));
    let text = String::from_utf8(told.stdout).unwrap();
    assert!(text.starts_with("frame-reached\n  line 12: "), "{text}");
    assert!(
        text.contains("CPU 1 may hold since line 5") && text.contains("that reached CPU 1 is older: line 8"),
        "{text}"
    );
}

#[test]
fn json_is_one_object() {
    let object = |log: &str| -> serde_json::Value {
        serde_json::from_slice(&witness(&["--arch", "x86_64", "--json"], log).stdout).unwrap()
    };
    let held = object(LOG);
    assert_eq!((&held["holds"], &held["events"], &held["freed"]), (&true.into(), &10.into(), &1.into()));
    let told = object(&LOG.replace("1 fence", "# 1 fence"));
    assert_eq!((&told["holds"], &told["rule"]), (&false.into(), &"frame-reached".into()));
    assert_eq!((&told["line"], &told["cpu"]), (&12.into(), &1.into()));
    assert_eq!(told["story"].as_array().unwrap().len(), 3);
}

#[test]
fn what_is_no_event_is_refused_in_one_line_with_its_number() {
    for (line, why) in [
        ("0 write 0x1000", "the line ends where a value is expected"),
        ("0 write 0x1004 1", "a word's address is a multiple of 8"),
        ("0 wrote 0x1000 1", "an event is expected"),
        ("0 uses", "the line ends where `dirty`, `halves` or `asid` is expected"),
        ("0 fence leaf leaf", "`leaf` stands twice"),
        ("0 fence va 0 asid 1 va 0x1000", "`va` stands twice"),
        ("64 root 0", "a CPU's number is below 64"),
        ("cpu0 root 0", "a CPU's number is expected"),
        ("0 root 0x", "the root register's value is expected"),
        ("0 root 1 2", "the line goes on after its event"),
        ("0 fence va 0x2000 0x1000", "the range ends before it begins"),
        ("0 fence va 0x800000000000", "no virtual address of this architecture"),
        ("0 frame free 0x1000 0", "a range of memory is expected"),
        ("0 ipi send none 3", "a list of CPUs with commas between them is expected"),
        ("1 ipi take 3", "this interrupt was not sent to this CPU, or was taken already"),
        ("0 barrier dsb ishst", "only AArch64 has this barrier"),
        ("0 barrier isb", "only AArch64 has an `isb` that concerns translations"),
        ("0 fence va 0 leaf", "this architecture has no such fence for the last level alone"),
        ("0 fence broadcast leaf", "a fence for the last level alone names an address"),
        ("0 root 0x10000000001000", "CR3 has reserved bits"),
        ("0 done 3", "no change of this number has begun"),
    ] {
        let refused = witness(&["--arch", "x86_64"], &format!("{LOG}{line}\n"));
        let text = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(
            (refused.status.code(), &*text),
            (Some(2), &*format!("tlblab: line 13: {why}\n")),
            "{line}"
        );
        assert!(refused.stdout.is_empty(), "{line}");
        let refused = witness(&["--arch", "x86_64", "--json"], &format!("{LOG}{line}\n"));
        let object: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert_eq!((refused.status.code(), &object["holds"]), (Some(2), &false.into()), "{line}");
        assert_eq!((&object["line"], &object["why"]), (&13.into(), &why.into()), "{line}");
    }
    for (arch, line, why) in [
        ("sv32", "0 root 0x180001000", "the root register has 32 bits"),
        ("mips32", "0 root 0x100001000", "the root register has 32 bits"),
        ("sv39", "0 barrier tlbsync", "only x86-64 has this barrier"),
        ("sv39", "0 fence va 0 leaf", "this architecture has no such fence for the last level alone"),
    ] {
        let refused = witness(&["--arch", arch], line);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(
            (refused.status.code(), &*text),
            (Some(2), &*format!("tlblab: line 1: {why}\n")),
            "{line}"
        );
    }
}

/// A log of which nothing was checked, or of which an event is missing, does not hold.
#[test]
fn what_is_incomplete_has_no_verdict() {
    for (log, why) in
        [("# nothing\n", "nothing was checked"), (&*format!("{LOG}1 gap\n"), "an event is missing")]
    {
        let refused = witness(&["--arch", "x86_64"], log);
        assert_eq!((refused.status.code(), refused.stdout.is_empty()), (Some(2), true), "{log}");
        assert!(String::from_utf8(refused.stderr).unwrap().starts_with(&format!("tlblab: {why}")));
        let refused = witness(&["--arch", "x86_64", "--json"], log);
        assert_eq!(refused.status.code(), Some(2));
        let object: serde_json::Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert_eq!(object["holds"], false);
        assert!(object["why"].as_str().unwrap().starts_with(why), "{object}");
    }
}

/// Software loads the TLB of MIPS32, in pairs: a flush of either half takes both.
#[test]
fn a_machine_whose_tlb_software_loads_is_checked() {
    let log = "\
0 write 0x1000 0x80002000
0 write 0x2000 0x2006
0 write 0x2004 0x2046
0 root 0x1001
0 refill 0x1000 0x2006 0x2046
0 write 0x2000 0
0 fence va 0x1000 asid 1
0 frame free 0x80000 4096
";
    let held = witness(&["--arch", "mips32"], log);
    assert_eq!(held.status.code(), Some(0), "{}", String::from_utf8_lossy(&held.stdout));
    let told = witness(&["--arch", "mips32"], &log.replace("asid 1", "asid 2"));
    let text = String::from_utf8(told.stdout).unwrap();
    assert!(text.starts_with("frame-reached\n  line 8: ") && text.contains("names another ASID"), "{text}");
    let refused = witness(&["--arch", "sv39"], "0 refill 0 0 0\n");
    assert_eq!(refused.status.code(), Some(2));
}

/// A record in the memory of a machine: a page is mapped for two CPUs, unmapped, flushed on `last` of them, and its frame freed.
fn memory(last: u64) -> Vec<u8> {
    let write = |at, value| [0, at, value, 0];
    let mut events = vec![
        (0, write(0x1000, 0x801)),
        (0, write(0x2000, 0xc01)),
        (0, write(0x3000, 0x200cf)),
        (0, [4 | 1 << 8, 0, 0, 0]),
        (0, [2, 8 << 60 | 1, 0, 0]),
        (1, [2, 8 << 60 | 1, 0, 0]),
        (0, write(0x3000, 0)),
        (0, [7, 2, 0, 5]),
        (1, [8, 5, 0, 0]),
    ];
    events.extend((0..last).map(|cpu| (cpu as usize, [3, 0, 0, 0])));
    events.push((0, [6 | 1 << 8, 0x8_0000, 4096, 0]));
    // 64 bytes, and then two logs with room for ten events each; a page comes before the recorder.
    let mut words = vec![0_u64; 1024];
    for (number, (cpu, event)) in (1..).zip(events) {
        let log = 512 + 8 + cpu * 56;
        let slot = log + 1 + words[log] as usize * 5;
        words[log] += 1;
        words[512] = number;
        words[slot] = number;
        words[slot + 1..slot + 5].copy_from_slice(&event);
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_recorder_is_read_out_of_memory() {
    let file = std::env::temp_dir().join(format!("tlblab-memory-{}", std::process::id()));
    let told = |last: u64, place: &str| {
        std::fs::write(&file, memory(last)).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tlblab"))
            .args(["witness", file.to_str().unwrap(), "--arch", "sv39", "--recorder", place])
            .output()
            .unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), text)
    };
    const PLACE: &str = "at=0x1000,word=8,cpus=2,events=10";
    let (code, text) = told(2, PLACE);
    assert!(code == Some(0) && text.starts_with("12 events hold: "), "{text}");
    let (code, text) = told(1, PLACE);
    assert!(code == Some(1) && text.starts_with("frame-reached\n  line 11: "), "{text}");
    for (place, why) in [
        ("at=0x1000,word=8,cpus=2", "`events` is missing"),
        ("at=0x1000,word=8,cpus=2,event=10", "a recorder has no `event`"),
        ("at=one,word=8,cpus=2,events=10", "`one` is no number"),
        ("at=0,word=8,cpus=2,events=10", "no event has been recorded at this address"),
    ] {
        let (code, text) = told(2, place);
        assert!(code == Some(2) && text.contains(why), "{text}");
    }
    std::fs::remove_file(&file).unwrap();
}

/// AArch64 with addresses of 39 bits, as Android has: with `aarch64` its pages would be taken for nodes.
#[test]
fn aarch64_with_39_bits() {
    const PAGE: &str = "0 write 0x1000 0x2003\n0 write 0x2000 0x3003\n0 write 0x3000 0x80f43\n";
    const HIGH: &str = "0 write 0x1ff8 0x2003\n0 write 0x2ff8 0x3003\n0 write 0x3ff8 0x80f43\n";
    const RUN: &str = "0 barrier dsb\n0 root 0x1000\n";
    const FREE: &str = "0 frame free 0x80000 4096\n";
    let fenced = "0 write 0x3000 0\n0 barrier dsb\n0 fence va 0x0 broadcast\n0 barrier dsb\n";
    for (log, code) in [
        // An access that the page allows, and no fence before the frame is free.
        (format!("{PAGE}{RUN}0 access 0x0 load user 0x80000\n"), 0),
        (format!("{PAGE}{RUN}0 write 0x3000 0\n{FREE}"), 1),
        (format!("{PAGE}{RUN}{fenced}{FREE}"), 0),
        (format!("{HIGH}{RUN}0 access 0x7ffffff000 load kernel 0x80000\n"), 0),
        (format!("{PAGE}0 write 0x3008 0x81f43\n{RUN}0 access 0x1000 load user 0x81000\n"), 0),
    ] {
        let told = witness(&["--arch", "aarch64-39"], &log);
        assert_eq!(told.status.code(), Some(code), "{log}{}", String::from_utf8_lossy(&told.stdout));
    }
}
