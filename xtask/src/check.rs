//! The checks that read the code and run none of it.

use crate::shell::{Line, Shell};
use crate::tools;

/// Is everything formatted?
pub(crate) fn format(shell: &Shell) -> anyhow::Result<()> {
    tools::parts(shell, &["rustfmt"], &[])?;
    shell.run(&Line::new("cargo", "fmt --all --check"))
}

/// Has clippy nothing to say, of any target of any package?
pub(crate) fn clippy(shell: &Shell) -> anyhow::Result<()> {
    tools::parts(shell, &["clippy"], &[])?;
    shell.run(&Line::new("cargo", "clippy --workspace --all-targets -- -D warnings"))
}
