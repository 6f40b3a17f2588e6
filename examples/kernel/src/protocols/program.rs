//! What each CPU does in a run.
//!
//! ```text
//!   a page of the segment    word 4 i + CPU, i = 0 ... 255: four of them, each with what the CPU has stored last
//!   a page of the region     words 0 ... 7: a letter, the same word eight times
//!                            words 16, 17: what the CPUs of space 0 and 1 store whenever their TLB lets them
//! ```

use core::sync::atomic::Ordering;

use tlbkit::shootdown::SwitchKind;
use tlbkit_dash::ipc::{Access, IpcError, LowAction, MessageStep, Passing, Receive, Send};
use tlbkit_malta::tlb;

use super::cpu::{Cpu, is_changing};
use super::vm::{self, Fault, Talk};
use super::{CPUS, MAILED, PAGED, Run, SPACES, add, address, wrong};
use crate::time;

/// Where a CPU's words of a page of the segment are: the first, the last, and two between.
const PLACES: [usize; 4] = [0, 63, 127, 255];
/// The words of a letter.
const LETTER: usize = 8;
/// Where the CPUs of a space intrude.
const INTRUDERS: usize = 16;
/// One in so many writes to the disk fails.
const WRITES: usize = 16;

/// What a CPU stores to its words of a page of the segment.
const fn mark(page: usize, cpu: usize, count: u32) -> u32 {
    if count == 0 { 0 } else { (page as u32) << 24 | (cpu as u32) << 20 | count & 0xf_ffff }
}

/// A word of a letter.
const fn letter(talk: usize, number: u32) -> u32 {
    1 << 30 | (talk as u32) << 24 | number & 0xff_ffff
}

/// A word of a letter that has not been sent: what a CPU of the other space must not read.
const fn secret(space: usize) -> u32 {
    1 << 31 | space as u32
}

/// A CPU's program.
struct Program {
    run: &'static Run,
    cpu: Cpu,
    me: usize,
    /// The space that the CPU runs, and the one that it writes letters in.
    space: usize,
    home: usize,
    random: u32,
    /// What it has stored last to each page of the segment.
    stored: [u32; PAGED],
    count: u32,
    /// A page of which it has sent a duplicate, and the letter that is there.
    kept: Option<(usize, u32)>,
}

/// Takes part in a run, on CPU `me`.
pub(super) fn take_part(run: &'static Run, me: usize) {
    let home = me % SPACES;
    let mut cpu = match Cpu::new(run, me) {
        Ok(cpu) => cpu,
        Err(why) => return wrong(format_args!("CPU {me}: {why}")),
    };
    cpu.switch(SwitchKind::In, home);
    let random = 0x9e37_79b9 ^ (me as u32 + 1).wrapping_mul(0x85eb_ca6b);
    let mut program =
        Program { run, cpu, me, space: home, home, random, stored: [0; PAGED], count: 0, kept: None };
    while !run.is_over() {
        program.turn();
    }
    // Everything once more, wherever it is by now.
    (0..PAGED).for_each(|page| program.check(page));
    run.finished.fetch_add(1, Ordering::SeqCst);
    program.wait(|_| run.finished.load(Ordering::SeqCst) == run.cpus && run.vm.lock().due == 0);
    program.cpu.switch(SwitchKind::Offline, program.space);
    (0..SPACES).for_each(|space| program.cpu.drain(space));
    if tlb::duplicates() > 0 {
        wrong(format_args!("two entries of CPU {me}'s TLB match one address"));
    }
    // What is left is of no space that lives.
    tlb::forget_all(|_| true);
}

impl Program {
    /// Returns a number below `end` (George Marsaglia's xorshift).
    fn below(&mut self, end: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        (self.random >> 3) as usize % end
    }

    /// Calls the kernel with what it knows of this CPU's letters.
    fn talk<R>(&self, f: impl FnOnce(&mut Talk) -> R) -> R {
        f(&mut self.run.vm.lock().talks[self.me / 2])
    }

    /// Does what is to be done in the background: operations that have not been started, and a page that is to be written.
    fn serve(&mut self) {
        self.cpu.start();
        let laundry = self.run.vm.lock().launder();
        if let Some((frame, page)) = laundry {
            vm::write(page, frame);
            let written = self.below(WRITES) > 0;
            self.run.vm.lock().laundered(frame, page, written);
        }
    }

    /// Waits until `is_so`.
    fn wait(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        while !is_so(self) {
            self.serve();
            time::pause();
            self.cpu.poll();
        }
    }

    /// Waits, but no longer than the run. Tells whether `is_so`.
    fn try_wait(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) -> bool {
        let mut yes = false;
        self.wait(|program| {
            yes = is_so(program);
            yes || program.run.is_over()
        });
        yes
    }

