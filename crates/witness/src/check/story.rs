//! The explanation of a violation: a few sentences that name lines of the log.

use std::format;
use std::string::String;
use std::vec::Vec;

use super::arch::{Arch, Entry, Family, rights};
use super::held::{GLOBAL, Item, Place, span};
use super::machine::{Holder, Machine, Mixed, Unread};
use super::memory::Line;
use super::verdict::{Refusal, Rule, Violation};
use super::walk::Walk;

/// Tells what happened.
pub(super) struct Teller<'a> {
    machine: &'a Machine,
    rule: Rule,
    cpu: Option<usize>,
}

impl Machine {
    pub(super) fn violation(&self, rule: Rule, cpu: Option<usize>) -> Teller<'_> {
        Teller { machine: self, rule, cpu }
    }
}

/// Returns what the rights allow, in words.
fn allowed(right: u8) -> String {
    let names = [(rights::READ, "read"), (rights::WRITE, "written"), (rights::EXEC, "executed")];
    let words: Vec<&str> = names.iter().filter(|(bit, _)| right & bit != 0).map(|&(_, name)| name).collect();
    if words.is_empty() { "touched".into() } else { words.join(", ") }
}

/// Returns a clause that says by which event a CPU gets an entry beside which another entry may match.
pub(super) fn stores(cpu: usize, at: u64) -> String {
    format!("CPU {cpu} stores a valid entry at {at:#x}")
}

