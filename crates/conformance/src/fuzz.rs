//! The bodies of fuzz targets for a table and for a mapper.
//!
//! Every byte string is an input:
//!
//! ```text
//!  byte   0          1               2..14        14
//!       +----------+---------------+------------+------------------+-----
//!       | patience | room for more | operation  | which allocation | the next step ...
//!       | and pick | nodes, or     | see `Op`   | fails            |
//!       |          | a property    |            |                  |
//!       +----------+---------------+------------+------------------+-----
//! ```
//!
//! Of four inputs two run in limited memory, and one in plenty of it. The fourth checks one of the suite's properties, and no allocation
//! fails: `Agrees`, `HoldsBack`, `PublishesInOrder` or `WalksBeside`.
//!
//! A fuzz target takes one line: see `docs/own-tests.md`. [`CORPUS`] is an initial corpus.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs;
use std::io::Error;
use std::path::{Path, PathBuf};

use tlbkit_pagetable::nodes::Chunk;

use crate::foreign::{self, Foreign};
use crate::properties::{self, new_space};
use crate::subject::Kind;
use crate::suite::{self, Failure};
use crate::{Mismatch, Op, Outcome, Property, Runner, Subject, hang, rust};

/// The folder of the inputs that fuzzing of this crate's tables has kept: each reaches code that no other one reaches.
pub const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");

/// The largest number of steps of an input. The rest of a longer input is not used.
const STEPS: usize = 48;

/// The number of bytes of a step.
const STEP: usize = Op::BYTES + 1;

/// The number of steps from one comparison of the whole table to the next. After the other steps only the pages around the step
/// are compared.
const EVERY: usize = 8;

/// Allocations up to this one can be made to fail.
const FAILS: u8 = 16;

thread_local! {
    /// 8 MiB, enough for the pages that one input can map. The memory is reused for all inputs, because to clear it would take
    /// longer than an input.
    static MEMORY: RefCell<Vec<Chunk>> = RefCell::new(vec![Chunk::ZERO; if cfg!(miri) { 192 } else { 2048 }]);
}

/// The part of an input that is not operations.
struct Input<'i> {
    /// The number of batches that wait, as if for shootdowns.
    patience: usize,
    /// The number of nodes in addition to those of an empty table, if it is limited.
    room: Option<usize>,
    /// The property that is checked, if one is.
    property: Option<Property>,
    steps: &'i [[u8; STEP]],
}

/// What a run of all operations does not see.
const PROPERTIES: [Property; 4] =
    [Property::Agrees, Property::HoldsBack, Property::PublishesInOrder, Property::WalksBeside];

impl<'i> Input<'i> {
    fn new(input: &'i [u8]) -> Option<Self> {
        let [patience, room, steps @ ..] = input else { return None };
        let steps = steps.as_chunks().0;
        let number = usize::from(room / 4);
        // The bytes of a fuzzer that has no corpus are small at first.
        let (property, room) = match room % 4 {
            0 => (Some(PROPERTIES[number % PROPERTIES.len()]), None),
            1 => (None, None),
            _ => (None, Some(number)),
        };
        // The check of a property does several things with each operation.
        let most = if property.is_some() { STEPS / 3 } else { STEPS };
        let patience = usize::from(patience % 4);
        Some(Self { patience, room, property, steps: &steps[..steps.len().min(most)] })
    }
}

/// Chooses one of `of` kinds of tables from an input, for a target with several kinds.
pub fn pick(input: &[u8], of: usize) -> usize {
    usize::from(input.first().map_or(0, |byte| byte / 4)) % of
}

/// Runs an input on a new table and destroys the table: the body of a fuzz target.
///
/// # Panics
///
/// With the [`Failure`].
pub fn table<S: Subject>(input: &[u8]) {
    suite::expect(check::<S>(input));
}

/// Runs an input on a new table and destroys the table.
///
/// # Errors
///
/// The first thing that differs from the model.
pub fn check<S: Subject>(input: &[u8]) -> Result<(), Box<Failure>> {
    check_of(&Kind::of::<S>(), input)
}

fn check_of(kind: &Kind, input: &[u8]) -> Result<(), Box<Failure>> {
    let Some(parts) = Input::new(input) else { return Ok(()) };
    let steps = Cell::new(parts.steps.len());
    let run = |every| MEMORY.with_borrow_mut(|memory| run(kind, &parts, memory, every, &steps));
    let checked = match parts.property {
        Some(property) => MEMORY.with_borrow_mut(|memory| {
            let space = new_space(kind, memory)?;
            let ops: Vec<_> = parts.steps.iter().map(|step| decode(&space, step).0).collect();
            properties::check(kind, property, memory, &ops, &Cell::new(0))
        }),
        // After a failure, the second run compares after every step to find the step that failed.
        None => run(EVERY).map_err(|late| run(1).err().unwrap_or(late)),
    };
    checked.map_err(|mismatch| {
        let (input, subject) =
            (&input[..input.len().min(2 + steps.get() * STEP)], rust::within_crate(kind.name));
        let test = format!("    tlbkit_conformance::fuzz::table::<{subject}>(&{input:?});");
        Box::new(Failure {
            ops: mismatch.op.into_iter().collect(),
            mismatch,
            check: parts
                .property
                .map_or("an input".to_owned(), |property| format!("{property:?} of an input")),
            test,
        })
    })
}

