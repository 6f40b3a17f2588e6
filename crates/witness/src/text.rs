//! The text form: one event a line. `docs/witness.md` specifies it.

use core::fmt;

use crate::event::{Access, Barrier, CPUS, Event, Fence, Memory};

/// The reason why a line is no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The line ends before this field.
    Missing(&'static str),
    /// The line has something else in the place of this field.
    Expected(&'static str),
    /// The line has this field twice.
    Twice(&'static str),
    /// There are more words than the event has.
    TooLong,
    /// The CPU's number is not below [`CPUS`].
    NoCpu,
    /// A range ends before it begins.
    Backwards,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(what) => write!(f, "the line ends where {what} is expected"),
            Self::Expected(what) => write!(f, "{what} is expected"),
            Self::Twice(what) => write!(f, "`{what}` stands twice"),
            Self::TooLong => f.write_str("the line goes on after its event"),
            Self::NoCpu => write!(f, "a CPU's number is below {CPUS}"),
            Self::Backwards => f.write_str("the range ends before it begins"),
        }
    }
}

impl core::error::Error for Malformed {}

/// The words of a line.
struct Words<'a> {
    rest: core::iter::Peekable<core::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    fn word(&mut self, what: &'static str) -> Result<&'a str, Malformed> {
        self.rest.next().ok_or(Malformed::Missing(what))
    }

    fn number(&mut self, what: &'static str) -> Result<u64, Malformed> {
        number(self.word(what)?).ok_or(Malformed::Expected(what))
    }

    /// Takes a number if one follows.
    fn may_number(&mut self) -> Option<u64> {
        let found = number(self.rest.peek()?)?;
        self.rest.next();
        Some(found)
    }

    fn memory(&mut self) -> Result<Memory, Malformed> {
        let free = match self.word("`take` or `free`")? {
            "take" => false,
            "free" => true,
            _ => return Err(Malformed::Expected("`take` or `free`")),
        };
        let (at, bytes) = (self.number("a physical address")?, self.number("a number of bytes")?);
        Ok(Memory { at, bytes, free })
    }

    fn range(&mut self) -> Result<(u64, u64), Malformed> {
        let first = self.number("a virtual address")?;
        Ok((first, self.may_number().unwrap_or(first)))
    }
}

