//! What the bytes of a step ask for, done to an address space and to its model.

use std::ops::ControlFlow;

use tlbkit::pagetable::Geometry as _;
use tlbkit::pagetable::format::{Format as _, check_change};
use tlbkit::{
    Access, AddressSpace, Attr, Change, Edit, Entry, Error, Fault, Kernel as _, Mark, PageSize, PagesOf,
    Reason, Run, Stopped, SupervisorPages, VirtAddr,
};

use super::kernel::{Arch, Held, PLACES, Ram};
use super::model::{ACCESS, Model, Page, fits, halves, kept, large, spots};
use super::{Process, SPACES, STEP, Space, Waiting, World};

const RU: Attr = Attr::READ.union(Attr::USER);
const RWU: Attr = RU.union(Attr::WRITE);

/// How many pages a range has.
const COUNTS: [usize; 8] = [1, 1, 1, 1, 2, 3, 5, if cfg!(miri) { 7 } else { 0x203 }];

/// The last page that an address reaches.
const fn top<A: Arch>() -> usize {
    usize::MAX >> A::SHIFT
}

/// The attributes that a page is mapped with.
fn rights(byte: u8) -> Attr {
    [RWU, RWU, RU, RU | Attr::EXEC, RWU | Attr::DIRTY, RWU | Attr::EXEC][usize::from(byte) % 6]
}

/// Returns a page that is mapped or marked, or one near the end of a node or of a half.
fn some_page<A: Arch>(model: &Model, spot: u8) -> usize {
    let (spot, known) = (usize::from(spot), model.leaves.len() + model.marks.len());
    if spot >= 96 && known > 0 {
        let at = (spot - 96) % known;
        let mut pages = model.leaves.iter().map(|(&first, page)| first + spot / 7 % page.pages);
        let marked = |at| model.marks.keys().nth(at).copied();
        return pages.nth(at).or_else(|| marked(at - model.leaves.len())).expect("there are as many");
    }
    let spots = spots::<A>();
    (spots[spot % spots.len()] + spot / spots.len() % 3).min(top::<A>())
}

/// Returns a change that the machine's entries can express.
fn some_change<A: Arch>(byte: u8) -> Change {
    let all = [
        Change::clear(Attr::WRITE),
        Change::set(Attr::WRITE),
        Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE },
        Change::clear(ACCESS),
        Change::set(Attr::READ),
        Change::clear(Attr::EXEC),
        Change::clear(Attr::DIRTY),
        Change { clear: ACCESS, set: RWU },
    ];
    let change = all[usize::from(byte) % all.len()];
    if check_change::<A::Format>(change).is_err() { Change::clear(Attr::WRITE) } else { change }
}

/// What a step is about: a page, a range that begins there, and a byte more.
#[derive(Clone, Copy, Debug)]
struct At {
    page: usize,
    last: usize,
    rights: u8,
    twist: u8,
    /// Whether there may be too few frames.
    scarce: bool,
}

impl At {
    fn len(self) -> usize {
        self.last - self.page + 1
    }

    fn range<A: Arch>(self) -> PagesOf<Ram<A>> {
        A::pages(self.page, self.last)
    }

    /// The block of the second size that the page is in.
    fn block<A: Arch>(self) -> (usize, usize) {
        let pages = large::<A>();
        let first = self.page & !(pages - 1);
        (first, first + (pages - 1))
    }

    /// Checks that what can be done is done, unless there are too few frames.
    fn expect<R: std::fmt::Debug>(self, done: &Result<R, Error>, possible: bool) -> bool {
        match done {
            Ok(_) => assert!(possible, "{self:x?}: {done:?} and cannot be"),
            Err(Error::NoMemory { .. }) => assert!(self.scarce || !possible, "{self:x?}: there is memory"),
            Err(_) => assert!(!possible, "{self:x?}: {done:?}"),
        }
        done.is_ok()
    }
}

