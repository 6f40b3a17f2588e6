//! What `tlblab` says on standard error while it works: bars, and a line every ten seconds where there is no terminal. A program
//! that calls an experiment has its own bar, so there is nothing of either until [`show`].

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget};
use tlbkit_shell::progress::watch;

static SHOWN: AtomicBool = AtomicBool::new(false);

/// Shows what comes from now on, and returns what the lines call it while it lives.
pub(crate) fn show(command: String) -> ProgressBar {
    SHOWN.store(true, Ordering::Relaxed);
    watch(ProgressBar::hidden().with_message(command))
}

/// Returns a bar of so many steps, or of a number that is not known yet.
pub(crate) fn bar(steps: Option<u64>) -> ProgressBar {
    if SHOWN.load(Ordering::Relaxed) {
        watch(ProgressBar::with_draw_target(steps, ProgressDrawTarget::stderr()))
    } else {
        ProgressBar::with_draw_target(steps, ProgressDrawTarget::hidden())
    }
}

/// Says a line that a person should read though the work goes on.
pub(crate) fn say(line: impl Display) {
    if SHOWN.load(Ordering::Relaxed) {
        eprintln!("{line}");
    }
}