/// Reads a number: decimal, or hexadecimal after `0x`.
fn number(word: &str) -> Option<u64> {
    // The standard parser accepts a sign, which the text form does not have.
    if word.contains(['+', '-']) {
        return None;
    }
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Reads a line: a CPU's number and its event, or `None` if the line is empty or a comment.
///
/// Costs a pass over the line.
///
/// # Errors
///
/// [`Malformed`] if the line is no event.
pub fn parse(line: &str) -> Result<Option<(usize, Event)>, Malformed> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = Words { rest: line.split_whitespace().peekable() };
    if words.rest.peek().is_none() {
        return Ok(None);
    }
    let cpu = words.number("a CPU's number")?;
    if cpu >= CPUS as u64 {
        return Err(Malformed::NoCpu);
    }
    let event = match words.word("an event")? {
        "write" => Event::Write { at: words.number("a physical address")?, value: words.number("a value")? },
        "swap" => Event::Swap {
            at: words.number("a physical address")?,
            old: words.number("the old value")?,
            new: words.number("the new value")?,
        },
        "root" => Event::Root {
            value: words.number("the root register's value")?,
            high: words.rest.next_if_eq(&"high").is_some(),
        },
        "fence" => {
            let mut fence = Fence::default();
            while let Some(word) = words.rest.next() {
                match word {
                    "va" if fence.pages.is_some() => return Err(Malformed::Twice("va")),
                    "asid" if fence.asid.is_some() => return Err(Malformed::Twice("asid")),
                    "leaf" if fence.leaf => return Err(Malformed::Twice("leaf")),
                    "broadcast" if fence.broadcast => return Err(Malformed::Twice("broadcast")),
                    "va" => fence.pages = Some(words.range()?),
                    "asid" => {
                        let asid = words.number("an ASID")?;
                        fence.asid =
                            Some(asid.try_into().map_err(|_| Malformed::Expected("an ASID of 16 bits"))?);
                    }
                    "leaf" => fence.leaf = true,
                    "broadcast" => fence.broadcast = true,
                    _ => return Err(Malformed::Expected("`va`, `asid`, `leaf` or `broadcast`")),
                }
            }
            Event::Fence(fence)
        }
        "barrier" => Event::Barrier(match words.word("a barrier")? {
            "release" | "dmb" => Barrier::Release,
            "dsb" => match words.rest.next_if(|word| ["ish", "ishst", "nsh", "nshst"].contains(word)) {
                Some("ishst") => Barrier::Stores,
                Some("nsh") => Barrier::Local,
                Some("nshst") => Barrier::LocalStores,
                _ => Barrier::Complete,
            },
            "fence" | "mfence" | "sync" => Barrier::Complete,
            "isb" => Barrier::Context,
            "tlbsync" => Barrier::TlbSync,
            _ => {
                return Err(Malformed::Expected(
                    "`release`, `fence`, `dmb`, `dsb`, `isb`, `mfence`, `sync` or `tlbsync`",
                ));
            }
        }),
        "node" => Event::Node(words.memory()?),
        "frame" => Event::Frame(words.memory()?),
        "ipi" => match words.word("`send` or `take`")? {
            "send" => {
                let mut cpus = 0;
                for cpu in words.word("a list of CPUs with commas between them")?.split(',') {
                    let cpu =
                        number(cpu).ok_or(Malformed::Expected("a list of CPUs with commas between them"))?;
                    cpus |= if cpu < CPUS as u64 { 1 << cpu } else { return Err(Malformed::NoCpu) };
                }
                Event::IpiSend { cpus, id: words.number("the interrupt's number")? }
            }
            "take" => Event::IpiTake { id: words.number("the interrupt's number")? },
            _ => return Err(Malformed::Expected("`send` or `take`")),
        },
        "lower" => {
            let id = words.number("the change's number")?;
            let (first, last) = words.range()?;
            let root = match words.rest.next_if_eq(&"root") {
                Some(_) => Some(words.number("the root register's value")?),
                None => None,
            };
            Event::Lower { id, first, last, root }
        }
        "done" => Event::Done { id: words.number("the change's number")? },
        "walk" => match words.word("`begin` or `end`")? {
            "begin" => Event::WalkBegin {
                root: words.number("the root register's value")?,
                uses: words.rest.next_if_eq(&"use").is_some(),
            },
            "end" => Event::WalkEnd,
            _ => return Err(Malformed::Expected("`begin` or `end`")),
        },
        "access" => Event::Access {
            at: words.number("a virtual address")?,
            kind: match words.word("`load`, `store` or `fetch`")? {
                "load" => Access::Load,
                "store" => Access::Store,
                "fetch" => Access::Fetch,
                _ => return Err(Malformed::Expected("`load`, `store` or `fetch`")),
            },
            user: match words.word("`user` or `kernel`")? {
                "user" => true,
                "kernel" => false,
                _ => return Err(Malformed::Expected("`user` or `kernel`")),
            },
            reaches: match words.word("a physical address or `fault`")? {
                "fault" => None,
                word => Some(number(word).ok_or(Malformed::Expected("a physical address or `fault`"))?),
            },
        },
        "refill" => {
            let at = words.number("a virtual address")?;
            let pair =
                [words.number("the word of the even page")?, words.number("the word of the odd page")?];
            let bytes = words.may_number().unwrap_or(4096);
            Event::Refill { at, words: pair, bytes, blind: words.rest.next_if_eq(&"blind").is_some() }
        }
        "full" => Event::Full,
        "gap" => Event::Gap,
        "uses" => match words.word("`dirty`, `halves` or `asid`")? {
            "dirty" => Event::UsesDirty,
            "halves" => Event::UsesHalves,
            "asid" => match words.word("`ttbr0` or `ttbr1`")? {
                "ttbr0" => Event::UsesAsid { high: false },
                "ttbr1" => Event::UsesAsid { high: true },
                _ => return Err(Malformed::Expected("`ttbr0` or `ttbr1`")),
            },
            _ => return Err(Malformed::Expected("`dirty`, `halves` or `asid`")),
        },
        _ => return Err(Malformed::Expected("an event")),
    };
    if words.rest.next().is_some() {
        return Err(Malformed::TooLong);
    }
    event.well_formed()?;
    Ok(Some((cpu as usize, event)))
}

