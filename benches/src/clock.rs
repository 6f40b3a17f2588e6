//! The clock of all jobs, without what reading it costs.

use std::hint::black_box;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// What two readings of the clock take with nothing between them.
static OWN: LazyLock<Duration> = LazyLock::new(|| {
    let empty = (0..1000).map(|_| Instant::now().elapsed());
    empty.min().unwrap_or_default()
});

/// Does some work, and returns the time that it took and what it returned.
#[inline(always)]
pub fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let own = *OWN;
    let start = Instant::now();
    let result = black_box(work());
    (start.elapsed().saturating_sub(own), result)
}
