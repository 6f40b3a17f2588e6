//! The synthetic benchmark of thesis 4.5, and that of the OSDI paper's section 6.1.

use std::collections::HashSet;

use super::costs::Costs;
use super::kernel::{Fill, For, Kernel, TABLE_PAGES, Tally};
use super::level::Level;
use super::programs::{Programs, Reference, Stretch, Talk};
use super::rng::Rng;
use super::scheme::{Scheme, Software};

/// The shape of a run.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) servers: usize,
    pub(crate) clients: usize,
    pub(crate) pattern: Pattern,
    /// Words of data that a process touches each time it runs.
    pub(crate) words: usize,
    /// Messages to send; a run ends with the iteration in which they are reached.
    pub(crate) ipcs: u64,
    /// Computation before each message, in messages.
    pub(crate) granularity: u64,
    /// Whether a client keeps the processor for several requests before the next client runs.
    pub(crate) handoff: bool,
    pub(crate) fill: Fill,
    pub(crate) record: Record,
    pub(crate) inject: Option<Inject>,
    /// What the processes run, if not the synthetic benchmark's words.
    pub(crate) programs: Option<Programs>,
    pub(crate) costs: Costs,
    pub(crate) open: Open,
    pub(crate) seed: u64,
}

/// Which processes talk to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pattern {
    /// A request goes to a random server, from there to all that follow it, and the answer the same way back (thesis 4.5).
    Chain,
    /// A request goes to a random server, which answers.
    Star,
    /// A request goes through all servers, the last of which answers.
    Ring,
    /// A client's requests go to one server, its own where there are enough, which answers.
    Pairs,
}

/// Whose first message records entries, and is not helped by any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Record {
    /// That of each process (thesis 3.1.5).
    Process,
    /// That of each pair of processes (OSDI paper 3.1).
    Pair,
}

/// The invalidation to leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Inject {
    /// Of one page, when the kernel moves it.
    Page,
    /// Of a range, when a process exits and another gets its page table.
    Range,
    /// Of everything, when the numbers of address spaces have run out.
    All,
}

/// What the thesis leaves open. `tlblab mach --sensitivity` shows which claims depend on it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Open {
    /// Pages of kernel data that every message touches, and that the PTLB prefetches: message queues, ports.
    pub(crate) ipc_pages: usize,
    /// Pages of kernel data of each process that a message to it touches, and that is not prefetched: its kernel stack,
    /// thread and task structures.
    pub(crate) own_pages: usize,
    /// How many of those a message touches, in percent; which, differs from message to message.
    pub(crate) own_touched: usize,
    /// Whether each kind of kernel data lies in a region of its own, that is, has an L3 entry of its own.
    pub(crate) spread: bool,
    /// Pages of code that a process touches each time it runs.
    pub(crate) code_pages: usize,
    /// Megabytes of data that words are taken from; the thesis says 4.
    pub(crate) table_mb: usize,
    /// Words that a client touches each time it runs, if it is not as many as a server.
    pub(crate) client_words: Option<usize>,
    /// Whether the servers of a chain pass the answer back one by one, or each request ends at the last.
    pub(crate) replies: bool,
    /// Messages between two changes of a page table.
    pub(crate) change_every: u64,
}

impl Default for Open {
    fn default() -> Self {
        Self {
            ipc_pages: 2,
            own_pages: 2,
            own_touched: 50,
            spread: true,
            code_pages: 1,
            table_mb: 4,
            client_words: None,
            replies: true,
            change_every: 100,
        }
    }
}

/// Requests that a client makes before it loses the processor, if it hands it to the server directly.
const QUANTUM: usize = 8;

/// Where a process has its segments, in pages; each under an L2 entry of its own.
const CODE: usize = 0x400;
const DATA: usize = 0x1_0000;
const MESSAGE: usize = 0x3_0000;
const STACK: usize = 0x7_ffff;
/// Where a recorded program, which has its own idea of the rest, has its messages.
const MESSAGE_OF_TRACE: usize = 0x7_fc00;

