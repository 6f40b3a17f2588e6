//! What the command line asks for.
//!
//! Words of the form `name=value`, or a name alone: `table=S8k/G16 work=stress seed=2`.

use core::fmt;

use tlbkit_names::MPT;
use tlbkit_refill::handler::Root;

/// The wishes.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// The table's name.
    pub table: &'static str,
    /// What to do with it.
    pub work: Work,
    /// Refills of random stress.
    pub refills: u32,
    /// Where random numbers start.
    pub seed: u32,
    /// How many CPUs take part.
    pub cpus: usize,
    /// Shootdowns of each protocol.
    pub shootdowns: usize,
    /// The one protocol, if not all.
    pub protocol: Option<&'static str>,
    /// A fault to plant.
    pub inject: Option<Inject>,
    /// Where the refill handler has the root of the running table.
    pub root: Root,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Every workload that counts instructions, and some stress.
    Measure,
    /// Stress alone.
    Stress,
    /// Processes that send messages, over a linear table in mapped memory.
    Ipc,
    /// Several CPUs, which shoot down what the others use.
    Shootdown,
    /// Pages that grow where the TLB misses.
    Superpage,
    /// Messages, copied and remapped.
    Moving,
}

/// A fault to plant, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inject {
    /// Pages are unmapped and protected without a flush of the TLB.
    DropFlush,
    /// A word is changed by which a walk knows that it has come to the right place.
    CorruptGuard,
    /// What remembers translations is not told that they have changed: the software cache, and, when address-space
    /// numbers begin anew, the TLB.
    SkipInvalidation,
    /// A CPU that is asked to flush its TLB says that it has, and has not.
    NoFlush,
}

/// A word that the kernel does not know.
#[derive(Clone, Copy, Debug)]
pub struct Unknown(&'static str);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel does not know the argument `{}`", self.0)
    }
}

impl Args {
    /// Reads the words.
    ///
    /// # Errors
    ///
    /// [`Unknown`], with the first word that says nothing.
    pub fn parse(words: &'static str) -> Result<Self, Unknown> {
        let mut args = Self {
            table: MPT,
            work: Work::Measure,
            refills: 20_000,
            seed: 1,
            cpus: 1,
            shootdowns: 1000,
            protocol: None,
            inject: None,
            root: Root::ErrorEpc,
        };
        for word in words.split_whitespace() {
            let number = |text: &str| text.parse().map_err(|_| Unknown(word));
            match word.split_once('=').unwrap_or((word, "")) {
                ("table", name) => args.table = name,
                ("work", "measure") => args.work = Work::Measure,
                ("work", "stress") => args.work = Work::Stress,
                ("work", "ipc") => args.work = Work::Ipc,
                ("work", "shootdown") => args.work = Work::Shootdown,
                ("work", "superpage") => args.work = Work::Superpage,
                ("work", "moving") => args.work = Work::Moving,
                ("cpus", text) => args.cpus = number(text)? as usize,
                ("shootdowns", text) => args.shootdowns = number(text)? as usize,
                ("protocol", name) => args.protocol = Some(name),
                ("refills", text) => args.refills = number(text)?,
                ("seed", text) => args.seed = number(text)?,
                ("root", "error-epc") => args.root = Root::ErrorEpc,
                ("root", "block") => args.root = Root::Block,
                ("root", "kscratch1") => args.root = Root::KScratch(2),
                ("root", "kscratch2") => args.root = Root::KScratch(3),
                ("root", "kscratch3") => args.root = Root::KScratch(4),
                ("inject", "drop-flush") => args.inject = Some(Inject::DropFlush),
                ("inject", "corrupt-guard") => args.inject = Some(Inject::CorruptGuard),
                ("inject", "no-flush") => args.inject = Some(Inject::NoFlush),
                ("inject", "skip-invalidation") => args.inject = Some(Inject::SkipInvalidation),
                _ => return Err(Unknown(word)),
            }
        }
        Ok(args)
    }
}