impl Teller<'_> {
    fn tell(self, story: impl IntoIterator<Item = String>) -> Refusal {
        let story = story.into_iter().collect();
        Refusal::Violation(Violation { rule: self.rule, line: self.machine.now, cpu: self.cpu, story })
    }

    fn here(&self, what: &str) -> String {
        format!("line {}: {what}", self.machine.now)
    }

    fn arch(&self) -> Arch {
        self.machine.arch
    }

    /// Returns a sentence about an item, which begins with the CPU.
    fn holds(&self, cpu: usize, place: Place, item: &Item) -> String {
        let va = self.arch().show(span(place).0);
        let tag = if place.0 == GLOBAL { "as global".into() } else { format!("under ASID {}", place.0) };
        let what = match item.entry {
            Entry::Leaf { frame, shift, rights, .. } => {
                format!(
                    "VA {va:#x} ({} KiB) leads to {frame:#x} and may be {}",
                    1_u64 << shift >> 10,
                    allowed(rights)
                )
            }
            Entry::Link { node, .. } => format!("walks of VA {va:#x} go on in the node at {node:#x}"),
            Entry::Absent => format!("VA {va:#x} has no translation"),
        };
        if item.since == item.stale && item.since != 0 {
            return format!("CPU {cpu} wrote in its TLB {tag} in line {}: {what}", item.since);
        }
        if item.stale == 0 {
            return format!("CPU {cpu} may hold {tag}: {what}; a table that it runs or has left says so");
        }
        let since = if item.since == 0 { String::new() } else { format!(" since line {}", item.since) };
        format!(
            "CPU {cpu} may hold{since} {tag}: {what}; CPU {} changed that in line {}",
            item.writer, item.stale
        )
    }

    /// Returns a sentence that says why no invalidation has removed an item.
    fn why(&self, cpu: usize, place: Place, item: &Item) -> String {
        if item.going != 0 {
            let by = self.machine.beginner(item.going);
            return format!(
                "CPU {by} has begun to invalidate it, and has executed no barrier since that waits for it"
            );
        }
        let Some((line, scope)) = self.machine.cpus[cpu].last_fence else {
            return format!("no invalidation has reached CPU {cpu}");
        };
        if item.stale == 0 {
            return format!(
                "CPU {cpu} may have read it again since its last invalidation, that of line {line}"
            );
        }
        if line < item.stale {
            return format!("the last invalidation that reached CPU {cpu} is older: line {line}");
        }
        let last = format!("the last invalidation that reached CPU {cpu}, in line {line},");
        let (first, end) = span(place);
        if place.0 == GLOBAL && !scope.globals {
            return format!("{last} leaves global entries");
        }
        if place.0 != GLOBAL && scope.asid.is_some_and(|asid| u32::from(asid) != place.0) {
            return format!("{last} names another ASID");
        }
        if scope.pages.is_some_and(|(from, to)| end < from || to < first) {
            return format!("{last} names other addresses");
        }
        if !scope.covers(place, item) {
            return format!("{last} covers leaf entries alone");
        }
        let link = |tag: u32| {
            let near = self.machine.cpus[cpu].held.near(tag, self.arch().levels(), first, end);
            near.into_iter().find(|(at, item)| {
                at.1 > place.1 && matches!(item.entry, Entry::Link { .. }) && !scope.covers(*at, item)
            })
        };
        let mut tags = self.machine.cpus[cpu].held.tags().filter(|&tag| place.0 == GLOBAL || tag == place.0);
        if let Some((_, link)) = tags.find_map(link) {
            return format!(
                "{last} leaves the link that was changed in line {}, and by way of it CPU {cpu} may have read this again",
                link.stale
            );
        }
        format!(
            "{last} came when the store of line {} was not visible there yet: no barrier of CPU {} lies between",
            item.stale, item.writer
        )
    }

    fn name(&self, holder: &Holder) -> String {
        match holder.root {
            Some((root, _)) if self.machine.walks(holder) => {
                format!("CPU {} walks the table at {root:#x}", holder.cpu)
            }
            Some((root, _)) => format!("CPU {} walked the table at {root:#x} before", holder.cpu),
            None => format!("CPU {} may hold a link to it that no table has", holder.cpu),
        }
    }

    pub(super) fn linked_free(self, node: u64) -> Refusal {
        let line =
            self.here(&format!("the node at {node:#x} is linked or loaded, and was given back before"));
        let cpu = self.cpu.unwrap_or(0);
        self.tell([line, format!("from then on CPU {cpu} may walk in memory that anything may be stored in")])
    }

    pub(super) fn unwritten(self, node: u64, line: Line) -> Refusal {
        let story = [
            self.here(&format!(
                "the node at {node:#x} is linked to a table that CPU {} walks",
                self.cpu.unwrap_or(0)
            )),
            format!("line {line} stored in the node what a walk must see, and no barrier lies between"),
            "the walk may see the link first, and then what was in the memory before".into(),
        ];
        self.tell(story)
    }

    pub(super) fn unread(self, cpu: usize, Unread { root, since, node, store, .. }: Unread) -> Refusal {
        let what = if since == self.machine.now {
            format!("CPU {cpu} loads the root {root:#x}")
        } else {
            format!("CPU {cpu} goes on with the root {root:#x} that it has loaded in line {since}")
        };
        let order = match (store.cpu == cpu, self.arch().family()) {
            (true, Family::Arm) => {
                "no dsb between lets walks read that: it has to come before the root".into()
            }
            (true, _) => format!("no fence of CPU {cpu} since then orders that before its walks"),
            (false, _) => format!("no barrier of CPU {} orders that before the root is handed on", store.cpu),
        };
        let story = [
            self.here(&format!("{what}, and its walks may read what was in the node at {node:#x} before")),
            format!("CPU {} filled that node in line {}", store.cpu, store.line),
            order,
        ];
        self.tell(story)
    }

    /// Explains that an access of the kernel may find a word empty although the word was stored before the root was loaded.
    pub(super) fn unseen(self, at: u64, wanted: Option<u64>, line: Line) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        let story = [
            self.here(&format!(
                "the access must reach {:#x}, and may fault: a walk may find the word at {at:#x} as it was before",
                wanted.unwrap_or(0)
            )),
            format!("line {line} stored it, and nothing orders that before the walks of CPU {cpu}"),
        ];
        self.tell(story)
    }

    pub(super) fn dirty_lost(self, at: u64, va: u64, since: Line) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        let story = [
            self.here(&format!(
                "a plain store replaces the word at {at:#x}, which maps VA {:#x}",
                self.arch().show(va)
            )),
            format!(
                "CPU {cpu} may set the dirty bit there just before: the entry of line {since} can be written"
            ),
            "an exchange would have returned the bit".into(),
        ];
        self.tell(story)
    }

    pub(super) fn unbroken(self, at: u64, va: u64, since: Line) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        let story = [
            self.here(&format!("the word at {at:#x} goes from one valid entry to another that excludes it")),
            format!(
                "CPU {cpu} may hold the one of line {since} for VA {:#x}, and load the other",
                self.arch().show(va)
            ),
            "the architecture asks for an invalid entry between them, and its invalidation".into(),
        ];
        self.tell(story)
    }

    /// Explains that two entries may match. `did` is the clause about the event by which the CPU gets the second entry.
    pub(super) fn matching(self, did: &str, place: Place, item: &Item) -> Refusal {
        let holder = self.cpu.unwrap_or(0);
        let story = [
            self.here(&format!("{did}, and another one may still match beside it")),
            self.holds(holder, place, item),
            self.why(holder, place, item),
        ];
        self.tell(story)
    }

    pub(super) fn paired(self, at: u64, va: u64, since: Line) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        let story = [
            self.here(&format!("a larger page is stored at {at:#x}, and its pair takes in what is smaller")),
            format!(
                "CPU {cpu} may hold an entry for VA {:#x}, from line {since}, and load the pair beside it",
                self.arch().show(va)
            ),
            "two entries that match one address are a machine check: the smaller one has to go first".into(),
        ];
        self.tell(story)
    }

    pub(super) fn halved(self, writer: usize, at: u64, beside: u64, since: Line) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        let said =
            if since == 0 { "was never stored".into() } else { format!("is as line {since} stored it") };
        let story = [
            self.here(&format!(
                "CPU {writer} stores half of a pair at {at:#x}: one word is of a larger page"
            )),
            format!("CPU {cpu} may load both words now, of which the other one, at {beside:#x}, {said}"),
            "then it takes the larger page's word for a page of 4 KiB, which is another frame".into(),
        ];
        self.tell(story)
    }

    pub(super) fn mixed(self, cpu: usize, Mixed { asid, since: line, first, root: now }: Mixed) -> Refusal {
        // The table is the same, or the earlier one was freed: memory or rights of entries that the CPU holds have gone meanwhile.
        let (what, held) = if now == first {
            let held =
                format!("it ran ASID {asid} before, and a frame, a node or a right of then has gone since");
            ("what has gone", held)
        } else {
            ("entries of two tables", format!("it may hold entries of the table at {first:#x}"))
        };
        let story = [
            self.here(&format!("CPU {cpu} goes on, and may use {what} under ASID {asid}")),
            format!("line {line} loaded the root {now:#x}; {held}"),
            format!("no invalidation of ASID {asid} has reached CPU {cpu} since"),
        ];
        self.tell(story)
    }

    pub(super) fn node(self, node: u64, holder: &Holder, level: u32) -> Refusal {
        let va = self.arch().show(holder.va);
        let mut story = std::vec![
            self.here(&format!(
                "the node at {node:#x} changes hands, and a walk of CPU {} may be in it",
                holder.cpu
            )),
            format!("{}, at VA {va:#x}", self.name(holder)),
        ];
        if holder.root.is_none() {
            for &(cpu, place) in self.machine.cut.get(&node).into_iter().flatten() {
                let mut held = self.machine.cpus[cpu].held.at(place).iter();
                let link = held.find(|item| matches!(item.entry, Entry::Link { node: to, .. } if to == node));
                if let (Some(item), true) = (link, cpu == holder.cpu) {
                    story.push(self.holds(cpu, place, item));
                    story.push(self.why(cpu, place, item));
                    break;
                }
            }
        } else if level < self.arch().top() {
            story.push("a word of that table still links it".into());
        }
        self.tell(story)
    }

    /// Explains that a walk by software may have found what changes hands. `cut` is the line in which it was taken out of the table.
    pub(super) fn walked(self, cpu: usize, walk: &Walk, what: &str, cut: Option<Line>) -> Refusal {
        let cut = match cut {
            Some(line) => {
                format!("line {line} took it out of that table, and no walk that began before may go on")
            }
            None => "that table still leads to it".into(),
        };
        let began = format!(
            "CPU {cpu} began to walk the table at {:#x} by software in line {}, and has not ended",
            walk.root, walk.since
        );
        let story = [self.here(what), began, cut];
        self.tell(story)
    }

    pub(super) fn frame_held(self, frame: u64, place: Place, item: &Item) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        let story = [
            self.here(&format!("the frame at {frame:#x} changes hands, and CPU {cpu} may still reach it")),
            self.holds(cpu, place, item),
            self.why(cpu, place, item),
        ];
        self.tell(story)
    }

    pub(super) fn frame_mapped(self, frame: u64, at: u64, va: u64, holder: &Holder) -> Refusal {
        let story = [
            self.here(&format!(
                "the frame at {frame:#x} changes hands, and CPU {} may still reach it",
                holder.cpu
            )),
            format!("the word at {at:#x} maps it at VA {:#x}", self.arch().show(va)),
            self.name(holder),
        ];
        self.tell(story)
    }

    pub(super) fn kept(self, id: u64, va: u64, place: Place, item: &Item) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        let story = [
            self.here(&format!(
                "change {id} is promised, and CPU {cpu} may still use VA {:#x} as before",
                self.arch().show(va)
            )),
            self.holds(cpu, place, item),
            self.why(cpu, place, item),
        ];
        self.tell(story)
    }

    /// Returns the first sentence about an access.
    fn may(&self, va: u64, wanted: Option<u64>, found: Option<u64>) -> String {
        let end = |end: Option<u64>| end.map_or("fault".into(), |at| format!("reach {at:#x}"));
        self.here(&format!("the access to VA {va:#x} must {}, and may {}", end(wanted), end(found)))
    }

    pub(super) fn fetched(self, va: u64, wanted: Option<u64>, found: Option<u64>, line: Line) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        let why = format!("CPU {cpu} invalidated that itself, which was complete in line {line}");
        let what = self.may(va, wanted, found);
        self.without_isb([what, why], "execute what it has fetched before")
    }

    pub(super) fn not_left(
        self,
        va: u64,
        wanted: Option<u64>,
        found: Option<u64>,
        (root, line): (u64, Line),
    ) -> Refusal {
        let why = format!("so the table at {root:#x} says; line {line} loaded another root in its place");
        let what = self.may(va, wanted, found);
        self.without_isb([what, why], "walk the first table yet")
    }

    fn without_isb(self, [what, why]: [String; 2], may: &str) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        self.tell([what, why, format!("no isb of CPU {cpu} lies between: it may {may}")])
    }

    pub(super) fn access(
        self,
        va: u64,
        wanted: Option<u64>,
        found: Option<u64>,
        by: Option<(Place, &Item)>,
    ) -> Refusal {
        let cpu = self.cpu.unwrap_or(0);
        let mut story = std::vec![self.may(va, wanted, found)];
        match by {
            Some((place, item)) => {
                story.push(self.holds(cpu, place, item));
                story.push(self.why(cpu, place, item));
            }
            None => story.push("so the table says".into()),
        }
        self.tell(story)
    }
}
