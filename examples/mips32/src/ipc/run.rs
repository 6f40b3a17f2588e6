//! The workload: a client and a chain of servers (thesis 4.5).
//!
//! The client picks a server at random; that one passes the message on to the next, up to the last, and the answer comes
//! back the same way. A process that gets a message touches its stack, the message and 30 words at random in 4 MB of
//! data.
//!
//! The instructions include what is counted: nine for each L1U miss in its log, and some dozens where the log is read.

use tlbkit_malta::check::{Checks, Random};
use tlbkit_malta::trap::{Frame, LOAD, SYSCALL, code, enter};
use tlbkit_malta::{print, println, tlb};
use tlbkit_pagetable::Error;
use tlbkit_pagetable::nodes::Offset;

use super::handler;
use super::kernel::{Kernel, Process};
use super::scheme::{NAMES, SLOTS, Scheme};
use crate::measure::counted;
use crate::memory;
use crate::tables::Nodes;
use crate::user::{self, CODE, Program};

/// Most servers of a chain.
const SERVERS: usize = 8;
/// Requests that the client makes.
const REQUESTS: u32 = 100;
/// Words of data for each message, in so many pages.
const WORDS: u32 = 30;
const PAGES: u32 = 1024;

/// Where a process has its data, its message buffer and its stack: each in megabytes of its own.
const DATA: u32 = 0x1000_0000;
const MESSAGE: u32 = 0x3000_0000;
const STACK: u32 = 0x7fff_e000;

/// Pages of the kernel's data that every message uses.
const QUEUES: u32 = 2;

/// Runs it for chains of 1 to 8 servers under every scheme, and returns how many checks failed.
pub fn run(nodes: &'static Nodes<Offset>) -> u32 {
    let code = user::install();
    handler::install();
    println!(
        "Messages over linear page tables in kseg2, {} TLB entries: misses and prefetches a message",
        tlb::entries()
    );
    println!(
        "servers  scheme         l1u     l2    l1k     l3  cascaded  cached  prefetched   used   instructions"
    );
    let mut checks = Checks::default();
    let mut kernel = match Kernel::new(nodes, QUEUES + SERVERS as u32 + 1) {
        Ok(kernel) => kernel,
        Err(error) => panic!("no memory for the kernel's table: {error}"),
    };
    let mut processes = heapless::Vec::<Process, { SERVERS + 1 }>::new();
    for number in 0..=SERVERS as u32 {
        match process(&mut kernel, number, code) {
            Ok(process) => drop(processes.push(process)),
            Err(error) => panic!("no memory for process {number}: {error}"),
        }
    }
    for servers in 1..=SERVERS {
        for name in NAMES {
            kernel.scheme = Scheme::Plain;
            // SAFETY: the scheme before it has just gone.
            kernel.scheme = Scheme::new(name, unsafe { memory::window(16 * SLOTS) });
            kernel.tally = Default::default();
            tlb::forget_all(|_| true);
            handler::drain(|_| ());
            let mut chain =
                Chain { kernel: &mut kernel, processes: &mut processes, random: Random::new(3), messages: 0 };
            let (sum, instructions) = counted(|| (0..REQUESTS).map(|_| chain.request(servers)).sum::<u32>());
            let messages = chain.messages;
            kernel.look_back(false);
            // Each process that got the message added one to it.
            checks.check(sum == messages, |say| {
                say(format_args!("{messages} messages, but {sum} were counted"));
            });
            let duplicates = tlb::duplicates();
            checks.check(duplicates == 0, |say| {
                say(format_args!("{duplicates} pairs of TLB entries match one address"));
            });
            report(servers, name, &kernel, messages, instructions);
        }
    }
    println!("ipc checks={} failures={}", checks.done, checks.failed);
    checks.failed
}

/// Prints a line for people and one for programs.
fn report(servers: usize, name: &str, kernel: &Kernel, messages: u32, instructions: u32) {
    let t = kernel.tally;
    print!("{servers:>7}  {name:<10}");
    for (count, width) in [
        (t.l1u, 5),
        (t.l2, 4),
        (t.l1k, 4),
        (t.l3, 4),
        (t.cascaded, 7),
        (t.cached, 5),
        (t.prefetched, 9),
        (t.used, 4),
    ] {
        let hundredths = count * 100 / messages;
        print!("{:>width$}.{:02}", hundredths / 100, hundredths % 100);
    }
    println!("{:>15}", instructions / messages);
    println!(
        "ipc scheme={name} servers={servers} messages={messages} l1u={} l2={} l1k={} l3={} cascaded={} cached={} \
         prefetched={} prefetches_used={} insns={instructions}",
        t.l1u, t.l2, t.l1k, t.l3, t.cascaded, t.cached, t.prefetched, t.used
    );
}

/// Returns a process that waits for its first message.
fn process(kernel: &mut Kernel, number: u32, code: tlbkit_addr::Pfn) -> Result<Process, Error> {
    let mut frame = Frame::new(Program::Serve.entry(), STACK + 0xf00);
    frame.registers[4..8].copy_from_slice(&[DATA, WORDS, number + 1, MESSAGE]);
    let data = (0..PAGES).map(|page| DATA + (page << 12));
    kernel.process(number, frame, [CODE, STACK, MESSAGE], code, data.chain([MESSAGE, STACK]))
}

/// The client, the servers, and the kernel between them.
struct Chain<'k> {
    kernel: &'k mut Kernel,
    processes: &'k mut heapless::Vec<Process, { SERVERS + 1 }>,
    random: Random,
    messages: u32,
}

impl Chain<'_> {
    /// Makes a request, and returns what the message has become.
    fn request(&mut self, servers: usize) -> u32 {
        let first = 1 + self.random.below(servers as u32) as usize;
        let mut value = 0;
        let mut at = 0;
        for to in (first..=servers).chain((first..servers).rev()).chain([0]) {
            value = self.send(at, to, value);
            at = to;
        }
        value
    }

    /// Sends a message from one process to another, which adds one to it and is then about to send its own.
    fn send(&mut self, from: usize, to: usize, value: u32) -> u32 {
        self.messages += 1;
        let (sender, kernel) = (&self.processes[from], &mut *self.kernel);
        kernel.look_back(false);
        kernel.switch(sender);
        kernel.record(sender);
        // The kernel's path: queues and ports, and both processes' control blocks.
        (0..QUEUES)
            .chain([from, to].map(|process| QUEUES + process as u32))
            .for_each(|page| kernel.use_data(page));
        kernel.touch(MESSAGE);
        let receiver = &mut self.processes[to];
        kernel.switch(receiver);
        kernel.prefetch(receiver);
        kernel.touch(MESSAGE);
        receiver.frame.registers[2] = value;
        loop {
            // SAFETY: the frame is the process's, whose address space is current.
            unsafe { enter(&raw mut receiver.frame) };
            let Frame { cause, bad_vaddr, .. } = receiver.frame;
            match code(cause) {
                SYSCALL => break,
                LOAD if bad_vaddr >= 0xc000_0000 => kernel.miss(bad_vaddr),
                other => panic!("exception {other} at {bad_vaddr:#x} in a process"),
            }
        }
        receiver.frame.pc += 4;
        receiver.frame.registers[2]
    }
}
