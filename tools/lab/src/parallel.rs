//! The same work on many inputs, on all of the host's CPUs, with a progress bar.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::bail;
use indicatif::ProgressStyle;

use crate::progress;

/// Returns what `work` makes of each input, in the order of the inputs.
///
/// # Errors
///
/// The first error in that order.
pub(crate) fn map<I: Sync, O: Send>(
    inputs: &[I],
    work: impl Fn(&I) -> anyhow::Result<O> + Sync,
) -> anyhow::Result<Vec<O>> {
    let bar = progress::bar(Some(inputs.len() as u64))
        .with_style(ProgressStyle::with_template("{bar:40} {pos}/{len}, {elapsed}")?);
    let next = AtomicUsize::new(0);
    let outputs: Mutex<Vec<Option<anyhow::Result<O>>>> = Mutex::new(inputs.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(inputs.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(input) = inputs.get(at) else { break };
                    let output = work(input);
                    bar.inc(1);
                    if let Ok(mut outputs) = outputs.lock() {
                        outputs[at] = Some(output);
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let Ok(outputs) = outputs.into_inner() else { bail!("a worker panicked") };
    outputs.into_iter().flatten().collect()
}