    /// One thing or another, and what is to be done in the background.
    fn turn(&mut self) {
        time::begin_slice();
        match self.below(16) {
            0..8 => {
                let page = self.below(PAGED);
                if self.below(2) == 0 { self.check(page) } else { self.write(page) }
            }
            8..11 if self.space == self.home => _ = self.correspond(),
            11..15 => self.intrude(),
            // To the other space, or out and in.
            _ => {
                let to = self.below(SPACES);
                let from = core::mem::replace(&mut self.space, to);
                self.cpu.switch(SwitchKind::Out, from);
                self.cpu.switch(SwitchKind::In, to);
            }
        }
        self.serve();
    }

    /// Loads a word of the segment, or stores one.
    fn touch(&mut self, page: usize, word: usize, store: Option<u32>) -> u32 {
        let (run, space, at) = (self.run, self.space, address(page) + 4 * word);
        add(&run.counts.touches, 1);
        let mut loaded = 0;
        self.wait(|program| {
            loop {
                match store {
                    Some(value) if program.cpu.store(space, at, value) => return true,
                    None if let Some(value) = program.cpu.load(space, at) => {
                        loaded = value;
                        return true;
                    }
                    _ => {}
                }
                add(&run.counts.faults, 1);
                let fault = run.vm.lock().fault(page);
                program.cpu.start();
                match fault {
                    // What TLB-first is changing is not loaded before it has.
                    Fault::Again if is_changing(run, space, page) => return false,
                    Fault::Again => {}
                    Fault::Wait => return false,
                    Fault::Read(frame) => {
                        vm::read(page, frame);
                        run.vm.lock().read(page, frame);
                    }
                }
            }
        });
        loaded
    }

    /// Looks at this CPU's words of a page.
    fn check(&mut self, page: usize) {
        for place in PLACES {
            let found = self.touch(page, CPUS * place + self.me, None);
            if found != self.stored[page] {
                wrong(format_args!(
                    "page {page} holds {found:x}, and CPU {} has stored {:x}",
                    self.me, self.stored[page]
                ));
            }
        }
    }

    /// Stores to them.
    fn write(&mut self, page: usize) {
        self.check(page);
        self.count += 1;
        let word = mark(page, self.me, self.count);
        for place in PLACES {
            self.touch(page, CPUS * place + self.me, Some(word));
        }
        self.stored[page] = word;
    }

    /// Uses the pages of the region, mapped or not: loads what is there, and stores.
    fn intrude(&mut self) {
        let space = self.space;
        for page in 0..MAILED {
            if self.below(8) == 0 {
                let access = if self.below(2) == 0 { Access::Read } else { Access::Write };
                let mut vm = self.run.vm.lock();
                match vm.region.mapin(space, page, access) {
                    Err(IpcError::Denied) => {}
                    asked => _ = vm.act(asked),
                }
            }
            let at = address(PAGED + page);
            if self.cpu.load(space, at) == Some(secret(1 - space)) {
                wrong(format_args!("space {space} reads what was not sent"));
            }
            self.count += 1;
            self.cpu.store(space, at + 4 * (INTRUDERS + space), self.count);
        }
    }

    /// Loads a word of a page that this CPU's space owns.
    fn read(&mut self, page: usize, word: usize) -> Option<u32> {
        let (run, home, at) = (self.run, self.home, address(PAGED + page) + 4 * word);
        let mut found = None;
        self.try_wait(|program| {
            loop {
                found = program.cpu.load(home, at);
                if found.is_some() || !run.vm.lock().mapin(home, page, Access::Read) {
                    return found.is_some();
                }
            }
        });
        found
    }

    /// Stores the words of a letter to a page that this CPU's space owns alone.
    fn put(&mut self, page: usize, value: u32) -> Option<()> {
        let (run, home, at) = (self.run, self.home, address(PAGED + page));
        let mut store = |word: usize| {
            self.try_wait(|program| {
                loop {
                    if program.cpu.store(home, at + 4 * word, value) {
                        return true;
                    }
                    if !run.vm.lock().mapin(home, page, Access::Write) {
                        return false;
                    }
                }
            })
        };
        (0..LETTER).all(&mut store).then_some(())
    }

    /// Looks whether the words of a letter are what they should be.
    fn compare(&mut self, page: usize, expected: u32) -> Option<()> {
        for word in 0..LETTER {
            let found = self.read(page, word)?;
            if found != expected {
                wrong(format_args!("a letter has {found:x}, and not {expected:x}"));
            }
        }
        Some(())
    }

