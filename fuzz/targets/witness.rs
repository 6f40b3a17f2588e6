//! The witness: page-table code that any bytes drive holds on every architecture, code that leaves something out is never refused
//! for another reason than a broken rule, and any text is checked or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tlbkit_witness::check::{Arch, Sample, Without, check, drive};

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let arch = Arch::ALL[usize::from(first) % Arch::ALL.len()];
    match usize::from(first) / Arch::ALL.len() % 8 {
        0 => {
            if let Ok(text) = str::from_utf8(bytes) {
                let _ = check(arch, text);
            }
        }
        1 => {
            let (changes, _) = bytes.as_chunks();
            let what = Without::ALL[usize::from(first) / 16 % Without::ALL.len()];
            if let Err(broken) = drive(arch, changes, |log| Sample::new(arch, log).without(what)) {
                assert!(broken.refusal.violation().is_some(), "{arch:?} {what:?}: {broken}");
            }
        }
        _ => {
            let (changes, _) = bytes.as_chunks();
            if let Err(broken) = drive(arch, changes, |log| Sample::new(arch, log)) {
                panic!("{arch:?}: {broken}");
            }
        }
    }
});
