//! The lab's data: runs of `tlblab ... --json`, each kept under a name that is the hash of all that it depends on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use serde_json::Value;
use sha2::{Digest, Sha256};

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

/// Where data comes from.
#[derive(Debug)]
pub(crate) struct Lab {
    program: PathBuf,
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
    pub(crate) fn new(
        program: &Path,
        traces: &Path,
        cache: &Path,
        quick: bool,
        bar: ProgressBar,
    ) -> anyhow::Result<Self> {
        let version = fs::read(program).with_context(|| {
            format!(
                "cannot read the lab's program {}: run `cargo xtask report`, which builds it",
                program.display()
            )
        })?;
        fs::create_dir_all(cache).with_context(|| {
            format!("cannot write to {}: choose another folder with --out", cache.display())
        })?;
        let lab = Self {
            program: program.to_owned(),
            version: Sha256::digest(version).to_vec(),
            traces: traces.to_owned(),
            cache: cache.to_owned(),
            quick,
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
        self.bar.set_message(command.clone());
        let kept = self.cache.join(format!("{}.json", self.key(args)?));
        if let Some(rows) = fs::read(&kept).ok().and_then(|text| rows(&text)) {
            return Ok(Rows::new(command, rows));
        }
        let output = Command::new(&self.program)
            .args(args.split_whitespace())
            .arg("--json")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run `{command}`"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().last().unwrap_or("it failed without a word");
            bail!("`{command}`: {}", line.trim_start_matches("tlblab: "));
        }
        let Some(rows) = rows(&output.stdout) else { bail!("`{command} --json` printed no array of rows") };
        write(&kept, &output.stdout)?;
        Ok(Rows::new(command, rows))
    }

    /// Returns the data of a command that a full run has left, if there is any and this run is quick; a full run
    /// makes it.
    ///
    /// # Errors
    ///
    /// As [`rows`](Self::rows).
    pub(crate) fn rows_if_full(&self, args: &str) -> anyhow::Result<Option<Rows>> {
        if self.quick && !self.cache.join(format!("{}.json", self.key(args)?)).is_file() {
            return Ok(None);
        }
        self.rows(args).map(Some)
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
        Ok(hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }
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
