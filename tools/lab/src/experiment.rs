//! An experiment as another program calls it: arguments in, typed rows out.

use std::borrow::Cow;

use anyhow::ensure;
use clap::{Args, CommandFactory};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Cli, modes, one_line};

/// A name or a text in a row: of a table, a policy, an algorithm.
pub type Name = Cow<'static, str>;

/// The arguments of a command of `tlblab`, in the modes that print one kind of row.
///
/// ```
/// use tlblab::Experiment;
/// use tlblab::shootdown::Model;
///
/// let rows = tlblab::read::<Model>("shootdown analyse --m 50")?.rows()?;
/// assert!(rows.iter().any(|row| row.cpu_overhead_share.is_some_and(|overhead| overhead < 0.2)));
/// # Ok::<(), anyhow::Error>(())
/// ```
pub trait Experiment: Args {
    /// The command, subcommand included: `shootdown sweep`.
    const COMMAND: &'static str;

    /// What the command prints a line of; as JSON, an element of the array that `--json` prints.
    type Row: Serialize + DeserializeOwned;

    /// Runs the experiment and returns its rows, in the order in which the command prints them. Nothing is printed.
    ///
    /// # Errors
    ///
    /// What is wrong with the arguments or with a trace, in one line; also arguments that choose a mode with other rows.
    fn rows(&self) -> anyhow::Result<Vec<Self::Row>>;
}

/// Reads an experiment's arguments as one would type them after `tlblab`, the command first. Words end at white space.
///
/// # Errors
///
/// As the program's: another command, arguments that clap refuses, an option that the chosen mode does not use.
pub fn read<E: Experiment>(line: &str) -> anyhow::Result<E> {
    let mut program = Cli::command();
    let words = std::iter::once("tlblab").chain(line.split_whitespace());
    let given = program.try_get_matches_from_mut(words).map_err(one_line)?;
    modes::check(&program, &given)?;
    let (mut given, mut path) = (&given, Vec::new());
    while let Some((command, of_command)) = given.subcommand() {
        path.push(command);
        given = of_command;
    }
    ensure!(path.join(" ") == E::COMMAND, "`{line}` is not `{}`", E::COMMAND);
    E::from_arg_matches(given).map_err(one_line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mach::{Apps, Mach};
    use crate::model;
    use crate::shootdown::Model;

    #[test]
    fn a_line_is_read_as_the_program_reads_it() {
        assert_eq!(read::<Model>("shootdown analyse --m 8").unwrap().rows().unwrap()[0].m, 8);
        let refused = |line: &str| read::<Model>(line).unwrap_err().to_string();
        assert_eq!(refused("shootdown claims"), "`shootdown claims` is not `shootdown analyse`");
        assert!(refused("shootdown analyse --mm 8").contains("--mm"));
        let error = read::<Mach>("mach --apps --words 5").unwrap_err().to_string();
        assert_eq!(error, "`mach --apps` does not use --words: leave it out");
    }

    #[test]
    fn a_mode_with_other_rows_is_refused() {
        let error = read::<Mach>("mach --apps").unwrap().rows().unwrap_err().to_string();
        assert!(error.contains("--apps"), "{error}");
        let error = read::<Apps>("mach").unwrap().rows().unwrap_err().to_string();
        assert!(error.contains("--apps"), "{error}");
    }

    #[test]
    fn rows_are_the_same_after_a_way_through_json() {
        let rows = read::<model::Model>("model").unwrap().rows().unwrap();
        let text = serde_json::to_string(&rows).unwrap();
        let again: Vec<model::Row> = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
    }
}