impl<A: Arch, const CPUS: usize> World<A, CPUS> {
    pub(super) fn take(&mut self, bytes: [u8; STEP], misses: bool) {
        let [kind, which, spot, count, rights, twist, ..] = bytes;
        let kernel = self.kernel();
        let (cpu, scarce) = {
            let state = kernel.state();
            (state.cpu, state.allowance != usize::MAX)
        };
        let mut at = At { page: 0, last: 0, rights, twist, scarce };
        let living: Vec<usize> =
            (0..self.processes.len()).filter(|&at| self.processes[at].handle.is_some()).collect();
        let chosen = living.get(usize::from(which) % living.len().max(1)).copied();
        let Some(chosen) = chosen else { return self.begin(at) };
        // On what the CPU at hand runs, if its TLB is to be loaded.
        let chosen = match kind % 32 {
            7..11 => self.processes.iter().position(|process| Some(process.name) == self.runs[cpu]),
            _ => None,
        }
        .unwrap_or(chosen);
        let name = self.processes[chosen].name;
        let waiting = self.waiting.iter().filter(|waiting| (64..96).contains(&spot) && waiting.name == name);
        let waiting: Vec<usize> = waiting.map(|waiting| waiting.first).collect();
        at.page = match waiting.len() {
            0 => some_page::<A>(&self.processes[chosen].model, spot),
            len => waiting[usize::from(spot) % len],
        };
        at.last = at.page.saturating_add(COUNTS[usize::from(count) % COUNTS.len()] - 1).min(top::<A>());
        let Some(space) = self.processes[chosen].handle.clone() else { return };
        match kind % 32 {
            0 if self.processes.len() < SPACES => self.begin(at),
            1 | 2 if self.processes.len() < SPACES => self.fork(at, chosen),
            3 | 4 => {
                space.activate().expect("no call is under way");
                self.runs[cpu] = Some(name);
            }
            5 => {
                self.mmu.idle().expect("no call is under way");
                self.runs[cpu] = None;
            }
            6 if twist < 64 => self.processes[chosen].handle = None,
            6 => self.flush_deferred(&space, at, name),
            16..19 if twist >= 160 => self.unmap_deferred(&space, at, chosen, cpu),
            7..11 => self.touch(at, chosen, cpu),
            kind => {
                let mut payload = 0;
                if kind >= 29 {
                    self.payloads += 1;
                    payload = self.payloads;
                }
                let model = &mut self.processes[chosen].model;
                match kind {
                    11..14 => map(kernel, &space, model, at),
                    14 => move_pages(&space, model, at),
                    15 => map_large(kernel, &space, model, at),
                    16..19 => unmap(&space, model, at, misses),
                    19 | 20 => protect(&space, model, at),
                    21 => resize(&space, model, at),
                    22 | 23 => replace(kernel, &space, model, at),
                    24 | 25 => fault(kernel, &space, model, at),
                    26 => batch(kernel, &space, model, at),
                    27 => copy(&space, model, at),
                    28 => step_on(&space, model, at),
                    29.. => mark(kernel, &space, model, at, payload),
                    _ => {}
                }
            }
        }
    }

    fn begin(&mut self, at: At) {
        let made = AddressSpace::new(self.mmu);
        if at.expect(&made, true) {
            self.add(made.expect("it is made"), Model::default());
        }
    }

    fn add(&mut self, handle: Space<A, CPUS>, model: Model) {
        self.names += 1;
        self.processes.push(Process { name: self.names, handle: Some(handle), model, nodes: 0 });
    }

    fn fork(&mut self, at: At, chosen: usize) {
        let process = &mut self.processes[chosen];
        let forked = process.handle.as_ref().expect("it lives").fork(SupervisorPages::LeftOut);
        let Ok(child) = forked else {
            at.expect(&forked, true);
            return;
        };
        for page in process.model.leaves.values_mut().filter(|page| page.attr.contains(Attr::WRITE)) {
            page.attr = page.attr.difference(Attr::WRITE).union(Attr::COPY_ON_WRITE);
        }
        let mut model = process.model.clone();
        for page in model.leaves.values_mut() {
            page.attr.remove(Attr::DIRTY);
            page.dirty = false;
        }
        self.add(child, model);
    }