/// Where the kernel has its data, in pages from the start of its memory: each kind in regions (4 MiB, one L3 entry) of
/// its own, and nowhere at the distance from a user page table at which those have their busy pages.
const IPC_DATA: [usize; 2] = [0x250, 0x680];
const OWN_DATA: [usize; 2] = [0xa60, 0xe60];

/// Replays recorded programs under `scheme`, each switch from one to another a message.
pub(crate) fn replay(workload: &Workload, talk: &Talk, scheme: Scheme) -> (Tally, tlbkit_stlb::Counters) {
    scheme.with(|software| {
        let mut run = Run::new(workload, software);
        run.talk(talk);
        let count = run.kernel.software.count();
        (run.kernel.tally, count)
    })
}

/// Runs `workload` under `scheme`.
pub(crate) fn run(workload: &Workload, scheme: Scheme) -> (Tally, tlbkit_stlb::Counters) {
    scheme.with(|software| {
        let mut run = Run::new(workload, software);
        while run.kernel.tally.ipcs < workload.ipcs {
            run.iteration();
        }
        let count = run.kernel.software.count();
        (run.kernel.tally, count)
    })
}

struct Run<'a> {
    workload: &'a Workload,
    kernel: Kernel<'a>,
    random: Rng,
    client: usize,
    requests: usize,
    pairs: HashSet<(usize, usize)>,
    /// How far each recorded program is, and its program counter.
    progress: Vec<(usize, usize)>,
}

