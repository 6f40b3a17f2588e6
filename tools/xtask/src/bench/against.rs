//! Two runs compared: what was measured before under a name, or a commit that is measured first, with this tree.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::kept;
use crate::shell::{Line, Shell};
use crate::{misused, places};

/// What is compared with.
#[derive(Debug, PartialEq)]
pub(super) enum Base {
    /// A baseline of criterion's.
    Saved(String),
    /// A commit, by its hash.
    Commit(String),
}

impl Base {
    /// Finds out what `base` is: a name that was saved comes before a commit.
    pub(super) fn find(base: &str) -> anyhow::Result<Self> {
        let saved = saved(&kept()?);
        if saved.iter().any(|name| name == base) {
            return Ok(Self::Saved(base.to_owned()));
        }
        let output = Command::new("git")
            .args(["rev-parse", "--verify", "--quiet", "--end-of-options", &format!("{base}^{{commit}}")])
            .output()
            .context("git is missing: install it")?;
        if output.status.success() {
            return Ok(Self::Commit(String::from_utf8_lossy(&output.stdout).trim().to_owned()));
        }
        let have = if saved.is_empty() {
            "nothing is saved".to_owned()
        } else {
            format!("saved are {}", saved.join(", "))
        };
        misused!(
            "--against {base} is no commit, and no run of that name is saved ({have}): `cargo xtask bench --save {base}` saves one"
        )
    }

    /// Returns criterion's name of it.
    fn name(&self) -> String {
        match self {
            Self::Saved(name) => name.clone(),
            Self::Commit(hash) => format!("commit-{}", &hash[..hash.len().min(12)]),
        }
    }
}