    /// An unmap whose flush waits. The CPUs that run the address space have just loaded the pages.
    fn unmap_deferred(&mut self, space: &Space<A, CPUS>, at: At, chosen: usize, cpu: usize) {
        let (kernel, name) = (self.kernel(), self.processes[chosen].name);
        let running: Vec<usize> = (0..CPUS).filter(|&of| self.runs[of] == Some(name)).collect();
        running.iter().for_each(|&of| self.touch(at, chosen, of));
        let (taken, (runs, nodes)) = (kernel.taken(), kernel.deferred.waiting());
        let done = space.unmap_deferred(at.range::<A>());
        if !at.expect(&done, fits::<A>(at.page, at.last)) {
            return;
        }
        let model = &mut self.processes[chosen].model;
        model.split(at.page, at.last);
        let gone: Vec<_> =
            model.leaves.range(at.page..=at.last).map(|(&first, &page)| (first, page)).collect();
        model.leaves.retain(|page, _| !(at.page..=at.last).contains(page));
        model.marks.retain(|page, _| !(at.page..=at.last).contains(page));
        assert_eq!(done, Ok(gone.iter().map(|(_, page)| page.pages).sum()));
        let defers = CPUS > 1 && at.len() <= 512;
        let is_full = defers && (PLACES - runs < at.len().min(PLACES) || nodes > PLACES);
        if is_full {
            self.flushed();
        }
        let (before, now) = (self.waiting_runs, kernel.deferred.waiting().0);
        if now == before {
            assert!(
                !defers || gone.is_empty() || running.iter().all(|&of| of == cpu),
                "{at:x?} is not deferred"
            );
            return;
        }
        let in_row = gone.windows(2).filter(|of| of[0].1.frame + of[0].1.pages == of[1].1.frame).count();
        assert_eq!(now, before + gone.len() - in_row, "{at:x?}: a place for each run");
        if !is_full {
            assert!(kernel.state().released.is_empty() && kernel.taken() >= taken, "{at:x?} is given out");
        }
        self.waiting_runs = now;
        self.waiting.extend(gone.iter().map(|&(first, page)| Waiting { name, first, page, cpu }));
    }

    /// The flush of all that waits, or of some pages.
    fn flush_deferred(&self, space: &Space<A, CPUS>, at: At, name: usize) {
        let deferred = &self.kernel().deferred;
        let concerns = |of: &Waiting| of.name == name && of.first <= at.last && of.last() >= at.page;
        let (must, done) = if at.twist < 128 {
            (true, self.mmu.flush_deferred())
        } else {
            (self.waiting.iter().any(concerns), space.flush_deferred(at.range::<A>()))
        };
        let all = self.waiting.iter().map(|waiting| waiting.page.pages).sum();
        assert!(done == Ok(all) || !must && done == Ok(0), "{done:?} of {all}");
        assert!(!must || deferred.waiting() == (0, 0), "{deferred:?}");
    }

    /// Loads the TLB of this CPU, if it runs the address space, and looks pages up.
    fn touch(&self, at: At, chosen: usize, cpu: usize) {
        let process = &self.processes[chosen];
        let Some(space) = &process.handle else { return };
        for page in at.page..=at.last.min(at.page + 7) {
            let found = space.lookup(A::address(page));
            let wanted = process.model.find(page).filter(|_| fits::<A>(page, page));
            assert_eq!(found.is_some(), wanted.is_some(), "page {page:#x}");
            let (Some(leaf), Some((first, known))) = (found, wanted) else { continue };
            let frame = A::number(leaf.frame) + (page - first);
            assert_eq!(frame, known.frame + (page - first));
            assert_eq!(space.translate(A::address(page)).map(|at| at.get()), Some(frame << A::SHIFT));
            if leaf.attr.contains(Attr::READ) && self.runs[cpu] == Some(process.name) {
                let mut state = self.kernel().state();
                let tag = A::asid(state.tlbs[cpu].root.expect("the CPU runs it"));
                let held = Held { frame, writable: leaf.attr.contains(Attr::WRITE) };
                state.tlbs[cpu].held.insert((tag, page), held);
            }
        }
    }
}

/// Maps a range to frames in a row, or to frames one by one.
fn map<A: Arch, const CPUS: usize>(kernel: &Ram<A>, space: &Space<A, CPUS>, model: &mut Model, mut at: At) {
    // As many as one of the second size could replace, sometimes.
    let block = at.len() > 8 && at.twist >= 128;
    if block {
        (at.page, at.last) = at.block::<A>();
    }
    let (len, attr) = (at.len(), rights(at.rights));
    if (64..96).contains(&at.twist) && len < 8 {
        return map_with(kernel, space, model, at);
    }
    let frame = kernel.fresh(len, if block { len } else { 1 });
    let possible = fits::<A>(at.page, at.last) && model.is_free(at.page, at.last);
    let done = if at.twist < 64 && len < 8 {
        // One frame too few, sometimes.
        let given = len - usize::from(at.twist < 8);
        let done = space.map_each(at.range::<A>(), (frame..frame + given).map(A::frame), attr);
        at.expect(&done, possible && given == len).then_some(())
    } else {
        let done = space.map(at.range::<A>(), A::frame(frame), attr);
        at.expect(&done, possible).then_some(())
    };
    if done.is_none() {
        return kernel.put_back(frame, len);
    }
    for page in 0..len {
        model.leaves.insert(at.page + page, Page::new::<A>(frame + page, 1, attr));
    }
}

