//! `tlblab capture`: records the page references of a real program.
//!
//! valgrind's lackey runs the program and writes each reference to a pipe of its own, apart from the program's input
//! and output, which pass through untouched. Programs that a `|` stands between run as a shell would run them, in [turns](lackey::Turns),
//! so that the trace has them in the order in which they would run on one CPU. Of each, the one process that was named is in it: a program that leaves its work to others (a compiler driver, a shell script) is recorded without them, and a line
//! says so: valgrind tells of each child that ended and of the program's own end, and this process adopts what is left.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use indicatif::ProgressStyle;
use serde::Serialize;
use tlbkit_addr::PageSize;

use crate::trace::{Counts, Header, LINE, Messages, PROGRAM, Text, TraceError, Writer};
use crate::{progress, rows};

mod lackey;

use lackey::Started;

/// Record a program's page references with valgrind
///
/// The trace is of one process. Programs that it starts, or becomes, are not in it, and a line says so. Several programs are
/// named with a `|` between them, as in `-- sort words '|' uniq -c`: each writes to the next, and the trace has all of them,
/// one after the other as they wait for each other.
#[derive(Args, Debug)]
pub(crate) struct CaptureArgs {
    /// Where to write the trace [default: the program's name with .tlbt, in the current directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Record lines of 16 bytes instead of pages, for models of caches; the trace serves as one of pages, too
    #[arg(long)]
    lines: bool,
    /// Stop recording after this many instructions
    #[arg(long, value_name = "INSTRUCTIONS", value_parser = clap::value_parser!(u64).range(1..))]
    instructions: Option<u64>,
    /// Print what was recorded as JSON; the program's own output goes to standard error then
    #[arg(long)]
    json: bool,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    command: Vec<String>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    program: String,
    args: Vec<String>,
    instructions: u64,
    references: u64,
    runs: u64,
    pages: u64,
    /// Programs, and switches from one to another.
    programs: usize,
    switches: u64,
    bytes: u64,
    exit_code: u8,
    /// Whether it ran others, which are not in the trace.
    others_left_out: bool,
}

/// Runs the program under lackey and returns its exit code (128 and the signal's number if one ended it), as a shell
/// would.
///
/// # Errors
///
/// If valgrind or the program is missing, the trace cannot be written, or nothing was recorded.
pub(crate) fn run(args: &CaptureArgs) -> anyhow::Result<ExitCode> {
    let (program, rest) = args.command.split_first().context("name a program to run after `--`")?;
    let commands: Vec<_> = args.command.split(|word| word == "|").collect();
    let valgrind = lackey::find("valgrind").context(
        "valgrind is not installed: install it (`apt-get install valgrind`), or use a trace that is recorded already",
    )?;
    ensure!(commands.len() <= 256, "{} programs: a trace has room for 256", commands.len());
    ensure!(
        commands.len() == 1 || cfg!(target_os = "linux"),
        "only Linux tells when programs wait for each other: capture each alone"
    );
    for command in &commands {
        let program = command.first().context("name a program before and after each `|`")?;
        if lackey::find(program).is_none() {
            bail!("there is no program `{program}`: give its path, or a name that is on PATH");
        }
    }
    let output = match &args.output {
        Some(path) => path.clone(),
        None => {
            let name = Path::new(program).file_name().context("name the trace with --output FILE")?;
            PathBuf::from(format!("{}.tlbt", name.to_string_lossy()))
        }
    };
    // The trace gets its name when it is whole: one that was there before is never replaced by half a new one.
    let part = PathBuf::from(format!("{}.part", output.display()));
    let file = File::create(&part).with_context(|| {
        let hint = if args.output.is_some() { "choose another --output" } else { "give --output FILE" };
        format!("cannot write the trace to `{}`: {hint}", part.display())
    })?;
    let outcome = record(&valgrind, &commands, args, file).and_then(|recorded| {
        fs::rename(&part, &output)
            .with_context(|| format!("cannot name the trace `{}`", output.display()))?;
        Ok(recorded)
    });
    let Recorded { counts, switches, exit_code, others_left_out } = outcome.inspect_err(|_| {
        // Best effort: the error that comes first is the one to report.
        let _ = fs::remove_file(&part);
    })?;
    let bytes = fs::metadata(&output)?.len();
    let Counts { instructions, references, runs, pages } = counts;
    let name = output.display().to_string();
    let programs = commands.len();
    if args.json {
        let row = Row {
            name,
            program: program.clone(),
            args: rest.to_vec(),
            instructions,
            references,
            runs,
            pages,
            programs,
            switches,
            bytes,
            exit_code,
            others_left_out,
        };
        rows::print(true, &[row])?;
    } else {
        eprintln!(
            "{name}: {instructions} instructions, {references} references to {pages} pages in {bytes} bytes"
        );
        if programs > 1 {
            eprintln!("{name}: {programs} programs, {switches} switches");
        }
    }
    if others_left_out {
        let who = if programs > 1 { "one of the programs" } else { &format!("`{program}`") };
        eprintln!(
            "tlblab: {who} ran other programs, whose references are not in the trace: capture the one that does the work"
        );
    }
    if exit_code != 0 {
        // The exit code is the last program's.
        let last = commands.last().and_then(|command| command.first()).unwrap_or(program);
        eprintln!("tlblab: {}; what it did until then is recorded", failed(last, exit_code));
    }
    Ok(ExitCode::from(exit_code))
}

