//! What a long command has finished, so that it goes on where it was interrupted.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;

use crate::places;

/// The jobs of a command that succeeded on the code as it is now: a file in the target directory.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    done: BTreeSet<String>,
}

impl Ledger {
    /// Opens the ledger of a command. It begins anew if any of the tree's code has changed since.
    pub fn open(command: &str) -> anyhow::Result<Self> {
        let folder = places::target().join("ledgers");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(format!("{command}-{:016x}", tree()?));
        let text = fs::read_to_string(&path).unwrap_or_default();
        Ok(Self { path, done: text.lines().map(String::from).collect() })
    }

    /// Does a job, or says that it was done before.
    ///
    /// # Errors
    ///
    /// The job's, which is then not written down.
    pub fn job(&mut self, name: &str, job: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        if self.done.contains(name) {
            println!("{name}: passed before");
            return Ok(());
        }
        println!("{name}");
        let start = Instant::now();
        job()?;
        println!("{name}: passed in {:.0} s", start.elapsed().as_secs_f64());
        self.done.insert(name.to_owned());
        let mut file = File::options().create(true).append(true).open(&self.path)?;
        writeln!(file, "{name}").context("cannot write the ledger")
    }
}

/// Returns a number for the tree's contents, staged or not. What is only read by people is not counted.
fn tree() -> anyhow::Result<u64> {
    const CODE: [&str; 4] = ["--", ".", ":!docs", ":!*.md"];
    let mut hasher = DefaultHasher::new();
    for arguments in [&["ls-files", "--stage"][..], &["diff"]] {
        let output = Command::new("git").args(arguments).args(CODE).output().context("cannot run git")?;
        output.stdout.hash(&mut hasher);
    }
    Ok(hasher.finish())
}