/// Maps a range to frames that are taken as they are needed: one too few, sometimes.
fn map_with<A: Arch, const CPUS: usize>(kernel: &Ram<A>, space: &Space<A, CPUS>, model: &mut Model, at: At) {
    let (attr, is_short) = (rights(at.rights), at.twist < 72);
    let mut taken = Vec::new();
    let done = space.map_with(at.range::<A>(), attr, |page| {
        assert_eq!(page, A::address(at.page + taken.len()), "in order");
        if is_short && taken.len() + 1 == at.len() {
            return Err(Error::NoRoom);
        }
        taken.push(kernel.fresh(1, 1));
        Ok(A::frame(taken[taken.len() - 1]))
    });
    let possible = fits::<A>(at.page, at.last) && model.is_free(at.page, at.last) && !is_short;
    if at.expect(&done, possible) {
        for (page, frame) in taken.into_iter().enumerate() {
            model.leaves.insert(at.page + page, Page::new::<A>(frame, 1, attr));
        }
    } else {
        let state = kernel.state();
        assert!(taken.iter().all(|frame| !state.mapped.contains_key(frame)), "they are released");
    }
}

/// Maps a page of the second size.
fn map_large<A: Arch, const CPUS: usize>(kernel: &Ram<A>, space: &Space<A, CPUS>, model: &mut Model, at: At) {
    let (first, last) = at.block::<A>();
    let (count, attr) = (last - first + 1, rights(at.rights));
    // Not one that a page of the third size would fit.
    let frame = kernel.fresh(2 * count, 2 * count);
    kernel.put_back(frame, count);
    let frame = frame + count;
    let possible = fits::<A>(first, last) && model.is_free(first, last);
    let done = if at.twist < 128 {
        let size = PageSize::from_shift(A::SHIFT + count.ilog2()).expect("a size");
        space.edit(|edit| edit.map_sized(A::pages(first, last), A::frame(frame), size, attr))
    } else {
        space.map_linear(A::pages(first, last), A::frame(frame), attr)
    };
    if !at.expect(&done, possible) {
        return kernel.put_back(frame, count);
    }
    model.leaves.insert(first, Page::new::<A>(frame, count, attr));
}

fn unmap<A: Arch, const CPUS: usize>(space: &Space<A, CPUS>, model: &mut Model, at: At, misses: bool) {
    let possible = fits::<A>(at.page, at.last);
    let (done, possible) = if at.twist < 32 {
        (space.unmap_whole(at.range::<A>()), possible && model.hole(at.page, at.last).is_none())
    } else {
        (space.unmap(at.range::<A>()), possible)
    };
    if at.expect(&done, possible) && !misses {
        model.split(at.page, at.last);
        let before: usize = model.leaves.values().map(|page| page.pages).sum();
        model.leaves.retain(|page, _| !(at.page..=at.last).contains(page));
        model.marks.retain(|page, _| !(at.page..=at.last).contains(page));
        let after: usize = model.leaves.values().map(|page| page.pages).sum();
        assert_eq!(done, Ok(before - after));
    }
}