/// The pages by which the IPC path knows what a process will need.
#[derive(Clone, Copy)]
struct Places {
    pc: usize,
    sp: usize,
    message: usize,
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, software: &'a mut dyn Software) -> Self {
        Self {
            workload,
            kernel: Kernel::new(software, workload.costs, workload.fill, workload.seed ^ 0x51b),
            random: Rng::new(workload.seed),
            client: 0,
            requests: 0,
            pairs: HashSet::new(),
            progress: vec![(0, 0); workload.clients + workload.servers],
        }
    }

    /// One request of one client, along the pattern's processes and back.
    fn iteration(&mut self) {
        let Workload { clients, servers, handoff, .. } = *self.workload;
        self.requests += 1;
        if !handoff || self.requests.is_multiple_of(QUANTUM) {
            let next = (self.client + 1) % clients;
            if next != self.client {
                self.runs(next); // the scheduler's switch: no message, no prefetching
            }
            self.client = next;
        }
        let first = self.random.below(servers);
        let way = match self.workload.pattern {
            Pattern::Chain => first..servers,
            Pattern::Star => first..first + 1,
            Pattern::Ring => 0..servers,
            Pattern::Pairs => self.client % servers..self.client % servers + 1,
        };
        let back = if self.workload.pattern == Pattern::Chain && self.workload.open.replies {
            way.start..way.end - 1
        } else {
            0..0
        };
        let mut from = self.client;
        for to in way.chain(back.rev()).map(|number| clients + number) {
            self.message(from, to);
            from = to;
        }
        self.message(from, self.client);
    }

    /// One message, after which the receiver runs.
    fn message(&mut self, from: usize, to: usize) {
        self.send(from, to);
        self.runs(to);
    }

    fn talk(&mut self, talk: &Talk) {
        let stall = self.workload.programs.as_ref().map_or(0.0, |programs| programs.stall);
        let mut running = None;
        for &(process, Reference { page, fetch, store, instructions }) in &talk.runs {
            if let Some(before) = running.replace(process).filter(|&before| before != process) {
                self.send(before, process);
            }
            self.kernel.touch(process, page, if fetch { For::Pc } else { For::Data }, false, store);
            if fetch {
                self.progress[process].1 = page;
            }
            self.kernel.tally.work += instructions + (instructions as f64 * stall) as u64;
        }
    }

    /// One message: the sender enters the kernel, the receiver leaves it.
    fn send(&mut self, from: usize, to: usize) {
        let workload = self.workload;
        self.kernel.tally.ipcs += 1;
        self.kernel.tally.work += self.kernel.costs.ipc * (1 + workload.granularity);
        if self.kernel.software.has_stlb() {
            // One system call for each message.
            self.kernel.tally.overhead += self.kernel.costs.syscall;
        }
        if self.kernel.tally.ipcs.is_multiple_of(workload.open.change_every) {
            self.change();
        }
        let known = workload.record == Record::Process || self.pairs.contains(&(from, to));

        // The sender's side: the message is read from its buffer, into the kernel's data.
        self.kernel.user(from, self.places(from).message, For::Message, true);
        for (page, level) in self.predicted(from) {
            self.kernel.record(page, level);
        }
        for page in self.ipc_pages() {
            if known {
                self.kernel.prefetch(page, Level::L1K);
            }
            self.kernel.kernel(page, Level::L1K, For::KernelIpc, false);
            self.kernel.record(page, Level::L1K);
        }
        // The receiver's: its thread is found and woken, its entries prefetched, the message written to its buffer.
        for number in 0..workload.open.own_pages {
            if self.random.below(100) < workload.open.own_touched {
                let page = self.own_page(to, number);
                self.kernel.kernel(page, Level::L1K, For::OtherKernel, false);
            }
        }
        if known {
            for (page, level) in self.predicted(to) {
                self.kernel.prefetch(page, level);
            }
        }
        self.pairs.insert((from, to));
        self.kernel.touch(to, self.places(to).message, For::Message, true, true);
    }

    fn places(&self, process: usize) -> Places {
        match self.stretch(process) {
            Some(stretch) => {
                Places { pc: self.progress[process].1, sp: stretch.stack, message: MESSAGE_OF_TRACE }
            }
            None => Places { pc: CODE, sp: STACK, message: MESSAGE },
        }
    }

    /// Returns what a process runs; several clients would run the same.
    fn stretch(&self, process: usize) -> Option<&'a Stretch> {
        let Programs { stretches, .. } = self.workload.programs.as_ref()?;
        let role = process.saturating_sub(self.workload.clients - 1);
        stretches.get(role)
    }

    /// A recorded program runs on for a while.
    fn runs_on(&mut self, process: usize, stretch: &Stretch, instructions: u64, stall: f64) {
        let (mut at, mut pc) = self.progress[process];
        let mut left = 1 + self.random.below(2 * instructions as usize) as u64;
        self.kernel.tally.work += left + (left as f64 * stall) as u64;
        while left > 0 {
            let run = stretch.runs[at];
            self.kernel.touch(
                process,
                run.page,
                if run.fetch { For::Pc } else { For::Data },
                false,
                run.store,
            );
            if run.fetch {
                pc = run.page;
            }
            left = left.saturating_sub(run.instructions);
            at = (at + 1) % stretch.runs.len();
        }
        self.progress[process] = (at, pc);
    }

    /// A process runs: code, stack, message, and its words; or its recorded references.
    fn runs(&mut self, process: usize) {
        let is_client = process < self.workload.clients;
        if let (Some(stretch), Some(programs)) = (self.stretch(process), &self.workload.programs) {
            let instructions = if is_client { programs.client } else { programs.service };
            return self.runs_on(process, stretch, instructions, programs.stall);
        }
        let Open { code_pages, table_mb, client_words, .. } = self.workload.open;
        let words = client_words.filter(|_| is_client).unwrap_or(self.workload.words);
        for page in 0..code_pages {
            self.kernel.user(process, CODE + page, For::Pc, false);
        }
        self.kernel.user(process, STACK, For::Sp, false);
        self.kernel.user(process, MESSAGE, For::Message, false);
        for _ in 0..words {
            let page = DATA + self.random.below(table_mb * 256);
            self.kernel.user(process, page, For::Data, false);
            self.kernel.tally.work += self.kernel.costs.word;
        }
    }

    /// What the IPC path prefetches for a process (thesis 3.1.4): L2 entries for program counter, stack pointer and
    /// message buffer, and the L3 entry above the last.
    fn predicted(&self, process: usize) -> impl Iterator<Item = (usize, Level)> + use<> {
        let Places { pc, sp, message } = self.places(process);
        let l2 = [pc, sp, message].map(|page| Kernel::table_page(process, page));
        let l3 = Kernel::kernel_table_page(l2[2]);
        let level = Level::L2 { in_kernel: true };
        [(l3, Level::L3)].into_iter().chain(l2.map(|page| (page, level)))
    }

    fn ipc_pages(&self) -> impl Iterator<Item = usize> + use<> {
        let region = region(IPC_DATA, self.workload.open.spread);
        (0..self.workload.open.ipc_pages).map(move |number| region(number) + number)
    }

    fn own_page(&self, process: usize, number: usize) -> usize {
        region(OWN_DATA, self.workload.open.spread)(number) + process * 5 + number
    }

    /// The kernel changes a page table, as kernels do: moves a page of its own, replaces a process, or, now and then,
    /// begins a new generation of address-space numbers.
    fn change(&mut self) {
        let tell = |kind| self.workload.inject != Some(kind);
        let processes = self.workload.clients + self.workload.servers;
        let process = self.random.below(processes);
        let pages: Vec<_> = self.ipc_pages().chain(self.predicted(process).map(|(page, _)| page)).collect();
        match self.random.below(20) {
            0 => self.kernel.restart(&pages, tell(Inject::All)),
            1..5 => {
                self.kernel.exit(process);
                self.kernel.remap(Kernel::table_page(process, 0), TABLE_PAGES, tell(Inject::Range));
            }
            _ => {
                let page = pages[self.random.below(pages.len())];
                self.kernel.remap(page, 1, tell(Inject::Page));
            }
        }
    }
}