/// Says how a program failed: a shell's exit codes above 128 are signals.
fn failed(program: &str, exit_code: u8) -> String {
    match exit_code.checked_sub(128) {
        Some(signal @ 1..) => format!("`{program}` was ended by signal {signal}"),
        _ => format!("`{program}` failed with exit code {exit_code}"),
    }
}

/// What a run was.
struct Recorded {
    counts: Counts,
    /// From one program to another.
    switches: u64,
    /// The last program's.
    exit_code: u8,
    /// Whether a program had children, or became another.
    others_left_out: bool,
}

/// Records a run into `file`.
fn record(
    valgrind: &Path,
    commands: &[&[String]],
    options: &CaptureArgs,
    file: File,
) -> anyhow::Result<Recorded> {
    let written = "cannot write the trace";
    let page = if options.lines { LINE } else { PageSize::K4 };
    let (program, args) = options.command.split_first().context("a program")?;
    let header = Header::new(program, args, page);
    let mut writer = Writer::create(BufWriter::new(file), header).context(written)?;
    let Started { log, programs } = lackey::start(valgrind, commands, options.json)?;
    let bar = progress::bar(None).with_style(ProgressStyle::with_template(
        "{spinner} {human_pos} references {msg}, {elapsed}, {per_sec}",
    )?);
    let (mut foreign, mut switches, mut running) = (0u64, 0, None);
    let mut lackey = Text::lackey(BufReader::with_capacity(1 << 16, log), page);
    for access in lackey.by_ref() {
        match access {
            Ok(_) if options.instructions.is_some_and(|most| writer.counts().instructions >= most) => {}
            Ok(access) => {
                let program = access.page.address(page).get() >> PROGRAM;
                switches += u64::from(running.replace(program).is_some_and(|before| before != program));
                writer.push(access).context(written)?;
            }
            // A program that was killed leaves half a line.
            Err(TraceError::Line { .. }) => foreign += 1,
            Err(error) => return Err(error.into()),
        }
        let counts = writer.counts();
        if counts.runs % 4096 == 0 {
            bar.set_position(counts.references);
            bar.set_message(format!("to {} pages", counts.pages));
        }
    }
    let mut exit_code = 0;
    for program in programs {
        exit_code = program.join().map_err(|_| anyhow!("the thread that waits for valgrind failed"))??;
    }
    let counts = writer.finish().context(written)?;
    bar.finish_and_clear();
    if counts.references == 0 {
        bail!(
            "valgrind recorded nothing (exit code {exit_code}): see what it says above, and name a program it can run"
        );
    }
    if foreign > 0 {
        eprintln!("tlblab: {foreign} lines of valgrind's log were no references and are left out");
    }
    let Messages { children, empty } = lackey.messages();
    // What a signal ends may end without a word.
    let became_another = (empty as usize) < 2 * commands.len() && exit_code < 128;
    Ok(Recorded {
        counts,
        switches,
        exit_code,
        others_left_out: children > 0 || became_another || lackey::leaves_children(),
    })
}