/// Moves a range to a place that may be taken.
fn move_pages<A: Arch, const CPUS: usize>(space: &Space<A, CPUS>, model: &mut Model, at: At) {
    let to = some_page::<A>(model, at.rights);
    let last = to.saturating_add(at.len() - 1);
    let apart = last < at.page || to > at.last;
    let fits = fits::<A>(at.page, at.last) && fits::<A>(to, last) && last - to == at.last - at.page;
    let done = space.move_pages(at.range::<A>(), A::address(to));
    if !at.expect(&done, fits && apart && model.is_free(to, last)) {
        return;
    }
    model.split(at.page, at.last);
    let leaves: Vec<_> = model.leaves.range(at.page..=at.last).map(|(&first, &leaf)| (first, leaf)).collect();
    for &(first, leaf) in &leaves {
        model.leaves.remove(&first);
        let new = to + (first - at.page);
        let each = if new.is_multiple_of(leaf.pages) { leaf.pages } else { 1 };
        for part in (0..leaf.pages).step_by(each) {
            model.leaves.insert(new + part, Page { frame: leaf.frame + part, pages: each, ..leaf });
        }
    }
    let marks: Vec<_> = model.marks.range(at.page..=at.last).map(|(&page, &mark)| (page, mark)).collect();
    for (page, mark) in marks {
        model.marks.remove(&page);
        model.marks.insert(to + (page - at.page), mark);
    }
    assert_eq!(done, Ok(leaves.iter().map(|(_, leaf)| leaf.pages).sum()));
}

fn protect<A: Arch, const CPUS: usize>(space: &Space<A, CPUS>, model: &mut Model, at: At) {
    let change = some_change::<A>(at.rights);
    let possible = fits::<A>(at.page, at.last);
    let (done, possible) = if at.twist < 32 {
        (space.protect_whole(at.range::<A>(), change), possible && model.hole(at.page, at.last).is_none())
    } else {
        (space.protect(at.range::<A>(), change), possible)
    };
    if at.expect(&done, possible) {
        model.split(at.page, at.last);
        model.protect::<A>(at.page, at.last, change);
        let count: usize = model.leaves.range(at.page..=at.last).map(|(_, page)| page.pages).sum();
        assert_eq!(done, Ok(count));
    }
}

/// Splits a page of the second size, or makes one of the small ones.
fn resize<A: Arch, const CPUS: usize>(space: &Space<A, CPUS>, model: &mut Model, at: At) {
    let (first, last) = at.block::<A>();
    let count = last - first + 1;
    let to = if at.twist < 128 { count } else { 1 };
    let size = PageSize::from_shift(A::SHIFT + to.ilog2()).expect("a size");
    let done = space.resize(A::pages(first, last), size);
    let whole = fits::<A>(first, last);
    let mapped: Vec<Page> = (first..=last).filter_map(|page| model.leaves.get(&page)).copied().collect();
    let all = mapped.iter().map(|page| page.pages).sum::<usize>() == count;
    if to == 1 {
        at.expect(&done, whole && all);
        if done.is_ok() && mapped.len() == 1 {
            // As if both neighbours cut it.
            model.split(first, first);
            model.split(last, last);
        }
        return;
    }
    let like = |page: &Page| page.attr.difference(Attr::DIRTY.union(Attr::ACCESSED));
    let in_row =
        |(at, page): (usize, &Page)| page.frame == mapped[0].frame + at && like(page) == like(&mapped[0]);
    let fit = all && mapped[0].frame.is_multiple_of(count) && mapped.iter().enumerate().all(in_row);
    if at.expect(&done, whole && (fit || all && mapped.len() == 1)) && mapped.len() > 1 {
        let dirty = mapped.iter().any(|page| page.dirty);
        let mut page = Page { pages: count, dirty, ..mapped[0] };
        page.attr.set(Attr::DIRTY, dirty);
        model.leaves.retain(|page, _| !(first..=last).contains(page));
        model.leaves.insert(first, page);
    }
}

fn replace<A: Arch, const CPUS: usize>(kernel: &Ram<A>, space: &Space<A, CPUS>, model: &mut Model, at: At) {
    let found = model.find(at.page);
    let is_large = at.twist < 128 && found.is_some_and(|(_, page)| page.pages > 1);
    let (count, attr) = (if is_large { large::<A>() } else { 1 }, rights(at.rights));
    let frame = kernel.fresh(count, count);
    let (to, new) = (A::address(at.page), A::frame(frame));
    let done = if is_large {
        space.replace_sized(to, new, A::Geometry::SIZES[1], attr)
    } else {
        space.replace(to, new, attr)
    };
    if !at.expect(&done, fits::<A>(at.page, at.page) && found.is_some()) {
        return kernel.put_back(frame, count);
    }
    let (first, _) = found.expect("it was replaced");
    let first = if is_large { first } else { at.page };
    if !is_large {
        model.split(first, first);
    }
    model.leaves.insert(first, Page::new::<A>(frame, count, attr));
}