/// Returns where the kernel has the page of a kind with a number: all in one region, or alternating between two.
fn region(regions: [usize; 2], spread: bool) -> impl Fn(usize) -> usize {
    move |number| super::kernel::KSEG2 + if spread { regions[number % 2] } else { regions[0] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_who_talks_to_whom() {
        // Two clients, 0 and 1, and three servers.
        let pairs = |pattern| {
            let (open, costs) = (Open::default(), Costs::default());
            let (fill, record) = (Fill::Load, Record::Process);
            let workload = Workload {
                servers: 3,
                clients: 2,
                pattern,
                words: 1,
                ipcs: 400,
                granularity: 0,
                handoff: false,
                fill,
                record,
                inject: None,
                programs: None,
                costs,
                open,
                seed: 1,
            };
            Scheme::Mach.with(|software| {
                let mut run = Run::new(&workload, software);
                while run.kernel.tally.ipcs < workload.ipcs {
                    run.iteration();
                }
                let mut pairs: Vec<_> = run.pairs.into_iter().collect();
                pairs.sort_unstable();
                pairs
            })
        };
        assert_eq!(pairs(Pattern::Pairs), [(0, 2), (1, 3), (2, 0), (3, 1)]);
        assert_eq!(pairs(Pattern::Ring), [(0, 2), (1, 2), (2, 3), (3, 4), (4, 0), (4, 1)]);
        let star = [2, 3, 4].map(|server| [(0, server), (1, server), (server, 0), (server, 1)]);
        let mut star = star.concat();
        star.sort_unstable();
        assert_eq!(pairs(Pattern::Star), star);
        // Those of the star, and between neighbours, both ways.
        star.extend([(2, 3), (3, 2), (3, 4), (4, 3)]);
        star.sort_unstable();
        assert_eq!(pairs(Pattern::Chain), star);
    }
}
