//! `cargo xtask mutations`: what if one line were wrong, or not there?
//!
//! Changes one line at a time, in a copy of the tree, and expects a failure. A test that passes without the line that
//! it is about is worth nothing, and is what this command finds.

mod publication;
mod shootdown;
mod tree;

use clap::Args;

use self::tree::Tree;
use crate::shell::Shell;
use crate::{misused, near};

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

/// Runs it.
///
/// # Errors
///
/// If a mutation survives, or is of a line that is no longer there.
pub(crate) fn run(shell: &Shell, args: &MutationsArgs) -> anyhow::Result<()> {
    let (publication, shootdown) = (publication::names(), shootdown::names());
    let wanted = |list, names: &[&str]| names.iter().any(|name| args.wants(list, name));
    if !wanted("publication", &publication) && !wanted("shootdown", &shootdown) {
        let words = publication.iter().chain(&shootdown).flat_map(|name| name.split(' '));
        let hint = args.parts.iter().find_map(|part| {
            let words = words.clone().chain(["publication", "shootdown"]);
            Some(near::hint(part, words)).filter(|hint| !hint.is_empty())
        });
        misused!(
            "no mutation is called `{}`{}: `cargo xtask mutations` without words runs all of them",
            args.parts.join(" "),
            hint.unwrap_or_default()
        );
    }
    let tree = Tree::copy()?;
    // The second is run even if the first leaves something unnoticed.
    let publication = publication::run(&tree, args);
    let done = shootdown::run(shell, &tree, args)? + publication?;
    println!("{done} mutations, each noticed");
    Ok(())
}