/// A page fault, and what a kernel does about it.
fn fault<A: Arch, const CPUS: usize>(kernel: &Ram<A>, space: &Space<A, CPUS>, model: &mut Model, at: At) {
    let access =
        [Access::LOAD, Access::STORE, Access::STORE, Access::FETCH][usize::from(at.twist) % 4].by_user();
    let found = space.fault(A::address(at.page), access).expect("no call is under way");
    if !fits::<A>(at.page, at.page) {
        return assert_eq!(found, Fault::NotMapped);
    }
    let Some((first, page)) = model.find(at.page) else {
        let wanted = match model.marks.get(&at.page) {
            None => Fault::NotMapped,
            Some(Mark::Guard) => Fault::Guard,
            Some(&Mark::Payload(payload, _)) => Fault::Swapped(payload),
        };
        return assert_eq!(found, wanted);
    };
    let copies = page.attr.contains(Attr::COPY_ON_WRITE) && access.allowed(page.attr | Attr::WRITE);
    match found {
        Fault::Retry => {
            assert!(access.allowed(page.attr), "{page:?} does not allow {access:?}");
            let writes = access == Access::STORE.by_user();
            let page = model.leaves.get_mut(&first).expect("it is mapped");
            page.dirty |= writes;
            page.attr.set(Attr::DIRTY, page.dirty);
        }
        // The second of two in a row: the first one has set what the entry lacked.
        Fault::Refused(Reason::Unknown) => {
            assert!(access.allowed(page.attr), "{page:?} does not allow {access:?}");
            assert!(access != Access::STORE.by_user() || page.dirty, "{page:?}");
        }
        Fault::Closed(_) => assert!(!page.attr.intersects(ACCESS), "{page:?}"),
        Fault::NoRight(_) => assert!(!access.allowed(page.attr) && !copies, "{page:?} and {access:?}"),
        Fault::CopyOnWrite(leaf) => {
            assert!(copies && !access.allowed(page.attr), "{page:?} and {access:?}");
            let own = page.frame + (at.page - first);
            assert_eq!((leaf.at, A::number(leaf.frame)), (A::address(at.page), own));
            let is_sole = |frame| kernel.state().mapped[&A::number(frame)] == 1;
            let all_sole = page.pages <= 512
                && (page.frame..page.frame + page.pages).all(|frame| is_sole(A::frame(frame)));
            let sole = is_sole(A::frame(own));
            let mut new = None;
            let copy = |frame| {
                assert_eq!(A::number(frame), own);
                Ok(A::frame(*new.insert(kernel.fresh(1, 1))))
            };
            let done = space.unshare(A::address(at.page), is_sole, copy);
            if !at.expect(&done, true) {
                return assert_eq!(new, None, "it is copied when nothing can fail any more");
            }
            // The last space that has a frame keeps it.
            assert_eq!(new.is_none(), sole);
            let dirty = Attr::DIRTY.intersection(A::Format::OPTIONAL);
            let change = Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE.union(dirty) };
            if all_sole {
                return model.protect::<A>(first, first, change);
            }
            model.split(at.page, at.page);
            match new {
                None => model.protect::<A>(at.page, at.page, change),
                Some(frame) => {
                    let page = Page::new::<A>(frame, 1, change.apply(page.attr));
                    model.leaves.insert(at.page, page);
                }
            }
        }
        other => panic!("{other:?} for {page:?}"),
    }
}

/// Several changes that cost one shootdown, and a call from inside, which is refused.
fn batch<A: Arch, const CPUS: usize>(kernel: &Ram<A>, space: &Space<A, CPUS>, model: &mut Model, at: At) {
    let (first, attr) = (at.page, rights(at.rights));
    let frame = kernel.fresh(1, 1);
    let fits = fits::<A>(first, first);
    let done = space.edit(|edit: &mut Edit<'_, Ram<A>, CPUS>| {
        assert_eq!(space.unmap(at.range::<A>()), Err(Error::Nested));
        // What is gone, and mapped again at once: no CPU goes on with the old frame.
        let unmapped = edit.unmap(A::pages(first, first));
        if at.expect(&unmapped, fits) {
            model.split(first, first);
            model.leaves.remove(&first);
            model.marks.remove(&first);
        }
        let mapped = edit.map(A::pages(first, first), A::frame(frame), attr);
        if at.expect(&mapped, fits && unmapped.is_ok()) {
            model.leaves.insert(first, Page::new::<A>(frame, 1, attr));
        }
        if at.twist < 64 {
            edit.flush();
        }
        mapped
    });
    if done.is_err() {
        kernel.put_back(frame, 1);
    }
}

