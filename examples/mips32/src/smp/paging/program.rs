//! What each CPU does in a run.
//!
//! ```text
//!   a page of the segment    word 4 i + CPU, i = 0 ... 255: four of them, each with what the CPU has stored last
//!   a page of the region     words 0 ... 7: a letter, the same word eight times
//!                            words 16, 17: what the CPUs of space 0 and 1 store whenever their TLB lets them
//! ```

use core::sync::atomic::Ordering;

use tlbkit_dash::ipc::{Access, IpcError, LowAction, MessageStep, Passing, Receive, Send};
use tlbkit_shootdown::SwitchKind;

use super::engine::{self, Engine, SEATS};
use super::vm::{self, Fault, Talk, Vm};
use super::{MAILED, PAGED, Paging, SPACES, STORE, address, wrong};
use crate::arch::tlb;
use crate::smp::CPUS;
use crate::smp::masked::{disable, enable, masked};
use crate::smp::random::Random;

/// Where a CPU's words of a page of the segment are: the first, the last, and two between.
const PLACES: [usize; 4] = [0, 63, 127, 255];
/// The words of a letter.
const LETTER: usize = 8;
/// Where the CPUs of a space intrude.
const INTRUDERS: usize = 16;

/// One in so many writes to the backing store fails.
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
    run: &'static Paging,
    me: usize,
    /// The space that the CPU runs, and the one that it writes letters in.
    space: usize,
    home: usize,
    random: Random,
    /// What it has stored last to each page of the segment.
    stored: [u32; PAGED],
    count: u32,
    /// A page of which it has sent a duplicate, and the letter that is there.
    kept: Option<(usize, u32)>,
}

/// Takes part in a run, on CPU `me`. Interrupts are off before and afterwards.
pub(in crate::smp) fn take_part(run: &'static Paging, me: usize) {
    let home = me % SPACES;
    masked(|masked| {
        match Engine::new(run, me) {
            Ok(engine) => SEATS.put(masked, Some(engine)),
            Err(why) => wrong(format_args!("CPU {me}: {why}")),
        }
        SEATS.with(masked, |engine| engine.switch(SwitchKind::In, home));
    });
    enable();
    let random = Random::of(me);
    let mut program =
        Program { run, me, space: home, home, random, stored: [0; PAGED], count: 0, kept: None };
    while !run.is_over() {
        program.turn();
    }
    // Everything once more, wherever it is by now.
    (0..PAGED).for_each(|page| program.check(page));
    run.finished.fetch_add(1, Ordering::SeqCst);
    run.changed(me);
    let others = || run.finished.load(Ordering::SeqCst) < run.cpus;
    program.wait(|program| !others() && program.with(|vm| vm.due == 0));
    // Wakes the CPUs that rest until nothing is due.
    run.changed(me);
    masked(|masked| {
        SEATS.with(masked, |engine| engine.switch(SwitchKind::Offline, program.space));
        if tlb::duplicates() > 0 {
            wrong(format_args!("two entries of CPU {me}'s TLB match one address"));
        }
        SEATS.put(masked, None);
    });
    disable();
    // What is left is of no space that lives.
    tlb::forget_all(|_| true);
}

impl Program {
    /// Calls the kernel.
    fn with<R>(&self, f: impl FnOnce(&mut Vm) -> R) -> R {
        masked(|masked| self.run.vm.with(masked, f))
    }

    /// Calls the kernel with what it knows of this CPU's letters.
    fn talk<R>(&self, f: impl FnOnce(&mut Talk) -> R) -> R {
        self.with(|vm| f(&mut vm.talks[self.me / 2]))
    }

    /// Does what is to be done in the background: operations that have not been started, and a page that is to be
    /// written.
    fn serve(&mut self) {
        masked(|masked| SEATS.with(masked, |engine| engine.start(masked)));
        if let Some((frame, page)) = self.with(Vm::launder) {
            STORE[page].copy_from(vm::memory(frame));
            let written = self.random.below(WRITES) > 0;
            self.with(|vm| vm.laundered(frame, page, written));
            self.run.changed(self.me);
        }
    }

