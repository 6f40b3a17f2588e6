//! Command lines: shown as one would type them, run for people or for `test`.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use indicatif::ProgressBar;

/// A command line.
#[derive(Clone, Debug)]
pub struct Line {
    set: Vec<(&'static str, String)>,
    words: Vec<String>,
    /// Where it runs, if not here.
    within: Option<PathBuf>,
}

impl Line {
    /// Returns the command line of a program and the words of `arguments`.
    pub fn new(program: &str, arguments: &str) -> Self {
        let words = [program].into_iter().chain(arguments.split_whitespace()).map(String::from).collect();
        Self { set: Vec::new(), words, within: None }
    }

    /// Sets a variable for the command.
    pub fn set(mut self, name: &'static str, value: &str) -> Self {
        self.set.push((name, value.into()));
        self
    }

    /// Lets the command run in another folder.
    pub fn within(self, folder: &Path) -> Self {
        Self { within: Some(folder.into()), ..self }
    }

    /// Adds arguments as they are.
    pub fn with<S: Into<String>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.words.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Returns the words that choose tests by their names, if this is a line of `cargo test` or of Miri's: those after `--` that are
    /// no options.
    fn chosen_tests(&self) -> Vec<&str> {
        let mut words = self.words.iter().map(String::as_str);
        if words.next() != Some("cargo")
            || !words.any(|word| word == "test")
            || !words.any(|word| word == "--")
        {
            return Vec::new();
        }
        let words: Vec<_> = words.collect();
        let is_option = |word: &str| word.starts_with('-');
        let is_skipped = |at: usize| at.checked_sub(1).is_some_and(|before| words[before] == "--skip");
        (0..words.len()).filter(|&at| !is_option(words[at]) && !is_skipped(at)).map(|at| words[at]).collect()
    }

    /// Returns the command. For `cargo xtask` it is this program itself: cargo would first wait for what another step builds.
    pub fn command(&self) -> Command {
        let itself = Path::new("/proc/self/exe");
        let (program, arguments) = match self.words.as_slice() {
            [cargo, xtask, rest @ ..] if cargo == "cargo" && xtask == "xtask" && itself.exists() => {
                (itself, rest)
            }
            words => (Path::new(&words[0]), &words[1..]),
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.set.iter().map(|(name, value)| (name, value)));
        if let Some(folder) = &self.within {
            command.current_dir(folder);
        }
        command
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(folder) = &self.within {
            write!(f, "cd {} && ", quoted(&folder.to_string_lossy()))?;
        }
        for (name, value) in &self.set {
            write!(f, "{name}={} ", quoted(value))?;
        }
        let words: Vec<_> = self.words.iter().map(|word| quoted(word)).collect();
        f.write_str(&words.join(" "))
    }
}

/// Quotes a word as a POSIX shell wants it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// How commands are run.
#[derive(Debug)]
pub enum Shell {
    /// Their output is the user's.
    Plain,
    /// Their output is shown if they fail; until then a last line of it on a terminal, and the tests are counted.
    Quiet {
        /// Shows that line.
        bar: ProgressBar,
        /// How many tests have passed.
        tests: Cell<usize>,
    },
}

impl Shell {
    /// Runs a command line.
    ///
    /// # Errors
    ///
    /// If it cannot be started or fails; the error says what to repeat. In a quiet shell also if a name that chooses tests is no
    /// test's, because such a command passes and tests nothing.
    pub fn run(&self, line: &Line) -> anyhow::Result<()> {
        let status = match self {
            Self::Plain => line.command().status().with_context(|| format!("cannot run `{line}`"))?,
            Self::Quiet { bar, tests } => {
                let mut unmet = line.chosen_tests();
                self.watch(line, |text| {
                    tests.set(tests.get() + passed(text));
                    unmet.retain(|name| !is_of(text, name));
                    bar.set_message(text.to_owned());
                })?;
                if let Some(name) = unmet.first() {
                    bail!("there is no test with `{name}` in its name: {line}");
                }
                return Ok(());
            }
        };
        if status.success() { Ok(()) } else { bail!("failed ({status}); to repeat it: {line}") }
    }