/// What of a range is in use, and a copy from user memory, with the faults on the way: from the end of a page on, over the next ones.
fn copy<A: Arch, const CPUS: usize>(space: &Space<A, CPUS>, model: &mut Model, at: At) {
    if fits::<A>(at.page, at.last) {
        let used = (at.page..=at.last).find(|&page| model.is_used(page)).map(A::address);
        assert_eq!(space.first_used(at.range::<A>()), Ok(used), "{at:x?}");
        let hole = model.hole(at.page, at.last).map(A::address);
        assert_eq!(space.first_hole(at.range::<A>()), Ok(hole), "{at:x?}");
    }
    let last = at.last.min(at.page + 2);
    let allowed = |page: usize| {
        fits::<A>(page, page) && model.find(page).is_some_and(|(_, page)| page.attr.contains(RU))
    };
    let count = (at.page..=last).take_while(|&page| allowed(page)).count();
    let (begin, len) = ((1 << A::SHIFT) - 0x13, ((last - at.page) << A::SHIFT) + 0x10);
    let mut bytes = vec![0xff; len];
    let done = space.copy_from_user(
        VirtAddr::new((at.page << A::SHIFT) + begin),
        &mut bytes,
        |space, at, access| Ok(space.fault(at, access)? == Fault::Retry),
    );
    let copied = (count << A::SHIFT).saturating_sub(begin).min(len);
    let stopped = Stopped { copied, error: None };
    assert_eq!(done, if copied == len { Ok(()) } else { Err(stopped) });
    for (offset, byte) in bytes.into_iter().enumerate() {
        let page = at.page + ((begin + offset) >> A::SHIFT);
        let wanted = if offset < copied {
            let (first, leaf) = model.find(page).expect("it is mapped");
            ((leaf.frame + (page - first)) as u32).to_ne_bytes()[(begin + offset) % 4]
        } else {
            0xff
        };
        assert_eq!(byte, wanted, "byte {offset} of {at:x?}");
    }
}

