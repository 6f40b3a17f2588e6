//! What `tlblab` says on standard error while it works: bars and lines. A program that calls an experiment has its own bar,
//! so there is nothing of either until [`show`].

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget};

static SHOWN: AtomicBool = AtomicBool::new(false);

/// Shows what comes from now on.
pub(crate) fn show() {
    SHOWN.store(true, Ordering::Relaxed);
}

/// Returns a bar of so many steps, or of a number that is not known yet.
pub(crate) fn bar(steps: Option<u64>) -> ProgressBar {
    let shown = SHOWN.load(Ordering::Relaxed);
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    ProgressBar::with_draw_target(steps, target)
}

/// Says a line that a person should read though the work goes on.
pub(crate) fn say(line: impl Display) {
    if SHOWN.load(Ordering::Relaxed) {
        eprintln!("{line}");
    }
}