    /// Waits until `is_so`, which changes only where [`Paging::changed`] says so.
    fn wait(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        loop {
            let epoch = self.run.epoch.load(Ordering::SeqCst);
            if is_so(self) {
                return;
            }
            self.serve();
            masked(|masked| SEATS.with(masked, |engine| engine.rest(epoch)));
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
        match self.random.below(16) {
            0..8 => {
                let page = self.random.below(PAGED);
                if self.random.below(2) == 0 { self.check(page) } else { self.write(page) }
            }
            8..11 if self.space == self.home => _ = self.correspond(),
            11..15 => self.intrude(),
            // To the other space, or out and in.
            _ => {
                let to = self.random.below(SPACES);
                let from = core::mem::replace(&mut self.space, to);
                masked(|masked| {
                    SEATS.with(masked, |engine| {
                        engine.switch(SwitchKind::Out, from);
                        engine.switch(SwitchKind::In, to);
                    });
                });
            }
        }
        self.serve();
    }

    /// Loads a word of the segment, or stores one.
    fn touch(&mut self, page: usize, word: usize, store: Option<u32>) -> u32 {
        let (run, space, at) = (self.run, self.space, address(page) + 4 * word);
        run.counts.touches.fetch_add(1, Ordering::Relaxed);
        let mut loaded = 0;
        self.wait(|program| {
            loop {
                match store {
                    Some(value) if engine::store(run, space, at, value) => return true,
                    None if let Some(value) = engine::load(run, space, at) => {
                        loaded = value;
                        return true;
                    }
                    _ => {}
                }
                run.counts.faults.fetch_add(1, Ordering::Relaxed);
                let fault = program.with(|vm| vm.fault(page));
                masked(|masked| SEATS.with(masked, |engine| engine.start(masked)));
                match fault {
                    // What TLB-first is changing is not loaded before it has.
                    Fault::Again if engine::is_changing(run, space, page) => return false,
                    Fault::Again => {}
                    Fault::Wait => return false,
                    Fault::Read(frame) => {
                        vm::memory(frame).copy_from(&STORE[page]);
                        program.with(|vm| vm.read(page, frame));
                        run.changed(program.me);
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
                self.run.counts.lost.fetch_add(1, Ordering::Relaxed);
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
            if self.random.below(8) == 0 {
                let access = if self.random.below(2) == 0 { Access::Read } else { Access::Write };
                self.with(|vm| match vm.region.mapin(space, page, access) {
                    Err(IpcError::Denied) => {}
                    asked => _ = vm.act(asked),
                });
            }
            let at = address(PAGED + page);
            if engine::load(self.run, space, at) == Some(secret(1 - space)) {
                self.run.counts.leaks.fetch_add(1, Ordering::Relaxed);
            }
            self.count += 1;
            engine::store(self.run, space, at + 4 * (INTRUDERS + space), self.count);
        }
    }

    /// Loads a word of a page that this CPU's space owns.
    fn read(&mut self, page: usize, word: usize) -> Option<u32> {
        let (run, home, at) = (self.run, self.home, address(PAGED + page) + 4 * word);
        let mut found = None;
        self.try_wait(|program| {
            loop {
                found = engine::load(run, home, at);
                if found.is_some() || !program.with(|vm| vm.mapin(home, page, Access::Read)) {
                    return found.is_some();
                }
            }
        });
        found
    }

    /// Stores the words of a letter to a page that this CPU's space owns alone.
    fn put(&mut self, page: usize, value: u32) -> Option<()> {
        let (run, home, at) = (self.run, self.home, address(PAGED + page));
        (0..LETTER)
            .all(|word| {
                self.try_wait(|program| {
                    loop {
                        if engine::store(run, home, at + 4 * word, value) {
                            return true;
                        }
                        if !program.with(|vm| vm.mapin(home, page, Access::Write)) {
                            return false;
                        }
                    }
                })
            })
            .then_some(())
    }

    /// Counts the words of a letter that are not what they should be.
    fn compare(&mut self, page: usize, expected: u32) -> Option<()> {
        for word in 0..LETTER {
            if self.read(page, word)? != expected {
                self.run.counts.leaks.fetch_add(1, Ordering::Relaxed);
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
            if self.random.below(8) == 0 {
                let receive = self.wishes();
                self.talk(|talk| {
                    if talk.passing.receive(receive) {
                        talk.asked = receive;
                    }
                });
            }
            return if self.random.below(2) == 0 { self.release() } else { Some(()) };
        }
        self.release()?;
        let trusts = number > 0 && self.receive(number - 1)?;
        let home = self.home;
        let mut page = self.talk(|talk| talk.page);
        let intruded = self.read(page, INTRUDERS + 1 - home)?;
        // A copy, if the other one has kept its duplicate.
        let writable = self.try_wait(|program| {
            program.with(|vm| {
                let asked = vm.region.make_writable(home, page);
                match asked {
                    Err(IpcError::NoPage) => return false,
                    Ok(LowAction::Copy { copy, .. }) => page = copy,
                    _ => {}
                }
                vm.act(asked)
            })
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
            self.run.counts.leaks.fetch_add(1, Ordering::Relaxed);
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
            self.with(|vm| {
                let asked = vm.region.release_ownership(self.home, page);
                vm.act(asked)
            });
            self.run.changed(self.me);
        }
        Some(())
    }

    /// What a receiver says.
    fn wishes(&mut self) -> Receive {
        let immediate_use = [Access::None, Access::Read, Access::Write][self.random.below(3)];
        Receive { trust: self.random.below(2) == 0, immediate_use }
    }

    /// Receives a letter, and tells whether it trusts the sender.
    fn receive(&mut self, number: u32) -> Option<bool> {
        let (home, wishes) = (self.home, self.wishes());
        let (page, asked) = self.talk(|talk| {
            if talk.passing.receive(wishes) {
                talk.asked = wishes;
            }
            (talk.page, talk.asked)
        });
        while let Some(step) = self.talk(|talk| talk.passing.step()) {
            let done = match step {
                MessageStep::FinishTransfer => self.try_wait(|program| {
                    program.with(|vm| {
                        while let Some(space) = vm.region.unfinished_in(page) {
                            let asked = vm.region.finish_transfer(space, page);
                            if !vm.act(asked) {
                                return false;
                            }
                        }
                        true
                    })
                }),
                MessageStep::Mapin(access) => self.try_wait(|program| {
                    program.with(|vm| {
                        let asked = vm.region.mapin(home, page, access);
                        // A duplicate has more than one owner.
                        asked == Err(IpcError::Denied) || vm.act(asked)
                    })
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
        self.run.counts.letters.fetch_add(1, Ordering::Relaxed);
        Some(asked.trust)
    }

    /// Sends a letter.
    fn send(&mut self, page: usize, number: u32) {
        let send = Send { duplicate: self.random.below(2) == 0, trust_hint: self.random.below(2) == 0 };
        let (home, nth) = (self.home, self.me / 2);
        self.with(|vm| {
            if !vm.talks[nth].passing.send(send) {
                wrong(format_args!("letter {number} has been sent"));
            }
            // What comes behind the transfer is the receiver's to do, even if it has asked before.
            let mut sent = false;
            while !sent && let Some(step) = vm.talks[nth].passing.step() {
                let asked = match step {
                    MessageStep::Duplicate { ownership_only } => {
                        vm.region.duplicate(home, page, ownership_only)
                    }
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
        });
        self.kept = send.duplicate.then_some((page, number));
        self.run.changed(self.me);
    }
}
