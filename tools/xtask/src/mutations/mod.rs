//! `cargo xtask mutations`: what if one line were wrong, or not there?
//!
//! Changes one line at a time, in a copy of the tree, and expects a failure. A test that passes without the line that
//! it is about is worth nothing, and is what this command finds.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use clap::Args;

mod publication;
mod shootdown;
mod tree;

use self::tree::{Change, Tree};
use crate::shell::Line;
use crate::{loom, misused, near};

/// Change one line at a time of what publishes, retires or shoots down; a test must notice each
#[derive(Args, Debug)]
pub(crate) struct MutationsArgs {
    /// Only the mutations whose names contain each of these; all of a list are called `publication` or `shootdown`
    /// [default: all]
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

impl MutationsArgs {
    fn wants(&self, list: &str, name: &str) -> bool {
        self.parts.iter().all(|part| match part.as_str() {
            "publication" | "shootdown" => part == list,
            part => name.contains(part),
        })
    }
}

/// One line less, or another.
struct Mutation {
    what: &'static str,
    file: &'static str,
    change: Change,
    test: Test,
}

/// What must notice.
#[derive(Clone, Copy)]
enum Test {
    /// Walkers beside a writer, in every interleaving; the tests whose names have this in them.
    Walkers(&'static str),
    /// The shared STLB, in every interleaving.
    SharedCache(&'static str),
    /// The tests of the package whose names begin so.
    Plain(&'static str, &'static str),
    /// The explorer, and the driver with threads. Threads meet by chance: where they have not, loom lets them.
    Shootdown,
    /// The explorer, where the hardware broadcasts flushes; and the tests of the machine, action by action.
    Broadcast,
}

/// What fails where the crate is wrong, and what builds it.
struct Driver {
    /// The package and the module of its tests that are built, where it is not all of them.
    part: Option<(&'static str, &'static str)>,
    build: Line,
    run: Line,
}

impl Driver {
    /// The tests in a file of a package whose names have `name` in them.
    fn tests(tree: &Tree, package: &'static str, file: &str, name: &'static str) -> Self {
        // Loom's atomics are other types.
        let is_explored = file.contains("loom");
        let place = tree.build(if is_explored { "loom" } else { "plain" });
        let line = Line::new("timeout", &format!("{LIMIT} cargo test --quiet --release"))
            // Twenty builds of almost the same.
            .set("CARGO_PROFILE_RELEASE_INCREMENTAL", "true")
            .set("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .set("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .within(&tree.root())
            .with(["-p", package, "--test", file, "--target-dir", &place.to_string_lossy()]);
        let line = if is_explored { loom::explored(line) } else { line };
        let part = (file == "all").then(|| (package, name.split("::").next().unwrap_or(name)));
        Self { part, build: line.clone().with(["--no-run"]), run: line.with([name]) }
    }

    fn explorer(tree: &Tree, arguments: &str) -> Self {
        let place = tree.build("drivers").to_string_lossy().into_owned();
        let build = Line::new("cargo", "build --quiet -p tlblab --bin tlblab --target-dir").with([&place]);
        let run = Line::new("timeout", LIMIT).with([format!("{place}/debug/tlblab")]);
        let run = run.with(["explore", "--json"]).with(arguments.split(' ')).within(&tree.root());
        Self { part: None, build: build.within(&tree.root()), run }
    }

    /// Tells whether it fails, or never ends: a test that waits for an acknowledgement that never comes has noticed, too.
    ///
    /// # Errors
    ///
    /// If it does not compile: it has noticed nothing then.
    fn notices(&self, tree: &Tree) -> anyhow::Result<bool> {
        if let Some((package, module)) = self.part {
            tree.keep_tests(package, module)?;
        }
        ensure!(succeeds(&self.build)?, "does not compile: {}", self.build);
        Ok(!succeeds(&self.run)?)
    }
}

/// Seconds after which a driver hangs.
const LIMIT: &str = "300";

fn succeeds(line: &Line) -> anyhow::Result<bool> {
    let output = line.command().output().with_context(|| format!("cannot run `{line}`"))?;
    Ok(output.status.success())
}

impl Test {
    /// Returns the drivers: of each group one must notice.
    fn drivers(self, tree: &Tree) -> Vec<Vec<Driver>> {
        let tests = |package, file, name| Driver::tests(tree, package, file, name);
        match self {
            Self::Walkers(name) => vec![vec![tests("tlbkit-pagetable", "loom", name)]],
            Self::SharedCache(name) => vec![vec![tests("tlbkit-stlb", "shared_loom", name)]],
            Self::Plain(package, name) => vec![vec![tests(package, "all", name)]],
            Self::Broadcast => vec![
                vec![Driver::explorer(tree, "--hardware aarch64 --cpus 2 --algorithm broadcast")],
                vec![tests("tlbkit-shootdown", "all", "broadcast::")],
            ],
            Self::Shootdown => vec![
                // Software loads the TLB there, which suits all ten algorithms; a third CPU overflows a queue.
                vec![Driver::explorer(tree, "--hardware rp3 --cpus 3 --limit 1000000")],
                [("all", "threads::"), ("loom", "")]
                    .map(|(file, name)| tests("tlbkit-shootdown", file, name))
                    .into(),
            ],
        }
    }

    /// Tells whether a driver of each group notices.
    fn notices(self, tree: &Tree) -> anyhow::Result<bool> {
        for group in self.drivers(tree) {
            let mut noticed = false;
            for driver in group {
                noticed = noticed || driver.notices(tree)?;
            }
            if !noticed {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The lists, by the words that choose all of one.
const LISTS: [(&str, &[Mutation]); 2] =
    [("publication", &publication::MUTATIONS), ("shootdown", &shootdown::MUTATIONS)];

/// Makes each of the changes that are wanted.
///
/// # Errors
///
/// If a mutation survives, or is of a line that is no longer there; if a test fails without any change.
pub(crate) fn run(args: &MutationsArgs) -> anyhow::Result<()> {
    let all = || LISTS.iter().flat_map(|(list, all)| all.iter().map(move |mutation| (*list, mutation)));
    let wanted: Vec<_> = all().filter(|(list, mutation)| args.wants(list, mutation.what)).collect();
    if wanted.is_empty() {
        let words = || all().flat_map(|(list, mutation)| mutation.what.split(' ').chain([list]));
        let hints = args.parts.iter().map(|part| near::hint(part, words()));
        misused!(
            "no mutation is called `{}`{}: `cargo xtask mutations` without words runs all of them",
            args.parts.join(" "),
            hints.collect::<Vec<_>>().concat()
        );
    }
    let tree = Tree::copy()?;
    let mut survivors = 0;
    for (at, (_, mutation)) in (1..).zip(&wanted) {
        let noticed = tree.with(mutation.file, &mutation.change, || mutation.test.notices(&tree))?;
        survivors += usize::from(!noticed);
        let verdict = if noticed { "noticed" } else { "SURVIVED" };
        println!("{at:>2}/{}  {verdict:<8}  {}", wanted.len(), mutation.what);
    }
    // Without a mutation they pass, or what they noticed was something else.
    let mut passed = BTreeSet::new();
    for (_, mutation) in &wanted {
        for driver in mutation.test.drivers(&tree).iter().flatten() {
            if passed.insert(driver.run.to_string()) {
                ensure!(!driver.notices(&tree)?, "fails without any mutation: {}", driver.run);
            }
        }
    }
    ensure!(survivors == 0, "{survivors} of {} mutations were not noticed", wanted.len());
    println!("{} mutations, each noticed", wanted.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::places;

    #[test]
    fn every_mutation_is_of_a_line_that_is_there() {
        places::enter_root().unwrap();
        for mutation in LISTS.iter().flat_map(|(_, all)| *all) {
            let right = tree::read(Path::new(mutation.file)).unwrap();
            let wrong = mutation.change.apply(mutation.file, &right).unwrap();
            assert!(right.lines().count() - wrong.lines().count() <= 1, "{}", mutation.what);
        }
    }
}
