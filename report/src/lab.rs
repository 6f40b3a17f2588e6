//! The data: runs of `tlblab ... --json`, and of `cargo xtask boot ... --json`, each kept under a name that is the hash of
//! all that it depends on.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::Cli;
use crate::children::Children;
use crate::rows::Rows;

/// The shipped programs, and what each is an example of.
pub(crate) const TRACES: [(&str, &str); 7] = [
    ("cc1", "compiler"),
    ("gzip", "compressor"),
    ("grep", "search"),
    ("sort", "sort"),
    ("sqlite", "database"),
    ("perl", "interpreter"),
    ("multiply", "numeric kernel"),
];

/// What the guest's data depend on: the kernel and all that it embeds, and what reads what it says.
const GUEST: [&str; 5] = ["examples/mips32", "crates", "xtask/plugin", "xtask/src/boot.rs", "xtask/src/boot"];

/// The emulator that the guest runs in.
const EMULATOR: &str = "qemu-system-mipsel";

/// Where data comes from.
#[derive(Debug)]
pub(crate) struct Lab {
    program: PathBuf,
    /// The program that boots the kernel: xtask.
    boot: Option<PathBuf>,
    children: Arc<Children>,
    /// A lock for each file of the cache: what two papers want is made once.
    kept: Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>,
    /// The hash of the program: another build may give other data.
    version: Vec<u8>,
    traces: PathBuf,
    cache: PathBuf,
    /// Whether a few minutes must do.
    pub(crate) quick: bool,
    bar: ProgressBar,
}

impl Lab {
    /// Returns the lab whose program is `program`.
    ///
    /// # Errors
    ///
    /// If the program or a trace is missing, or the cache's folder cannot be made.
    pub(crate) fn new(args: &Cli, children: Arc<Children>, bar: ProgressBar) -> anyhow::Result<Self> {
        let (program, traces) = (&args.lab, &args.traces);
        let cache = args.cache.clone().unwrap_or_else(|| args.out.join("cache"));
        let version = fs::read(program).with_context(|| {
            format!(
                "cannot read the lab's program {}: run `cargo xtask report`, which builds it",
                program.display()
            )
        })?;
        for folder in [&args.out, &cache] {
            fs::create_dir_all(folder).with_context(|| {
                format!("cannot write to {}: choose another folder with --out", folder.display())
            })?;
        }
        let lab = Self {
            program: program.clone(),
            boot: args.boot.clone(),
            children,
            kept: Mutex::default(),
            version: Sha256::digest(version).to_vec(),
            traces: traces.clone(),
            cache,
            quick: args.quick,
            bar,
        };
        for (name, _) in TRACES {
            let path = lab.trace(name);
            if !path.is_file() {
                let folder = traces.display();
                bail!("{} is missing: check it out, or record it by {folder}/record", path.display());
            }
        }
        Ok(lab)
    }

    /// Returns the file of a shipped trace.
    pub(crate) fn trace(&self, name: &str) -> PathBuf {
        self.traces.join(format!("{name}.tlbt"))
    }

    /// Returns what the lab prints for these arguments, `--json` added.
    ///
    /// # Errors
    ///
    /// If it fails: its own line, which says what to do.
    pub(crate) fn rows(&self, args: &str) -> anyhow::Result<Rows> {
        let command = format!("tlblab {args}");
        self.keep(&self.key(args)?, &command, || {
            Ok(self.run(Command::new(&self.program).args(args.split_whitespace())))
        })
    }

    /// Returns what the kernel in the emulator says, when booted with these arguments; or, as the report does without,
    /// why there is nothing.
    pub(crate) fn guest(&self, args: &str) -> Result<Rows, String> {
        let command = format!("cargo xtask boot {args}");
        let rows = || {
            let mut hash = Sha256::new();
            for source in GUEST {
                sources(Path::new(source), &mut hash)?;
            }
            hash.update(args);
            self.keep(&hex(hash), &command, || {
                let Some(boot) = &self.boot else { bail!("only `cargo xtask report` boots the kernel") };
                if self.children.output(Command::new(EMULATOR).arg("--version")).is_err() {
                    bail!("{EMULATOR} is missing: `cargo xtask boot` installs it, or says how");
                }
                Ok(self.run(Command::new(boot).arg("boot").args(args.split_whitespace())))
            })
        };
        rows().map_err(|error: anyhow::Error| format!("{error:#}"))
    }

    /// Returns the data that are kept under a name, or makes them and keeps them.
    fn keep(
        &self,
        name: &str,
        command: &str,
        make: impl FnOnce() -> anyhow::Result<io::Result<Output>>,
    ) -> anyhow::Result<Rows> {
        let kept = self.cache.join(format!("{name}.json"));
        // A thread that panicked with a lock has left no part of a file.
        let lock = {
            let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(kept.clone()).or_default())
        };
        let _made_by_one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.bar.set_message(command.to_owned());
        if let Some(rows) = fs::read(&kept).ok().and_then(|text| rows(&text)) {
            return Ok(Rows::new(command.to_owned(), rows));
        }
        let output = make()?.with_context(|| format!("cannot run `{command}`"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().last().unwrap_or("it failed without a word");
            bail!("`{command}`: {}", line.trim_start_matches("tlblab: ").trim_start_matches("xtask: "));
        }
        let Some(rows) = rows(&output.stdout) else { bail!("`{command} --json` printed no array of rows") };
        write(&kept, &output.stdout)?;
        Ok(Rows::new(command.to_owned(), rows))
    }

    /// Runs a program for its rows.
    fn run(&self, line: &mut Command) -> io::Result<Output> {
        self.children.output(line.arg("--json"))
    }

    /// Returns the hash of all that the data of a command depends on: program, arguments, traces.
    fn key(&self, args: &str) -> anyhow::Result<String> {
        let mut hash = Sha256::new();
        hash.update(&self.version);
        for word in args.split_whitespace() {
            hash.update(word.as_bytes());
            hash.update([0]);
            if word.ends_with(".tlbt") {
                hash.update(fs::read(word).with_context(|| format!("cannot read the trace {word}"))?);
            }
        }
        Ok(hex(hash))
    }
}

/// Returns a hash as the name of a file.
fn hex(hash: Sha256) -> String {
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Adds a file, or all that is in a folder, to a hash.
///
/// # Errors
///
/// If it cannot be read.
fn sources(path: &Path, hash: &mut Sha256) -> anyhow::Result<()> {
    let unreadable = || format!("cannot read {}", path.display());
    if path.is_dir() {
        let entries = fs::read_dir(path).with_context(unreadable)?;
        let mut within: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        within.sort();
        return within.iter().try_for_each(|path| sources(path, hash));
    }
    let text = fs::read(path).with_context(unreadable)?;
    hash.update(path.to_string_lossy().as_bytes());
    // Its length keeps two files apart.
    hash.update(text.len().to_le_bytes());
    hash.update(text);
    Ok(())
}

/// Returns the rows that a program printed.
fn rows(text: &[u8]) -> Option<Vec<Value>> {
    match serde_json::from_slice(text) {
        Ok(Value::Array(rows)) if !rows.is_empty() => Some(rows),
        _ => None,
    }
}

/// Writes a file so that at no time a part of it stands under its name.
///
/// # Errors
///
/// If the folder cannot be written.
pub(crate) fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    // Two runs at once do not write the same part.
    let part = path.with_extension(format!("part{}", std::process::id()));
    let outcome = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    if outcome.is_err() {
        // Best effort: the error that comes first is the one to report.
        let _ = fs::remove_file(&part);
    }
    outcome.with_context(|| format!("cannot write {}: choose another folder with --out", path.display()))
}
