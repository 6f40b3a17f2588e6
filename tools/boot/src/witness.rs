//! The witness over a boot: the kernel's record, out of the machine's memory, goes through the checker of `tlbkit-witness`.
//!
//! The memory of the machine is a file, so that nothing has to be sent out of it, and a machine that was stopped leaves its record,
//! too. The kernel says where in memory the recorder is.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use tlbkit_witness::check::{self, Arch, Checked, Checker, Place, Refusal};

use tlbkit_shell::{Line, places};

/// The verdict on a log that breaks no rule.
pub(super) const HOLDS: &str = "holds";

/// What the witness needs to know of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    /// Whose rules hold.
    pub(super) arch: Arch,
    /// Their name for `tlblab witness`.
    pub(super) name: &'static str,
    /// The physical address of the first byte of memory.
    pub(super) memory: u64,
    /// How much memory there is, as QEMU has it.
    pub(super) size: &'static str,
}

/// Where a boot's record goes.
#[derive(Debug)]
pub(super) struct Record {
    machine: Machine,
    /// The file that is the machine's memory.
    memory: PathBuf,
    /// The log in the text form.
    log: PathBuf,
}

/// What the checker says of a boot.
#[derive(Debug)]
pub(super) struct Outcome {
    machine: Machine,
    log: PathBuf,
    events: usize,
    /// Events that were being recorded when the machine stopped.
    missing: u64,
    outcome: Result<Checked, Refusal>,
}

impl Record {
    /// Returns the place for the record of so many CPUs.
    pub(super) fn new(machine: Machine, cpus: usize) -> anyhow::Result<Self> {
        let folder = places::target().join("witness");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let file = |ending: &str| folder.join(format!("{}-{cpus}.{ending}", machine.name));
        let record = Self { machine, memory: file("memory"), log: file("witness") };
        record.clear()?;
        Ok(record)
    }

    fn clear(&self) -> anyhow::Result<()> {
        let is_gone = !self.memory.exists() || fs::remove_file(&self.memory).is_ok();
        ensure!(is_gone, "cannot remove {}", self.memory.display());
        Ok(())
    }

    /// Adds QEMU's words for a memory that is the file.
    pub(super) fn memory(&self, line: Line) -> Line {
        let size = self.machine.size;
        let file = self.memory.to_string_lossy();
        let memory = format!("memory-backend-file,id=ram,size={size},mem-path={file},share=on");
        line.with(["-m", size, "-machine", "memory-backend=ram", "-object", &memory])
    }

    /// Reads the record where the kernel has said that it is, writes it in the text form, and checks it.
    ///
    /// # Errors
    ///
    /// If there is no record that can be read, or no room for the log.
    pub(super) fn check(&self, said: Option<&Value>) -> anyhow::Result<Outcome> {
        let said = said.context("the kernel has not said where its record is")?;
        let number = |name: &str| said[name].as_u64().with_context(|| format!("a record without `{name}`"));
        let place = Place {
            at: number("at")?.checked_sub(self.machine.memory).context("a record that is not in memory")?,
            word: number("word")? as usize,
            cpus: number("cpus")? as usize,
            events: number("events")? as usize,
        };
        let mut memory = File::open(&self.memory).context("there is no memory")?;
        let check::Recorded { events, missing } =
            check::read(&mut memory, place).context("cannot read the record")?;
        self.clear()?;
        write(&self.log, &events).with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut checker = Checker::new(self.machine.arch);
        let mut lines = (1..).zip(&events);
        let outcome = lines.try_for_each(|(line, &(cpu, event))| checker.event(line, cpu, event));
        let outcome = outcome.map(|()| checker.checked());
        Ok(Outcome { machine: self.machine, log: self.log.clone(), events: events.len(), missing, outcome })
    }
}

fn write(log: &Path, events: &[(usize, tlbkit_witness::event::Event)]) -> std::io::Result<()> {
    let mut text = BufWriter::new(File::create(log)?);
    events.iter().try_for_each(|(cpu, event)| writeln!(text, "{cpu} {event}"))?;
    text.flush()
}

impl Outcome {
    /// Returns what a row says of it: the counts of what was checked, or the rule that was broken, and how.
    pub(super) fn json(&self) -> Value {
        let mut row =
            Map::from_iter([("events".into(), json!(self.events)), ("missing".into(), json!(self.missing))]);
        let more = match &self.outcome {
            Ok(checked @ Checked { writes, fences, freed, promised, full, .. }) => json!({
                "holds": checked.incomplete().is_none(), "writes": writes, "fences": fences, "freed": freed, "promised": promised, "full": full,
            }),
            Err(Refusal::Violation(why)) => json!({
                "holds": false, "rule": why.rule().name(), "line": why.line(), "cpu": why.cpu(), "story": why.story(),
            }),
            Err(why) => json!({ "holds": false, "why": why.to_string() }),
        };
        row.extend(more.as_object().cloned().unwrap_or_default());
        row.insert("log".into(), json!(self.log.to_string_lossy()));
        Value::Object(row)
    }

    /// Returns the lines for people.
    pub(super) fn text(&self) -> String {
        let row = self.json();
        let names = ["events", "missing", "writes", "fences", "freed", "promised"];
        let counts = names.iter().filter_map(|name| Some((name, row.get(*name)?.as_u64()?)));
        let counts =
            counts.map(|(name, count)| format!("witness {name:<8} {count:>9}\n")).collect::<String>();
        let verdict = match &self.outcome {
            Ok(Checked { full: true, .. }) => "the record was full: what came after it is not checked".into(),
            Ok(checked) => checked.incomplete().unwrap_or("the log holds").into(),
            Err(Refusal::Violation(why)) => format!("{}\n  {}", why.rule().name(), why.story().join("\n  ")),
            Err(why) => why.to_string(),
        };
        let (log, arch) = (self.log.display(), self.machine.name);
        let again = format!("cargo run --release -p tlblab -- witness {log} --arch {arch}");
        format!("{counts}witness: {verdict}\n  to check it again: {again}\n")
    }

