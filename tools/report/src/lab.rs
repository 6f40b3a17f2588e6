//! The data: the lab's experiments, called in this process, and runs of `cargo xtask boot ... --json`. What each gives is
//! kept as JSON under a name that is the hash of all that it depends on.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{env, fs};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tlblab::Experiment;

use crate::Cli;
use crate::children::Children;
use crate::kernel;
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
const GUEST: [&str; 5] = ["examples/kernel", "examples/malta", "examples/mips32", "crates", "tools/boot"];

/// The emulator that the guest runs in.
const EMULATOR: &str = "qemu-system-mipsel";

/// Where data comes from.
#[derive(Debug)]
pub(crate) struct Lab {
    /// The program that boots the kernel: xtask.
    boot: Option<PathBuf>,
    children: Arc<Children>,
    /// A lock for each file of the cache: what two papers want is made once.
    kept: Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>,
    /// The hash of this program, the lab in it: another build may give other data.
    version: Vec<u8>,
    traces: PathBuf,
    cache: PathBuf,
    /// Whether a few minutes must do.
    pub(crate) quick: bool,
    bar: ProgressBar,
}

impl Lab {
    /// Returns the lab that the arguments describe.
    ///
    /// # Errors
    ///
    /// If this program cannot be read, a trace is missing, or the cache's folder cannot be made.
    pub(crate) fn new(args: &Cli, children: Arc<Children>, bar: ProgressBar) -> anyhow::Result<Self> {
        let traces = &args.traces;
        let cache = args.cache.clone().unwrap_or_else(|| args.out.join("cache"));
        let version = env::current_exe().and_then(fs::read).context("cannot read this program")?;
        for folder in [&args.out, &cache] {
            fs::create_dir_all(folder).with_context(|| {
                format!("cannot write to {}: choose another folder with --out", folder.display())
            })?;
        }
        let lab = Self {
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

    /// Returns the options of a command that replays a shipped trace; of the first 20 million instructions only, where a few
    /// minutes must do.
    pub(crate) fn replay(&self, name: &str) -> String {
        let some = if self.quick { " --instructions 20000000" } else { "" };
        format!("--trace {}{some}", self.trace(name).display())
    }

    /// Returns the options of a command that counts cycles of a shipped program, whose first 10 million instructions are
    /// recorded by lines, on a machine; of the first million only, where a few minutes must do.
    pub(crate) fn on(&self, name: &str, machine: &str) -> String {
        let trace = self.traces.join("lines").join(format!("{name}.tlbt"));
        let some = if self.quick { " --instructions 1000000" } else { "" };
        format!("--trace {} --machine {machine}{some}", trace.display())
    }

    /// Returns the command that lets shipped programs take turns; for their first million instructions each, where a few minutes
    /// must do.
    pub(crate) fn spaces(&self) -> String {
        let traces = ["cc1", "perl", "sqlite", "gzip"].map(|name| self.trace(name).display().to_string());
        let some = if self.quick { 1_000_000 } else { 5_000_000 };
        format!("spaces --traces {} --instructions {some}", traces.join(","))
    }

    /// Returns the file of three programs that were recorded together.
    pub(crate) fn together(&self) -> String {
        self.traces.join("together").join("talk.tlbt").display().to_string()
    }

    /// Returns the rows of an experiment whose arguments are as one would type them after `tlblab`.
    ///
    /// # Errors
    ///
    /// If it fails: its own line, which says what to do.
    pub(crate) fn rows<E: Experiment>(&self, args: &str) -> anyhow::Result<Rows<E::Row>> {
        let command = format!("tlblab {args}");
        let rows = self.keep(&self.key(args)?, &command, || {
            let rows = tlblab::read::<E>(args).and_then(|experiment| experiment.rows());
            rows.with_context(|| format!("`{command}`"))
        })?;
        Ok(Rows::new(command, rows))
    }

    /// Returns what the kernel in the emulator says, when booted with these arguments; or, as the report does without,
    /// why there is nothing.
    pub(crate) fn guest(&self, args: &str) -> Result<kernel::Rows, String> {
        let command = format!("cargo xtask boot {args}");
        let rows = || {
            let mut hash = Sha256::new();
            for source in GUEST {
                sources(Path::new(source), &mut hash)?;
            }
            hash.update(args);
            self.keep(&hex(hash), &command, || self.boot(args, &command))
        };
        match rows() {
            Ok(rows) => Ok(kernel::Rows::new(command, rows)),
            Err(error) => Err(format!("{error:#}")),
        }
    }

    /// Boots the kernel for its rows.
    fn boot(&self, args: &str, command: &str) -> anyhow::Result<Vec<serde_json::Value>> {
        let Some(boot) = &self.boot else { bail!("only `cargo xtask report` boots the kernel") };
        if self.children.output(Command::new(EMULATOR).arg("--version")).is_err() {
            bail!("{EMULATOR} is missing: `cargo xtask boot` installs it, or says how");
        }
        let mut line = Command::new(boot);
        line.arg("boot").args(args.split_whitespace()).arg("--json");
        let output = self.children.output(&mut line).with_context(|| format!("cannot run `{command}`"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().last().unwrap_or("it failed without a word");
            bail!("`{command}`: {}", line.trim_start_matches("xtask: "));
        }
        let Some(rows) = rows(&output.stdout) else { bail!("`{command} --json` printed no array of rows") };
        Ok(rows)
    }

    /// Returns the rows that are kept under a name, or makes them and keeps them.
    fn keep<R: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        command: &str,
        make: impl FnOnce() -> anyhow::Result<Vec<R>>,
    ) -> anyhow::Result<Vec<R>> {
        let kept = self.cache.join(format!("{name}.json"));
        // A thread that panicked with a lock has left no part of a file.
        let lock = {
            let mut all = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(kept.clone()).or_default())
        };
        let _made_by_one = lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.bar.set_message(command.to_owned());
        if let Some(rows) = fs::read(&kept).ok().and_then(|text| rows(&text)) {
            return Ok(rows);
        }
        let rows = make()?;
        write(&kept, &serde_json::to_vec_pretty(&rows)?)?;
        Ok(rows)
    }

    /// Returns the hash of all that the data of a command depends on: this program, arguments, traces.
    fn key(&self, args: &str) -> anyhow::Result<String> {
        let mut hash = Sha256::new();
        hash.update(&self.version);
        for word in args.split_whitespace() {
            hash.update(word.as_bytes());
            hash.update([0]);
            for file in word.split(',').filter(|file| file.ends_with(".tlbt") || file.ends_with(".xz")) {
                hash.update(fs::read(file).with_context(|| format!("cannot read the trace {file}"))?);
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

/// Returns the rows in a JSON array; nothing if it is empty, damaged, or of other rows.
fn rows<R: DeserializeOwned>(text: &[u8]) -> Option<Vec<R>> {
    serde_json::from_slice(text).ok().filter(|rows: &Vec<R>| !rows.is_empty())
}

/// Held while a file is written.
static WRITING: Mutex<()> = Mutex::new(());

/// Waits for the file that is being written, and lets no other be written while what is returned lives.
pub(crate) fn write_no_more() -> MutexGuard<'static, ()> {
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a file so that at no time a part of it stands under its name.
///
/// # Errors
///
/// If the folder cannot be written.
pub(crate) fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    let _one_at_a_time = write_no_more();
    // Two runs at once do not write the same part.
    let part = path.with_extension(format!("part{}", std::process::id()));
    let outcome = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
    if outcome.is_err() {
        // Best effort: the error that comes first is the one to report.
        let _ = fs::remove_file(&part);
    }
    outcome.with_context(|| format!("cannot write {}: choose another folder with --out", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tlblab::model::Model;

    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_what_is_damaged_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().to_str().unwrap();
        let args = Cli::parse_from(["report", "--traces", "../lab/traces", "--out", out]);
        let lab = Lab::new(&args, Arc::default(), ProgressBar::hidden()).unwrap();
        let ours = || {
            let rows = lab.rows::<Model>("model").unwrap();
            assert_eq!(rows.command, "tlblab model");
            rows.iter().map(|row| row.quantity.clone()).collect::<Vec<_>>()
        };
        let first = ours();
        let kept = fs::read_dir(folder.path().join("cache")).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(&kept).unwrap();
        fs::write(&kept, text.replace(&first[0], "from M = 99")).unwrap();
        assert_eq!(ours()[0], "from M = 99");
        for damage in ["[", "[]", "[{\"name\": \"MPT\"}]"] {
            fs::write(&kept, damage).unwrap();
            assert_eq!(ours(), first);
            assert_eq!(fs::read_to_string(&kept).unwrap(), text);
        }
        let error = lab.rows::<Model>("model --saved x").unwrap_err();
        assert!(format!("{error:#}").starts_with("`tlblab model --saved x`: "), "{error:#}");
    }
}
