//! What a long command says where standard error is no terminal, and so shows no bar: a line every ten seconds.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, WeakProgressBar};

/// The time between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// The bars of this program, the outermost first.
static BARS: Mutex<Vec<WeakProgressBar>> = Mutex::new(Vec::new());

/// Lets the lines say how far this bar is, until it is finished or dropped. Returns the bar.
pub fn watch(bar: ProgressBar) -> ProgressBar {
    static BEGIN: Once = Once::new();
    BARS.lock().unwrap_or_else(PoisonError::into_inner).push(bar.downgrade());
    BEGIN.call_once(|| {
        if !io::stderr().is_terminal() {
            thread::spawn(|| say(EVERY, &mut io::stderr()));
        }
    });
    bar
}

/// Writes a line each time that `every` has passed and something is being done.
fn say(every: Duration, to: &mut impl Write) {
    let begun = Instant::now();
    loop {
        thread::sleep(every);
        let state = state(&mut BARS.lock().unwrap_or_else(PoisonError::into_inner));
        let line = state.map(|state| format!("{:.0} s: {state}\n", begun.elapsed().as_secs_f64()));
        // In one piece, so that no other line is in it.
        if line.is_some_and(|line| to.write_all(line.as_bytes()).is_err()) {
            // There is nobody to tell.
            return;
        }
    }
}

/// Returns what is being done, and forgets the bars that have ended; `None` if nothing is.
fn state(bars: &mut Vec<WeakProgressBar>) -> Option<String> {
    let live = |bar: &WeakProgressBar| bar.upgrade().filter(|bar| !bar.is_finished());
    bars.retain(|bar| live(bar).is_some());
    let states: Vec<_> =
        bars.iter().filter_map(live).map(|bar| of(&bar)).filter(|state| !state.is_empty()).collect();
    (!bars.is_empty()).then(|| states.join(", "))
}

/// Returns what a bar shows, in words. A large number is in bytes or the like, and a share of it says more.
fn of(bar: &ProgressBar) -> String {
    let done = match (bar.position(), bar.length()) {
        (at, Some(all @ 10_000..)) => format!("{} %", at.saturating_mul(100) / all),
        (at, Some(all)) => format!("{at} of {all}"),
        (0, None) => String::new(),
        (at, None) => at.to_string(),
    };
    let words = [bar.prefix(), bar.message(), done];
    words.iter().filter(|word| !word.is_empty()).map(String::as_str).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_every_bar_that_lives_shows() {
        let outer = ProgressBar::hidden().with_message("explore");
        let inner = ProgressBar::hidden().with_message("cases");
        inner.set_length(118);
        inner.set_position(3);
        let mut bars = vec![outer.downgrade(), inner.downgrade()];
        assert_eq!(state(&mut bars).unwrap(), "explore, cases 3 of 118");
        inner.set_length(3_000_000);
        inner.set_position(1_000_000);
        assert_eq!(state(&mut bars).unwrap(), "explore, cases 33 %");
        inner.finish_and_clear();
        assert_eq!((state(&mut bars).unwrap(), bars.len()), ("explore".into(), 1));
        drop(outer);
        assert_eq!((state(&mut bars), bars.len()), (None, 0));
    }

    /// Takes as many lines as there is room for.
    struct Lines(usize, Vec<u8>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
            self.1.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_while_something_is_done_and_somebody_reads() {
        let bar = ProgressBar::hidden().with_message("a long job");
        BARS.lock().unwrap().push(bar.downgrade());
        let mut lines = Lines(3, Vec::new());
        say(Duration::from_millis(1), &mut lines);
        let text = String::from_utf8(lines.1).unwrap();
        assert_eq!(text.lines().filter(|line| line.ends_with(" s: a long job")).count(), 3, "{text}");
    }
}