    /// Runs a command line and hands each line that it prints to `each`; all of them are shown if it fails.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn watch(&self, line: &Line, mut each: impl FnMut(&str)) -> anyhow::Result<()> {
        let mut command = line.command();
        let (reader, writer) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let mut child = command.spawn().with_context(|| format!("cannot run `{line}`"))?;
        // It holds the pipe's other end, which would never close.
        drop(command);
        let mut output = Vec::new();
        for part in BufReader::new(reader).split(b'\n') {
            let part = part?;
            each(String::from_utf8_lossy(&part).trim());
            output.extend_from_slice(&part);
            output.push(b'\n');
        }
        let status = child.wait()?;
        if status.success() {
            return Ok(());
        }
        if let Self::Quiet { bar, .. } = self {
            bar.finish_and_clear();
        }
        io::stderr().write_all(&output)?;
        bail!("failed ({status}); to repeat it: {line}")
    }
}

/// Tells whether a line is libtest's about a test with `name` in its name.
fn is_of(line: &str, name: &str) -> bool {
    line.strip_prefix("test ").is_some_and(|test| test.contains(name))
}

/// Returns how many tests a line says have passed, if it is libtest's last one.
fn passed(line: &str) -> usize {
    let count = line.strip_prefix("test result: ok. ").and_then(|rest| rest.split(' ').next());
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_as_one_would_type_it() {
        let line = Line::new("cargo", "test  -p x")
            .set("RUSTFLAGS", "--cfg loom")
            .with(["--test", "*loom*", "", "it's"]);
        assert_eq!(line.to_string(), r"RUSTFLAGS='--cfg loom' cargo test -p x --test '*loom*' '' 'it'\''s'");
        let line = Line::new("cargo", "bench").within(Path::new("a b"));
        assert_eq!(line.to_string(), "cd 'a b' && cargo bench");
    }

    #[test]
    fn passed_tests_are_counted() {
        assert_eq!(passed("test result: ok. 23 passed; 0 failed; 0 ignored"), 23);
        assert_eq!(passed("test result: FAILED. 22 passed; 1 failed"), 0);
        assert_eq!(passed("test result ... ok"), 0);
    }

    #[test]
    fn names_of_tests_are_told_from_options() {
        let chosen = |words| Line::new("cargo", words).chosen_tests().join(" ");
        assert_eq!(
            chosen("+nightly miri test -p x --test all -- one:: --skip two:: --show-output three"),
            "one:: three"
        );
        assert_eq!(chosen("test --test *loom*"), "");
        assert_eq!(chosen("clippy --workspace -- -D warnings"), "");
    }

    #[test]
    fn a_line_about_a_test_has_its_name() {
        assert!(
            is_of("test gpt::grows ... ok", "gpt::")
                && is_of("test gpt::grows - should panic ... ok", "grows")
        );
        assert!(!is_of("test gpt::grows ... ok", "hpt::") && !is_of("   Running gpt::grows", "gpt::"));
    }

    #[test]
    fn a_failure_says_what_to_repeat() {
        let error = Shell::Plain.run(&Line::new("false", "")).unwrap_err().to_string();
        assert!(error.ends_with("to repeat it: false"), "{error}");
        let error = Shell::Plain.run(&Line::new("no-such-program", "-x")).unwrap_err().to_string();
        assert_eq!(error, "cannot run `no-such-program -x`");
    }

    #[test]
    fn a_quiet_shell_counts_what_its_commands_tested() {
        let shell = Shell::Quiet { bar: ProgressBar::hidden(), tests: Cell::new(0) };
        for count in ["2", "3"] {
            shell.run(&Line::new("echo", "test result: ok.").with([count, "passed;"])).unwrap();
        }
        let Shell::Quiet { tests, .. } = shell else { unreachable!() };
        assert_eq!(tests.get(), 5);
    }
}