    /// Returns the verdict in one word: `holds`, or the rule that was broken.
    ///
    /// # Errors
    ///
    /// If the record was full, or is no log.
    pub(super) fn verdict(&self) -> anyhow::Result<&'static str> {
        match &self.outcome {
            Err(Refusal::Violation(why)) => Ok(why.rule().name()),
            _ => self.holds().map(|()| HOLDS),
        }
    }

    /// Tells whether the whole log holds.
    ///
    /// # Errors
    ///
    /// If it does not, or was full.
    pub(super) fn holds(&self) -> anyhow::Result<()> {
        match &self.outcome {
            Ok(checked) => {
                ensure!(!checked.full, "the record was full");
                if let Some(why) = checked.incomplete() {
                    anyhow::bail!("the witness: {why}");
                }
            }
            Err(Refusal::Violation(why)) => anyhow::bail!("the witness: {}", why.rule().name()),
            Err(why) => anyhow::bail!("the witness: {why}"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a record in memory of 4 KiB: its numbers, each with the CPU that recorded it and four words.
    fn memory(events: &[(u64, usize, [u64; 4])], full: bool) -> Vec<u8> {
        let mut words = vec![0_u64; 512];
        words[1] = u64::from(full);
        for &(number, cpu, event) in events {
            // Logs of two CPUs with room for ten events each, after 64 bytes.
            let log = 8 + cpu * 56;
            let slot = log + 1 + words[log] as usize * 5;
            words[log] += 1;
            words[0] = words[0].max(number);
            words[slot] = number;
            words[slot + 1..slot + 5].copy_from_slice(&event);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn checked(name: &str, memory: &[u8]) -> Outcome {
        let folder = std::env::temp_dir().join(format!("tlbkit-boot-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |ending: &str| folder.join(format!("{name}.{ending}"));
        let machine = Machine { arch: Arch::Sv39, name: "sv39", memory: 0x8000_0000, size: "1G" };
        let record = Record { machine, memory: file("memory"), log: file("witness") };
        fs::write(&record.memory, memory).unwrap();
        let said = json!({ "at": 0x8000_0000_u64, "word": 8, "cpus": 2, "events": 10 });
        let outcome = record.check(Some(&said)).unwrap();
        assert!(!record.memory.exists());
        outcome
    }

    /// A page is mapped for two CPUs, unmapped, flushed on `last` of them, and its frame freed.
    fn events(last: usize) -> Vec<(u64, usize, [u64; 4])> {
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
        events.extend((0..last).map(|cpu| (cpu, [3, 0, 0, 0])));
        events.push((0, [6 | 1 << 8, 0x8_0000, 4096, 0]));
        (1..).zip(events).map(|(number, (cpu, event))| (number, cpu, event)).collect()
    }

    #[test]
    fn what_lies_in_memory_is_checked() {
        let held = checked("held", &memory(&events(2), false));
        assert!(held.holds().is_ok(), "{}", held.text());
        assert_eq!(held.verdict().unwrap(), HOLDS);
        assert_eq!((held.json()["events"].as_u64(), held.json()["freed"].as_u64()), (Some(12), Some(1)));

        let broken = checked("broken", &memory(&events(1), false));
        assert_eq!(broken.holds().unwrap_err().to_string(), "the witness: frame-reached");
        assert_eq!(broken.verdict().unwrap(), "frame-reached");
        assert_eq!((&broken.json()["line"], &broken.json()["cpu"]), (&json!(11), &json!(1)));
        let log = fs::read_to_string(&broken.log).unwrap();
        assert_eq!(log.lines().last(), Some("0 frame free 0x80000 4096"));
    }

    /// What other CPUs recorded after the event in whose midst a CPU was stopped is checked, too.
    #[test]
    fn an_event_that_was_being_recorded_hides_none() {
        let without_third = |last| {
            let later = |(number, cpu, event)| (number + u64::from(number > 3), cpu, event);
            memory(&events(last).into_iter().map(later).collect::<Vec<_>>(), false)
        };
        let stopped = checked("stopped", &without_third(2));
        assert_eq!((stopped.verdict().unwrap(), stopped.missing), (HOLDS, 1));
        assert_eq!(stopped.json()["missing"], json!(1));
        assert_eq!(checked("stopped", &without_third(1)).verdict().unwrap(), "frame-reached");
    }

    /// A record that was full holds as far as it goes, and that is no verdict on the boot.
    #[test]
    fn a_full_record_is_no_success() {
        let full = checked("full", &memory(&events(2), true));
        assert_eq!(full.holds().unwrap_err().to_string(), "the record was full");
        assert!(full.verdict().is_err());
        assert_eq!(full.json()["full"], json!(true));
    }

    #[test]
    fn a_kernel_that_says_nothing_of_a_record_has_failed() {
        let machine = Machine { arch: Arch::Sv39, name: "sv39", memory: 0, size: "1G" };
        let record = Record { machine, memory: PathBuf::new(), log: PathBuf::new() };
        assert!(record.check(None).is_err());
        assert!(record.check(Some(&json!({ "at": 0 }))).is_err());
    }
}