impl Event {
    /// Checks what the types of the fields do not: a range ends within the address space, an interrupt has a receiver, and a page
    /// has a size.
    ///
    /// [`parse`] and the checker refuse the events that this method refuses. A recorder takes every event, because it has no way
    /// to return an error; its log holds the event unchanged.
    ///
    /// # Errors
    ///
    /// The first field that is wrong.
    pub fn well_formed(&self) -> Result<(), Malformed> {
        match *self {
            Self::Node(Memory { at, bytes, .. }) | Self::Frame(Memory { at, bytes, .. })
                if bytes == 0 || at.checked_add(bytes - 1).is_none() =>
            {
                Err(Malformed::Expected("a range of memory"))
            }
            Self::Fence(Fence { pages: Some((first, last)), .. }) | Self::Lower { first, last, .. }
                if last < first =>
            {
                Err(Malformed::Backwards)
            }
            Self::IpiSend { cpus: 0, .. } => {
                Err(Malformed::Expected("a list of CPUs with commas between them"))
            }
            Self::Refill { bytes, .. } if !bytes.is_power_of_two() => {
                Err(Malformed::Expected("the size of a page"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x} {}", if self.free { "free" } else { "take" }, self.at, self.bytes)
    }
}

/// Writes the event in the text form, without the CPU.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Write { at, value } => write!(f, "write {at:#x} {value:#x}"),
            Self::Swap { at, old, new } => write!(f, "swap {at:#x} {old:#x} {new:#x}"),
            Self::Root { value, high } => write!(f, "root {value:#x}{}", if high { " high" } else { "" }),
            Self::Fence(Fence { pages, asid, leaf, broadcast }) => {
                f.write_str("fence")?;
                if let Some((first, last)) = pages {
                    write!(f, " va {first:#x}")?;
                    if last != first {
                        write!(f, " {last:#x}")?;
                    }
                }
                if let Some(asid) = asid {
                    write!(f, " asid {asid}")?;
                }
                f.write_str(if leaf { " leaf" } else { "" })?;
                f.write_str(if broadcast { " broadcast" } else { "" })
            }
            Self::Barrier(barrier) => f.write_str(match barrier {
                Barrier::Release => "barrier release",
                Barrier::Complete => "barrier fence",
                Barrier::Context => "barrier isb",
                Barrier::TlbSync => "barrier tlbsync",
                Barrier::Stores => "barrier dsb ishst",
                Barrier::Local => "barrier dsb nsh",
                Barrier::LocalStores => "barrier dsb nshst",
            }),
            Self::Node(memory) => write!(f, "node {memory}"),
            Self::Frame(memory) => write!(f, "frame {memory}"),
            Self::IpiSend { cpus, id } => {
                f.write_str(if cpus == 0 { "ipi send none" } else { "ipi send " })?;
                let mut comma = "";
                for cpu in (0..CPUS).filter(|cpu| cpus >> cpu & 1 != 0) {
                    write!(f, "{comma}{cpu}")?;
                    comma = ",";
                }
                write!(f, " {id}")
            }
            Self::IpiTake { id } => write!(f, "ipi take {id}"),
            Self::Lower { id, first, last, root } => {
                write!(f, "lower {id} {first:#x} {last:#x}")?;
                root.map_or(Ok(()), |root| write!(f, " root {root:#x}"))
            }
            Self::Done { id } => write!(f, "done {id}"),
            Self::WalkBegin { root, uses } => {
                write!(f, "walk begin {root:#x}{}", if uses { " use" } else { "" })
            }
            Self::WalkEnd => f.write_str("walk end"),
            Self::Access { at, kind, user, reaches } => {
                let kind = match kind {
                    Access::Load => "load",
                    Access::Store => "store",
                    Access::Fetch => "fetch",
                };
                write!(f, "access {at:#x} {kind} {} ", if user { "user" } else { "kernel" })?;
                match reaches {
                    Some(at) => write!(f, "{at:#x}"),
                    None => f.write_str("fault"),
                }
            }
            Self::Refill { at, words: [even, odd], bytes, blind } => {
                write!(f, "refill {at:#x} {even:#x} {odd:#x}")?;
                if bytes != 4096 {
                    write!(f, " {bytes}")?;
                }
                f.write_str(if blind { " blind" } else { "" })
            }
            Self::UsesDirty => f.write_str("uses dirty"),
            Self::UsesHalves => f.write_str("uses halves"),
            Self::UsesAsid { high } => f.write_str(if high { "uses asid ttbr1" } else { "uses asid ttbr0" }),
            Self::Full => f.write_str("full"),
            Self::Gap => f.write_str("gap"),
        }
    }
}