/// A cursor that steps, looks, and goes to what is mapped next.
fn step_on<A: Arch, const CPUS: usize>(space: &Space<A, CPUS>, model: &Model, at: At) {
    let top = halves::<A>().last().expect("a half").1;
    let walked = space.edit(|edit| {
        let mut cursor = edit.cursor(A::address(at.page))?;
        let mut page = at.page;
        for _ in 0..4 {
            let found = model.find(page);
            let look = cursor.look();
            assert_eq!(
                look.map(|leaf| A::number(leaf.frame)),
                found.map(|(_, leaf)| leaf.frame),
                "page {page:#x}"
            );
            let behind = found.map_or(page, |(first, leaf)| first + leaf.pages - 1);
            let next = model.leaves.range(behind + 1..).next().map(|(&first, _)| first);
            assert_eq!(cursor.next_mapped(A::address(top)).map(|leaf| leaf.at), next.map(A::address));
            page = next.unwrap_or(page);
            let ends = halves::<A>().iter().any(|half| half.1 == page);
            assert_eq!(cursor.step(), !ends, "page {page:#x}");
            page += usize::from(!ends);
            assert_eq!(cursor.at(), A::address(page));
        }
        Ok(())
    });
    assert_eq!(walked.is_ok(), fits::<A>(at.page, at.page), "{walked:?}");
    let mut some = model.leaves.iter();
    let visited = space.for_each(A::pages(0, top), |leaf| {
        let wanted = some.next().map(|(&first, _)| first);
        assert_eq!(Some(leaf.at.get() >> A::SHIFT), wanted);
        if at.twist.is_multiple_of(4) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(visited.is_ok());
}

/// Marks, and pages in their places.
fn mark<A: Arch, const CPUS: usize>(
    kernel: &Ram<A>,
    space: &Space<A, CPUS>,
    model: &mut Model,
    at: At,
    payload: u64,
) {
    let fits = fits::<A>(at.page, at.page);
    let found = model.find(at.page);
    let marked = model.marks.get(&at.page).copied();
    let let_go = |mark: Option<Mark>| {
        if let Some(Mark::Payload(payload, _)) = mark {
            kernel.let_go(payload);
        }
    };
    match (at.twist, found) {
        (16..128, Some((first, page))) => {
            kernel.state().payloads.insert(payload, 1);
            if !page_out(kernel, space, (first, page), at, payload) {
                if let Some(frozen) = model.leaves.get_mut(&at.page).filter(|frozen| frozen.pages == 1) {
                    // As a store of another CPU has made it.
                    frozen.attr = kept::<A>(frozen.attr.difference(Attr::COPY_ON_WRITE).union(Attr::WRITE));
                    frozen.dirty = false;
                }
                return kernel.let_go(payload);
            }
            let copies = page.attr.contains(Attr::COPY_ON_WRITE.union(Attr::READ));
            let attr = page.attr.difference(if copies { Attr::COPY_ON_WRITE } else { Attr::empty() });
            let attr = kept::<A>(attr.union(if copies { Attr::WRITE } else { Attr::empty() }));
            model.leaves.remove(&at.page);
            model.marks.insert(at.page, Mark::Payload(payload, attr));
        }
        (0..128, _) => {
            let mark = if at.twist < 16 {
                Mark::Guard
            } else {
                Mark::Payload(payload, kept::<A>(rights(at.rights)))
            };
            if let Mark::Payload(payload, _) = mark {
                kernel.state().payloads.insert(payload, 1);
            }
            let done = space.mark(A::address(at.page), mark);
            let small = found.is_none_or(|(_, page)| page.pages == 1);
            if !at.expect(&done, fits && small) {
                return let_go(Some(mark));
            }
            let was = match (found, marked) {
                (Some((_, page)), _) => {
                    let leaf = done.expect("it is marked").leaf().expect("a page was mapped there");
                    assert_eq!(A::number(leaf.frame), page.frame);
                    None
                }
                (None, marked) => {
                    assert_eq!(done, Ok(Entry::from(marked)));
                    marked
                }
            };
            let_go(was);
            model.leaves.remove(&at.page);
            model.marks.insert(at.page, mark);
        }
        (128..200, _) => {
            let frame = kernel.fresh(1, 1);
            // Now and then a late handler names what the page had before.
            let (named, attr) = match marked {
                Some(Mark::Payload(there, attr)) => (there ^ u64::from(at.twist >= 180), Some(attr)),
                _ => (payload, None),
            };
            let done = space.fill(A::address(at.page), named, A::frame(frame));
            if !at.expect(&done, fits && attr.is_some() && at.twist < 180) {
                assert!(!kernel.state().mapped.contains_key(&frame), "the frame is released");
                return;
            }
            let_go(model.marks.remove(&at.page));
            model.leaves.insert(at.page, Page::new::<A>(frame, 1, attr.expect("the mark has it")));
        }
        _ => {
            let done = space.edit(|edit| edit.unmark(A::address(at.page)));
            if at.expect(&done, fits) {
                assert_eq!(done, Ok(marked));
                let_go(model.marks.remove(&at.page));
            }
        }
    }
}

/// Pages a page out, and tells whether it is out. Now and then another CPU stores to it before it goes.
fn page_out<A: Arch, const CPUS: usize>(
    kernel: &Ram<A>,
    space: &Space<A, CPUS>,
    (_, page): (usize, Page),
    at: At,
    payload: u64,
) -> bool {
    let frozen = space.freeze(A::address(at.page));
    if !at.expect(&frozen, page.pages == 1) {
        return false;
    }
    let leaf = frozen.expect("it is frozen");
    assert_eq!((A::number(leaf.frame), leaf.attr.contains(Attr::DIRTY)), (page.frame, page.dirty));
    let dirty = leaf.attr.contains(Attr::DIRTY);
    let is_stored = at.twist.is_multiple_of(4);
    if is_stored {
        let writable = Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE };
        assert_eq!(space.protect(A::pages(at.page, at.page), writable), Ok(1));
    }
    let done = space.page_out(A::address(at.page), leaf.frame, payload);
    kernel.release(Run { first: leaf.frame, len: 1, dirty });
    let is_out = if is_stored { Err(Error::Changed { at: A::address(at.page) }) } else { Ok(()) };
    assert_eq!(done, is_out);
    done.is_ok()
}