/// Runs an input on a new mapper: the body of a fuzz target.
///
/// # Panics
///
/// With the failure.
pub fn mapper<F: Foreign>(input: &[u8]) {
    let Some(parts) = Input::new(input) else { return };
    let space = foreign::space::<F>();
    let ops: Vec<_> = parts.steps.iter().map(|step| decode(&space, step).0).collect();
    suite::expect(foreign::replay::<F>(&ops));
}

/// Runs every input of a folder: [`CORPUS`], or the corpus that a fuzzer has kept.
///
/// # Panics
///
/// If the folder has no input, or `body` does.
pub fn replay(folder: impl AsRef<Path>, body: impl Fn(&[u8])) {
    each(folder.as_ref(), &mut |name, input| {
        let name = name.to_string_lossy();
        let tell = |seconds, _: &[_]| {
            format!("The input {name}, of {} bytes, has not ended in {seconds} seconds.", input.len())
        };
        hang::guard(tell, || body(input));
    });
}

/// Copies every input of a folder to another folder: for example [`CORPUS`] to the folder of a fuzzer.
///
/// # Panics
///
/// If the folder has no input, or the other folder cannot be made.
pub fn copy(folder: impl AsRef<Path>, to: impl AsRef<Path>) {
    let to = to.as_ref();
    did(to, fs::create_dir_all(to));
    each(folder.as_ref(), &mut |name, input| did(to, fs::write(to.join(name), input)));
}

fn did<T>(path: &Path, what: Result<T, Error>) -> T {
    what.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn each(folder: &Path, with: &mut dyn FnMut(&OsStr, &[u8])) {
    let files = fs::read_dir(folder).and_then(|files| files.map(|file| Ok(file?.path())).collect());
    let mut files: Vec<PathBuf> = did(folder, files);
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        with(file.file_name().unwrap_or_default(), &did(&file, fs::read(&file)));
    }
}

fn decode(space: &tlbkit_pagetable::Space, step: &[u8; STEP]) -> (Op, u8) {
    let [op @ .., fail] = *step;
    (Op::decode(space, op), fail)
}

/// Runs an input, and compares the whole table after every `every` steps.
fn run(
    kind: &Kind,
    input: &Input<'_>,
    memory: &mut [Chunk],
    every: usize,
    steps: &Cell<usize>,
) -> Result<(), Mismatch> {
    let stage = &*kind.open(memory, false);
    let (storage, table) = (stage.tools(), stage.table()?);
    if let Some(room) = input.room {
        storage.limit(storage.out() + room);
    }
    let mut runner = Runner::new(&*table, kind.profile, input.patience);
    for (number, step) in input.steps.iter().enumerate() {
        steps.set(number + 1);
        let (op, fail) = decode(&table.space(), step);
        if fail < FAILS {
            storage.fail_at(fail.into());
        }
        let had = || (table.footprint(), if input.patience == 0 { storage.out() } else { 0 });
        let before = had();
        let is_whole = steps.get().is_multiple_of(every);
        let outcome = if is_whole { runner.step(&*table, &op) } else { runner.step_near(&*table, &op) };
        // A fault of a node comes first, because it causes the other mismatches.
        if let Some(fault) = storage.fault() {
            return Err(Mismatch::of(fault).after(&op, outcome.as_ref().ok()));
        }
        let outcome = outcome?;
        storage.failed();
        let is_tight = fail < FAILS || input.room.is_some();
        let (used, out) = (stage.used(), storage.out());
        let wrong = match outcome {
            Outcome::NoMemory { wanted, .. } if !is_tight => {
                format!("no memory for {wanted} nodes where there is plenty")
            }
            Outcome::NoMemory { .. } if before != had() => {
                format!("an operation without memory has changed {before:?} to {:?}", had())
            }
            _ if used != out => format!("the storage counts {used} nodes in use, and {out} were taken"),
            _ => continue,
        };
        return Err(Mismatch::of(wrong).after(&op, Some(&outcome)));
    }
    runner.compare(&*table, None)?;
    runner.settle();
    let batch = table.destroy();
    let (retired, out) = (batch.nodes(), storage.out());
    if retired != out {
        return Err(Mismatch::of(format!(
            "`dismantle` has left {retired} nodes in the batch, and the table had {out}"
        )));
    }
    // SAFETY: the table is dropped, and no walker is left.
    unsafe { batch.reclaim() };
    stage.check()?;
    let left = (storage.out(), stage.used(), stage.held().lost());
    if left != (0, 0, 0) {
        let (out, used, lost) = left;
        return Err(Mismatch::of(format!(
            "the table is gone, and of its nodes {out} were not freed ({used} by the storage's own count), {lost} are lost"
        )));
    }
    Ok(())
}