    /// Receives a letter and writes the next one, if it is this CPU's turn. `None` if the run is over before.
    fn correspond(&mut self) -> Option<()> {
        if (self.me ^ 1) >= self.run.cpus {
            return Some(());
        }
        let number = self.talk(|talk| talk.number);
        if number as usize % SPACES != self.home {
            // Now and then it says beforehand what it will want of the next letter.
            if self.below(8) == 0 {
                let receive = self.wishes();
                self.talk(|talk| {
                    if talk.passing.receive(receive) {
                        talk.asked = receive;
                    }
                });
            }
            return if self.below(2) == 0 { self.release() } else { Some(()) };
        }
        self.release()?;
        let trusts = number > 0 && self.receive(number - 1)?;
        let (run, home) = (self.run, self.home);
        let mut page = self.talk(|talk| talk.page);
        let intruded = self.read(page, INTRUDERS + 1 - home)?;
        // A copy, if the other one has kept its duplicate.
        let writable = self.try_wait(|_| {
            let mut vm = run.vm.lock();
            let asked = vm.region.make_writable(home, page);
            match asked {
                Err(IpcError::NoPage) => return false,
                Ok(LowAction::Copy { copy, .. }) => page = copy,
                _ => {}
            }
            vm.act(asked)
        });
        if !writable {
            return None;
        }
        self.put(page, if trusts { letter(self.me / 2, number) } else { secret(home) })?;
        for _ in 0..8 {
            self.intrude();
            self.serve();
        }
        // No other CPU stores to what has been received of a sender that is not trusted.
        if !trusts && self.read(page, INTRUDERS + 1 - home)? != intruded {
            wrong(format_args!("a page of space {home} was written by the other one"));
        }
        self.put(page, letter(self.me / 2, number))?;
        self.send(page, number);
        Some(())
    }

    /// Gives up the page of a duplicate: its letter is still there.
    fn release(&mut self) -> Option<()> {
        if let Some((page, number)) = self.kept {
            self.compare(page, letter(self.me / 2, number))?;
            self.kept = None;
            let mut vm = self.run.vm.lock();
            let asked = vm.region.release_ownership(self.home, page);
            vm.act(asked);
        }
        Some(())
    }

    /// What a receiver says.
    fn wishes(&mut self) -> Receive {
        let immediate_use = [Access::None, Access::Read, Access::Write][self.below(3)];
        Receive { trust: self.below(2) == 0, immediate_use }
    }

    /// Receives a letter, and tells whether it trusts the sender.
    fn receive(&mut self, number: u32) -> Option<bool> {
        let (run, home, wishes) = (self.run, self.home, self.wishes());
        let (page, asked) = self.talk(|talk| {
            if talk.passing.receive(wishes) {
                talk.asked = wishes;
            }
            (talk.page, talk.asked)
        });
        while let Some(step) = self.talk(|talk| talk.passing.step()) {
            let done = match step {
                MessageStep::FinishTransfer => self.try_wait(|_| {
                    let mut vm = run.vm.lock();
                    while let Some(space) = vm.region.unfinished_in(page) {
                        let asked = vm.region.finish_transfer(space, page);
                        if !vm.act(asked) {
                            return false;
                        }
                    }
                    true
                }),
                MessageStep::Mapin(access) => self.try_wait(|_| {
                    let mut vm = run.vm.lock();
                    let asked = vm.region.mapin(home, page, access);
                    // A duplicate has more than one owner.
                    asked == Err(IpcError::Denied) || vm.act(asked)
                }),
                other => {
                    wrong(format_args!("a letter is received by {other:?}"));
                    true
                }
            };
            if !done {
                return None;
            }
        }
        self.talk(|talk| talk.passing = Passing::new());
        self.compare(page, letter(self.me / 2, number))?;
        add(&run.counts.letters, 1);
        Some(asked.trust)
    }

    /// Sends a letter.
    fn send(&mut self, page: usize, number: u32) {
        let send = Send { duplicate: self.below(2) == 0, trust_hint: self.below(2) == 0 };
        let (home, nth) = (self.home, self.me / 2);
        let mut vm = self.run.vm.lock();
        if !vm.talks[nth].passing.send(send) {
            wrong(format_args!("letter {number} has been sent"));
        }
        // What comes behind the transfer is the receiver's to do, even if it has asked before.
        let mut sent = false;
        while !sent && let Some(step) = vm.talks[nth].passing.step() {
            let asked = match step {
                MessageStep::Duplicate { ownership_only } => vm.region.duplicate(home, page, ownership_only),
                MessageStep::StartTransfer { ownership_only } => {
                    sent = true;
                    vm.region.start_transfer(home, 1 - home, page, ownership_only)
                }
                other => return wrong(format_args!("a letter is sent by {other:?}")),
            };
            vm.act(asked);
        }
        vm.talks[nth].page = page;
        vm.talks[nth].number = number + 1;
        self.kept = send.duplicate.then_some((page, number));
    }
}