/// Held by a test that starts processes: a capture asks for every child of this process.
#[cfg(test)]
pub(crate) static CHILDREN: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_no_exit_code() {
        assert_eq!(failed("sh", 7), "`sh` failed with exit code 7");
        assert_eq!(failed("sh", 137), "`sh` was ended by signal 9");
    }

    /// The second answers the first eight times, through a named pipe.
    #[test]
    fn programs_that_wait_for_each_other_run_in_turns() {
        let Some(valgrind) = lackey::find("valgrind") else {
            eprintln!("valgrind is not installed: nothing to test");
            return;
        };
        let _no_others = CHILDREN.lock().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let answers = folder.path().join("answers").display().to_string();
        assert!(std::process::Command::new("mkfifo").arg(&answers).status().unwrap().success());
        let asks = "exec 3<\"$0\"; for i in 1 2 3 4 5 6 7 8; do echo $i; read answer <&3; done";
        let answers_it = "exec >\"$0\"; while read question; do echo $question; done; exit 7";
        let shell = |script: &str| ["sh", "-c", script, &answers].map(String::from);
        let (first, second) = (shell(asks), shell(answers_it));
        let command = vec!["talk".into()];
        let options = CaptureArgs { output: None, lines: false, instructions: None, json: true, command };
        let file = tempfile::tempfile().unwrap();
        let recorded = record(&valgrind, &[&first, &second], &options, file.try_clone().unwrap()).unwrap();
        // Both begin and both end; in between, each has eight turns.
        assert_eq!((recorded.switches, recorded.exit_code), (19, 7));
        std::io::Seek::rewind(&mut &file).unwrap();
        let program = |access: crate::trace::Access| access.page.address(PageSize::K4).get() >> PROGRAM;
        let programs = crate::trace::read(file).unwrap().map(|access| program(access.unwrap()));
        let mut programs = programs.collect::<Vec<_>>();
        programs.dedup();
        assert_eq!(programs, [[0, 1]; 10].concat());
    }

    #[test]
    fn a_program_that_writes_fails_and_forks_is_recorded() {
        let Some(valgrind) = lackey::find("valgrind") else {
            eprintln!("valgrind is not installed: nothing to test");
            return;
        };
        let _no_others = CHILDREN.lock().unwrap();
        let file = tempfile::tempfile().unwrap();
        let command = vec!["sh".into()];
        let mut options = CaptureArgs { output: None, lines: false, instructions: None, json: true, command };
        let recorded = |script: &str, options: &CaptureArgs, file: File| {
            record(&valgrind, &[&["sh".into(), "-c".into(), script.into()]], options, file).unwrap()
        };
        let script = "(true); exit 7";
        let Recorded { counts, exit_code, others_left_out, .. } =
            recorded(script, &options, file.try_clone().unwrap());
        assert_eq!((exit_code, others_left_out), (7, true));
        assert!(counts.pages > 20 && counts.instructions > 10_000, "{counts:?}");
        std::io::Seek::rewind(&mut &file).unwrap();
        let trace = crate::trace::read(file).unwrap();
        assert_eq!(trace.header().map(|header| header.counts), Some(counts));
        assert_eq!(trace.map(|access| access.unwrap().instructions()).sum::<u64>(), counts.instructions);
        // The last one leaves a child behind, which this process has from then on.
        for (script, others) in [
            ("exit 3", false),
            ("kill -9 $$", false),
            ("true; echo x > /dev/null", false),
            ("exec true", true),
            ("/bin/true; exit 3", true),
            ("sleep 60 >&- 2>&- & exit 3", true),
        ] {
            let recorded = recorded(script, &options, tempfile::tempfile().unwrap());
            assert_eq!(recorded.others_left_out, others, "{script}");
        }
        let most = 5000;
        options = CaptureArgs { lines: true, instructions: Some(most), ..options };
        let Recorded { counts: few, exit_code, .. } =
            recorded(script, &options, tempfile::tempfile().unwrap());
        assert!((most..most + 100).contains(&few.instructions) && few.pages > 200, "{few:?}");
        assert_eq!(exit_code, 7);
    }
}