/// Returns the names of all baselines that criterion keeps; its own and those of commits are not counted.
fn saved(kept: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for of_subject in subjects(kept) {
        for folder in folders(&of_subject) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let own =
                ["new", "base", "change", "report"].contains(&name.as_str()) || name.starts_with("commit-");
            if !own && folder.join("estimates.json").is_file() && !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names.sort();
    names
}

/// Returns the folders in a folder.
fn folders(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

/// Returns criterion's folder of each job and subject; a job without subjects has its own.
fn subjects(kept: &Path) -> Vec<PathBuf> {
    folders(kept).iter().flat_map(|job| [vec![job.clone()], folders(job)].concat()).collect()
}

/// Measures the base by the line of the benches if it is a commit, then this tree, and prints what has changed.
pub(super) fn run(shell: &Shell, base: &Base, line: &Line) -> anyhow::Result<()> {
    let name = base.name();
    if let Base::Commit(hash) = base {
        let tree = Tree::at(shell, hash)?;
        if !tree.0.join("benches/benches/all.rs").is_file() {
            misused!(
                "--against {hash}: that commit has its benches in several programs, which this one cannot run"
            );
        }
        shell.run(&there(line.clone().with(["--save-baseline", &name]), &tree.0)?)?;
    }
    let begun = SystemTime::now();
    shell.run(&line.clone().with(["--baseline-lenient", &name]))?;
    let kept = kept()?;
    let changes = changes(&kept, begun)?;
    ensure!(
        !changes.is_empty(),
        "{name} has nothing of these names: nothing was compared (`cargo xtask bench --jobs` lists today's)"
    );
    print!("{}", table(&name, &changes));
    println!("\nplots: {}", kept.join("report/index.html").display());
    Ok(())
}

/// Lets a line run in another tree, with this one's target directory and this one's kept measurements.
fn there(line: Line, tree: &Path) -> anyhow::Result<Line> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let target = std::path::absolute(places::target())?;
    Ok(line.within(tree).set("CARGO_TARGET_DIR", &text(target)).set("CRITERION_HOME", &text(kept()?)))
}

/// A work tree of a commit, which goes when it is dropped.
struct Tree(PathBuf);

impl Tree {
    fn at(shell: &Shell, hash: &str) -> anyhow::Result<Self> {
        let place = std::path::absolute(places::target())?.join("against").join(&hash[..hash.len().min(12)]);
        let tree = Self(place);
        // One that an interrupted run has left.
        tree.remove();
        let place = tree.0.to_string_lossy().into_owned();
        shell.run(&Line::new("git", "worktree add --quiet --detach").with([place, hash.to_owned()]))?;
        Ok(tree)
    }

    fn remove(&self) {
        if self.0.exists() {
            // What cannot be removed makes the next `worktree add` fail, which says why.
            let _ = Command::new("git").args(["worktree", "remove", "--force"]).arg(&self.0).output();
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A change that criterion has estimated: of the mean time, as a part of the base's.
#[derive(Debug, PartialEq)]
struct Change {
    name: String,
    mean: f64,
    ci: [f64; 2],
}

/// Reads the changes that were estimated since then.
fn changes(kept: &Path, since: SystemTime) -> anyhow::Result<Vec<Change>> {
    let mut changes = Vec::new();
    for folder in subjects(kept) {
        let file = folder.join("change/estimates.json");
        let is_new = fs::metadata(&file).and_then(|data| data.modified()).is_ok_and(|time| time >= since);
        if !is_new {
            continue;
        }
        let read = |file: &Path| -> anyhow::Result<Value> {
            let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            serde_json::from_str(&text).with_context(|| format!("{} is no JSON", file.display()))
        };
        let (change, bench) = (read(&file)?, read(&folder.join("new/benchmark.json"))?);
        let interval = &change["mean"]["confidence_interval"];
        let numbers = [&change["mean"]["point_estimate"], &interval["lower_bound"], &interval["upper_bound"]];
        let [Some(mean), Some(low), Some(high)] = numbers.map(Value::as_f64) else {
            bail!("{} has no mean: this is not criterion's", file.display());
        };
        let name = bench["full_id"].as_str().unwrap_or_default().to_owned();
        changes.push(Change { name, mean, ci: [low, high] });
    }
    Ok(changes)
}

/// Returns a row for each change.
fn table(base: &str, changes: &[Change]) -> String {
    let mut text =
        format!("\n{:<50} {:>9}  {:<20} (time, against {base})\n", "job/subject", "change", "95 %");
    for Change { name, mean, ci: [low, high] } in changes {
        let verdict = if *low > 0.0 {
            "slower"
        } else if *high < 0.0 {
            "faster"
        } else {
            "no change seen"
        };
        let [mean, low, high] = [mean, low, high].map(|part| format!("{:+.1} %", part * 100.0));
        text += &format!("{name:<50} {mean:>9}  {:<20} {verdict}\n", format!("{low} .. {high}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes what criterion keeps of one subject.
    fn keep(kept: &Path, baseline: &str) {
        let folder = kept.join("map page/MPT solo");
        for (file, text) in [
            (format!("{baseline}/estimates.json"), "{}"),
            ("new/estimates.json".to_owned(), "{}"),
            ("new/benchmark.json".to_owned(), r#"{"full_id": "map page/MPT solo"}"#),
            (
                "change/estimates.json".to_owned(),
                r#"{"mean": {"confidence_interval": {"lower_bound": 0.08, "upper_bound": 0.12}, "point_estimate": 0.1}}"#,
            ),
        ] {
            let file = folder.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    #[test]
    fn what_criterion_keeps_is_read() {
        let kept = std::env::temp_dir().join(format!("tlbkit-against-{}", std::process::id()));
        let begun = SystemTime::now() - std::time::Duration::from_secs(60);
        keep(&kept, "before");
        assert_eq!(saved(&kept), ["before"]);
        let found = changes(&kept, begun).unwrap();
        let later = changes(&kept, SystemTime::now() + std::time::Duration::from_secs(60)).unwrap();
        fs::remove_dir_all(&kept).unwrap();
        assert_eq!(found, [Change { name: "map page/MPT solo".into(), mean: 0.1, ci: [0.08, 0.12] }]);
        assert_eq!(later, []);
        let text = table("before", &found);
        assert!(
            text.contains("+10.0 %") && text.contains("+8.0 % .. +12.0 %") && text.contains("slower"),
            "{text}"
        );
    }

    #[test]
    fn a_base_that_is_neither_is_refused_in_one_line() {
        let error = Base::find("no-such-commit").unwrap_err().to_string();
        assert!(error.contains("--against no-such-commit") && !error.contains('\n'), "{error}");
        // Without the repository's history there is no commit to find.
        if let Ok(base) = Base::find("HEAD") {
            assert!(matches!(&base, Base::Commit(hash) if hash.len() >= 40), "{base:?}");
            assert!(base.name().starts_with("commit-"), "{base:?}");
        }
    }
}
