//! Which options a command uses in which of its modes. What a mode does not use is refused, in one line.
//!
//! An option that is ignored in silence makes its user believe something about the numbers that is not so. The table below
//! says for each mode what it uses; what it does not list is refused, so that a new option is refused until the table
//! says where it is used. The test walks every option of every mode.

use anyhow::bail;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// A mode of a command.
struct Mode {
    /// The command, with its subcommand if it has some.
    command: &'static str,
    /// The options that choose it, as `--name`, or `name=value` of an argument with values. None choose a command's last
    /// mode: it is the one where no other is chosen.
    chosen_by: &'static [&'static str],
    /// What it uses beside these: names of options, without dashes, and of arguments.
    uses: &'static str,
}

const fn mode(command: &'static str, chosen_by: &'static [&'static str], uses: &'static str) -> Mode {
    Mode { command, chosen_by, uses }
}

/// Every mode of every command; of one command's modes the first that is chosen counts.
const MODES: &[Mode] = &[
    mode("adversary", &[], "json"),
    mode("capture", &[], "output lines instructions json command"),
    mode("explore", &["--damages"], "trace limit unreduced json"),
    mode("explore", &["--driver"], "hazards algorithm trace preemptions schedules json"),
    // With `--driver`, that one's.
    mode("explore", &["--hazards"], "driver algorithm hardware trace limit unreduced json"),
    mode("explore", &[], "algorithm hardware cpus fewer trace limit unreduced json"),
    mode(
        "locks",
        &[],
        "regions cpus fault first-touch unmap unmap-share between node-lock changes seed json",
    ),
    mode("mach", &["--address-types"], "ipcs seed json"),
    mode("mach", &["--sensitivity"], "granularity fill record inject ipcs seed json"),
    mode("mach", &["--apps"], "fill record inject ipcs seed trace stall json"),
    mode("mach", &["--preset"], "scheme granularity handoff fill record inject ipcs seed json"),
    mode("mach", &["--together"], "scheme fill record seed stall json"),
    mode(
        "mach",
        &[],
        "servers clients pattern words scheme granularity handoff fill record inject ipcs seed json",
    ),
    mode("mapping", &[], "rounds segment-mb seed json"),
    mode(
        "model",
        &[],
        "saved handler application handler-misses application-misses old new gamma-t gamma-a mhz json",
    ),
    mode("pages", &[], "trace first-touches json"),
    mode("pressure", &[], "traces turn instructions memory thresholds rights page-in json"),
    mode(
        "refill",
        &["workload=file"],
        "pages table seed json file-median file-sigma tlb-entries tlb-ways tlb-replacement tlb-pages",
    ),
    mode("refill", &["--workload"], "pages table seed json tlb-entries tlb-ways tlb-replacement tlb-pages"),
    mode(
        "refill",
        &[],
        "trace instructions table machine seed json tlb-entries tlb-ways tlb-replacement tlb-pages",
    ),
    mode(
        "spaces",
        &["--together"],
        "instructions asids seed json tlb-entries tlb-ways tlb-replacement tlb-pages",
    ),
    mode(
        "spaces",
        &[],
        "traces turns instructions asids seed json tlb-entries tlb-ways tlb-replacement tlb-pages",
    ),
    mode("sweep", &[], "trace seed json tlb-entries tlb-ways tlb-replacement tlb-pages"),
    mode("shootdown analyse", &[], "m lambda-t lambda-d x-d x-i x-req1 x-req2 x-reply x-j p0 json"),
    mode(
        "shootdown simulate",
        &[],
        "m n lambda-t lambda-d x-d x-i x-req1 x-req2 x-reply x-j p0 json sends seconds seed free-dispatch \
         slices-only independent arrivals services masked masked-at-most lines x-line x-page log forms",
    ),
    mode("shootdown sweep", &["figure=4.2"], "seconds json"),
    mode("shootdown sweep", &["figure=4.3"], "seconds json"),
    mode("shootdown sweep", &["figure=4.4"], "seconds json"),
    mode("shootdown sweep", &[], "figure json"),
    mode("shootdown simplify", &[], "m seconds json"),
    mode("shootdown claims", &[], "json"),
    mode("shootdown beyond", &[], "m rate x-page seconds json"),
    mode(
        "superpage",
        &["--thresholds"],
        "trace tlb r-per-kb sizes repeat instructions skip-bad promotions json",
    ),
    mode(
        "superpage",
        &["--overlap"],
        "trace policy tlb r-per-kb sizes repeat instructions inactive-below segments reserved refuse skip-bad \
         promotions json",
    ),
    mode(
        "superpage",
        &["--speed"],
        "trace policy tlb r-per-kb sizes repeat instructions inactive-below segments reserved refuse skip-bad \
         promotions json",
    ),
    mode(
        "superpage",
        &["--end-to-end"],
        "trace policy tlb r-per-kb sizes repeat instructions inactive-below segments reserved refuse book skip-bad \
         promotions json",
    ),
    mode(
        "superpage",
        &[],
        "trace policy tlb r-per-kb sizes repeat instructions every inactive-below segments reserved refuse book \
         skip-bad promotions json",
    ),
    mode(
        "tables",
        &["workload=file"],
        "names pages base-kb seed layout inject json file-median file-sigma tlb-entries tlb-ways tlb-replacement tlb-pages",
    ),
    mode(
        "tables",
        &["--workload"],
        "names pages base-kb seed layout inject json tlb-entries tlb-ways tlb-replacement tlb-pages",
    ),
    mode("witness", &[], "file arch recorder json"),
    mode(
        "tables",
        &[],
        "names trace instructions base-kb machine seed layout inject json tlb-entries tlb-ways tlb-replacement tlb-pages",
    ),
];

/// What an argument is called: an option by its name, another by its own.
fn name(arg: &clap::Arg) -> &str {
    arg.get_long().unwrap_or(arg.get_id().as_str())
}

impl Mode {
    /// Tells whether the arguments choose this mode.
    fn is_chosen(&self, command: &Command, given: &ArgMatches) -> bool {
        self.chosen_by.iter().all(|chosen_by| {
            let (option, value) =
                chosen_by.split_once('=').unwrap_or((chosen_by.trim_start_matches('-'), ""));
            let Some(arg) = command.get_arguments().find(|arg| name(arg) == option) else { return false };
            let id = arg.get_id().as_str();
            is_given(given, id)
                && (value.is_empty()
                    || given.get_raw(id).is_some_and(|mut values| values.any(|given| given == value)))
        })
    }

    fn uses(&self, option: &str) -> bool {
        let chooses = self.chosen_by.iter().any(|chosen_by| {
            chosen_by.split_once('=').map_or(chosen_by.trim_start_matches('-'), |(option, _)| option)
                == option
        });
        chooses || self.uses.split_whitespace().any(|used| used == option)
    }

    /// What it is called where it refuses something.
    fn called(&self) -> String {
        let mut called = self.command.to_owned();
        for chosen_by in self.chosen_by {
            called.push(' ');
            match chosen_by.split_once('=') {
                Some(("figure", value)) => called.push_str(value),
                Some((option, value)) => called += &format!("--{option} {value}"),
                None => called.push_str(chosen_by),
            }
        }
        called
    }
}

fn is_given(given: &ArgMatches, id: &str) -> bool {
    given.value_source(id) == Some(ValueSource::CommandLine)
}

/// Checks that the mode that the arguments choose uses all that are given.
///
/// # Errors
///
/// The first that it does not use.
pub(crate) fn check(program: &Command, given: &ArgMatches) -> anyhow::Result<()> {
    let (mut command, mut given, mut path) = (program, given, Vec::new());
    while let Some((sub, of_sub)) = given.subcommand() {
        let Some(found) = command.find_subcommand(sub) else { break };
        (command, given) = (found, of_sub);
        path.push(sub);
    }
    let path = path.join(" ");
    let chosen = MODES.iter().find(|mode| mode.command == path && mode.is_chosen(command, given));
    let Some(mode) = chosen else { bail!("`{path}` is in no table of modes: this is an error of tlblab") };
    for arg in command.get_arguments().filter(|arg| is_given(given, arg.get_id().as_str())) {
        if !mode.uses(name(arg)) {
            bail!("`{}` does not use --{}: leave it out", mode.called(), name(arg));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, CommandFactory};

    use super::*;
    use crate::{Cli, parse};

    /// The commands that run something, by their paths.
    fn leaves(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        if !command.has_subcommands() {
            found.push((path.trim().to_owned(), command.clone()));
        }
        for sub in command.get_subcommands() {
            leaves(sub, &format!("{path} {}", sub.get_name()), found);
        }
    }

    /// Returns a value that an argument takes.
    fn sample(arg: &clap::Arg) -> String {
        let (long, possible) = (name(arg), arg.get_possible_values());
        match long {
            "book" => "ONLINE=1".into(),
            "figure" => "4.5".into(),
            "recorder" => "at=0,word=8,cpus=2,events=16".into(),
            "m" | "n" => "16".into(),
            "rounds" | "ipcs" => "100".into(),
            _ if !possible.is_empty() => possible[0].get_name().into(),
            _ => arg.get_default_values().first().map_or("2".into(), |value| value.to_string_lossy().into()),
        }
    }

    /// Returns the words that give an argument.
    fn words(arg: &clap::Arg) -> Vec<String> {
        let option = arg.get_long().map(|long| format!("--{long}"));
        match (option, arg.get_action()) {
            (Some(option), ArgAction::SetTrue) => vec![option],
            (Some(option), _) => vec![option, sample(arg)],
            (None, _) if arg.is_last_set() => vec!["--".into(), "true".into()],
            (None, _) => vec![sample(arg)],
        }
    }

    /// In every mode of every command every option is used, or refused in one line that names both.
    #[test]
    fn what_a_mode_does_not_use_is_refused() {
        let mut commands = Vec::new();
        leaves(&Cli::command(), "", &mut commands);
        let mut refusals = 0;
        for (path, command) in &commands {
            let modes: Vec<_> = MODES.iter().filter(|mode| mode.command == path).collect();
            assert!(
                modes.last().is_some_and(|mode| mode.chosen_by.is_empty()),
                "{path} has no mode of its own"
            );
            for mode in modes {
                for used in mode.uses.split_whitespace() {
                    assert!(command.get_arguments().any(|arg| name(arg) == used), "{path} has no {used}");
                }
                let mut line = vec!["tlblab".to_owned()];
                line.extend(path.split(' ').map(String::from));
                for chosen_by in mode.chosen_by {
                    let (option, value) = chosen_by.split_once('=').unwrap_or((chosen_by, ""));
                    let arg = command.get_arguments().find(|arg| name(arg) == option.trim_start_matches('-'));
                    let arg = arg.unwrap_or_else(|| panic!("{path} has no {chosen_by}"));
                    let words =
                        if value.is_empty() { words(arg) } else { vec![format!("--{option}"), value.into()] };
                    line.extend(if arg.is_positional() { vec![value.into()] } else { words });
                }
                let chosen = |arg: &clap::Arg| {
                    let of = |by: &&str| {
                        by.split_once('=').map_or(by.trim_start_matches('-'), |by| by.0) == name(arg)
                    };
                    mode.chosen_by.iter().any(of)
                };
                for arg in command.get_arguments().filter(|arg| !chosen(arg)) {
                    // What the command cannot do without is given, too. What chooses another mode is another mode's.
                    let others = MODES.iter().filter(|other| other.command == path);
                    let chooses = others.flat_map(|other| other.chosen_by).any(|by| {
                        by.split_once('=').map_or(by.trim_start_matches('-'), |by| by.0) == name(arg)
                    });
                    if mode.chosen_by.is_empty() && chooses && !mode.uses(name(arg)) {
                        continue;
                    }
                    let needed = command.get_arguments().filter(|other| {
                        other.is_required_set() && other.get_id() != arg.get_id() && !chosen(other)
                    });
                    let (mut options, mut last): (Vec<_>, Vec<_>) = (words(arg), Vec::new());
                    if arg.is_last_set() {
                        std::mem::swap(&mut options, &mut last);
                    }
                    for other in needed {
                        if other.is_last_set() {
                            last.extend(words(other));
                        } else {
                            options.extend(words(other));
                        }
                    }
                    let line = [line.clone(), options, last].concat();
                    let outcome = parse(&line);
                    let used = mode.uses(name(arg));
                    let why = outcome.err().map(|error| error.to_string());
                    assert_eq!(why.is_none(), used, "{line:?}: {why:?}");
                    if let Some(why) = why {
                        refusals += 1;
                        assert!(!why.contains('\n') && why.contains(name(arg)), "{line:?}: {why}");
                    }
                }
            }
        }
        assert!(refusals > 50, "{refusals}");
    }

    /// What each option's value is, or its unit, is said where the option is: `--x-d <MS>`.
    #[test]
    fn every_value_has_a_unit() {
        const UNITS: &[&str] = &[
            "1|2",
            "BYTES",
            "CPUS",
            "CPUS,...",
            "CYCLES",
            "DIR",
            "ENTRIES",
            "FILE",
            "INSTRUCTIONS",
            "KB",
            "MB",
            "MHZ",
            "MISSES",
            "MS",
            "N",
            "N,...",
            "NAME",
            "NAME,...",
            "NAME=CYCLES,...",
            "PERCENT",
            "PER_S",
            "PLACE",
            "S",
            "SEED",
            "SHARE",
            "SIGMA",
            "SIZE,...",
            "WORDS,...",
            "WORLDS",
        ];
        let mut commands = Vec::new();
        leaves(&Cli::command(), "", &mut commands);
        for (path, command) in &commands {
            let valued = command.get_arguments().filter(|arg| {
                arg.get_long().is_some()
                    && arg.get_action().takes_values()
                    && arg.get_possible_values().is_empty()
            });
            for arg in valued {
                let names = arg.get_value_names().unwrap_or_default();
                let named = names.iter().any(|name| UNITS.contains(&name.as_str()));
                assert!(named, "{path} --{}: {names:?}", name(arg));
            }
        }
    }

    #[test]
    fn the_readme_lists_every_command() {
        let mut commands = Vec::new();
        leaves(&Cli::command(), "", &mut commands);
        let readme = include_str!("../README.md");
        for (path, _) in commands {
            assert!(readme.contains(&format!("| `tlblab {path}")), "{path}");
        }
    }
}
