//! Moving data between address spaces (Tzou 5.3.4): copied, or remapped at once, or remapped when it is used.
//!
//! A message of so many pages goes from one program to another, and back, and so on. The sender makes a system call, the
//! kernel passes the message, the receiver runs; if it accesses the message, it reads a word of each page. Counted is
//! everything: both ways through the kernel, the IPC region, the page table, the flush, faults and refills.
//!
//! | | the sender's page | the receiver's page |
//! |-|-|-|
//! | copy | stays | written: once, or by way of a buffer as in UNIX (twice) |
//! | remapped at once | unmapped, and flushed | mapped |
//! | remapped lazily | unmapped if it was mapped | mapped by the fault of its first use |
//!
//! So of a message that is only passed on, the lazy kernel changes no page table at all: Figure 5.5's upper curve.

mod mail;

use core::fmt;

use tlbkit_addr::Pfn;

use self::mail::{How, Mail, Meter};
use crate::vm::machine::Machine;
use crate::vm::structure::Structure;
use crate::work::check::Checks;
use crate::work::counted;
use crate::{print, println};

/// The sizes of messages, in pages.
const SIZES: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Messages of each size that are counted; as many before them warm the TLB up, one for each direction.
const MESSAGES: u32 = 8;

/// The message of Figure 5.6: 8 KB.
const EIGHT: usize = 2;

/// Runs it all, and returns the number of failures.
pub fn run<S: Structure>(machine: &mut Machine<S>, code: Pfn) -> u32 {
    let mut checks = Checks::default();
    for how in How::ALL {
        for accessed in [false, true] {
            print!("moving how={how} accessed={}", if accessed { "yes" } else { "no" });
            for pages in SIZES {
                let mut mail = Mail::new(machine, code, how, pages);
                (0..MESSAGES).for_each(|_| mail.pass(machine, accessed, &mut checks));
                let ((), all) =
                    counted(|| (0..MESSAGES).for_each(|_| mail.pass(machine, accessed, &mut checks)));
                mail.delete(machine, &mut checks);
                print!(" {}K={}", 4 * pages, all / MESSAGES);
            }
            println!("");
        }
    }
    let mut mail = Mail::new(machine, code, How::RemapLazily, EIGHT);
    (0..MESSAGES).for_each(|_| mail.pass(machine, true, &mut checks));
    mail.meter = Some(Meter::default());
    let ((), all) = counted(|| (0..MESSAGES).for_each(|_| mail.pass(machine, true, &mut checks)));
    println!("passing part=all insns={}", all / MESSAGES);
    for (part, insns) in mail.meter.take().unwrap_or_default().parts() {
        println!("passing part={part} insns={}", insns / MESSAGES);
    }
    mail.delete(machine, &mut checks);
    println!("moved checks={} failures={}", checks.done, checks.failed);
    checks.failed
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copy => "copy",
            Self::CopyTwice => "copy-twice",
            Self::Remap => "remap-at-once",
            Self::RemapLazily => "remap-lazily",
        })
    }
}
