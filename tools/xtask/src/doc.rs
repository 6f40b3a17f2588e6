//! `cargo xtask doc`: the documentation, warnings denied.

use crate::shell::{Line, Shell};

/// Builds it.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    shell.run(&Line::new("cargo", "doc --workspace --no-deps").set("RUSTDOCFLAGS", "-D warnings"))
}
