//! What the CPUs do, and what goes wrong without a repair.

use std::fmt;
use std::rc::Rc;

use tlbkit_addr::{Attr, Pfn};
use tlbkit_dash::ipc;
use tlbkit_dash::tolerance::{Advice, Context, Entry, classify};
use tlbkit_shootdown::{
    Algorithm, CpuHandle, Form, Hardware, LowRights, Misuse, Order, Plan, Rendezvous, Repair, Status,
    StatusBit, Style, SwitchKind, System,
};

use super::machine::{
    CPUS, Change, Here, ONE_SPACE, PAGES, READ, Setup, TWO_SPACES, WRITE, Word, World, asid,
};
use super::turns::{Choices, Stop, run, stop};
use super::vm;
use crate::explore::FORMS;

/// One slot a CPU, so that each of its operations uses it again.
type Kernel<const N: usize, const STRAIGHT: bool> =
    System<Vec<(usize, Word)>, Change<STRAIGHT>, CPUS, N, 1, 1>;
type Seat<'k, const N: usize> = CpuHandle<'k, N, 1, 1>;

/// What one CPU does before it serves.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// Lowers the rights of these pages, in one operation.
    Lower(&'static [usize], Word),
    /// Comes, goes.
    Switch(SwitchKind),
    /// Raises the rights of a page again, if an operation on it is still under way.
    Supersede(usize),
    /// Gives a page back the rights that an operation took: no CPU is asked, as a stale copy allows less (5.1.1).
    Raise(usize),
    /// Maps a page with another frame, once the operation of this number has ended.
    Map(usize, usize),
}

/// What each CPU does.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// It changes entries itself.
    Entries(Vec<Vec<Deed>>),
    /// It has a kernel do that; the pages may be of two spaces.
    Kernel(Vec<Vec<vm::Deed>>, bool),
}

/// CPUs that do something, in all schedules.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) hardware: Hardware,
    pub(crate) algorithm: Algorithm,
    pub(crate) form: Form,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) script: Script,
    /// How many CPUs run the space at first, and how many more have run it before.
    pub(crate) running: usize,
    pub(crate) lazy: usize,
    /// How many requests a queue holds, one or two: the second or the third overflows it.
    pub(crate) queue: usize,
    /// How many status bits the hardware may set.
    pub(crate) whims: usize,
    /// The repairs that are switched off.
    pub(crate) off: Repair,
    /// Whether the system has no state machines, because all of its operations are PTE-first.
    pub(crate) straight: bool,
}

/// How an exploration ended.
#[derive(Debug)]
pub(crate) struct Explored {
    /// How many schedules were run.
    pub(crate) schedules: usize,
    /// Whether these were all, with so many preemptions.
    pub(crate) all: bool,
    pub(crate) wrong: Option<String>,
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let serving = if self.rendezvous == Rendezvous::Serve { ", serving" } else { "" };
        let straight = if self.straight { ", straight" } else { "" };
        let lines = if self.hardware.lines_need_entry { ", a virtual cache" } else { "" };
        write!(f, "{}{serving}{straight}{lines}, {} CPUs", self.name, self.cpus())
    }
}

impl Scene {
    /// Runs all schedules with no preemption, with one at the most, and so on, as long as each is no more than `most`
    /// schedules.
    pub(crate) fn explore(&self, preemptions: usize, most: usize, trace: bool) -> Explored {
        let mut found = Explored { schedules: 0, all: true, wrong: None };
        for preemptions in 0..=preemptions {
            let choices = Choices::default();
            let last = found.schedules + most;
            loop {
                found.schedules += 1;
                if let Err(why) = self.run(&choices, preemptions, false) {
                    if trace {
                        choices.again();
                        let _ = self.run(&choices, preemptions, true);
                    }
                    return Explored { wrong: Some(why), ..found };
                }
                if !choices.next() {
                    break;
                }
                if found.schedules == last {
                    found.all = false;
                    break;
                }
            }
        }
        found
    }

    /// Returns the name of the algorithm, or of its later form.
    pub(crate) fn algorithm(&self) -> &'static str {
        let form = FORMS.iter().find(|&&(_, of, form)| (of, form) == (self.algorithm, self.form));
        form.map_or_else(|| self.algorithm.name(), |&(name, ..)| name)
    }

    /// Tells whether something must be found wrong: a repair is off, or the algorithm does not suit the hardware.
    pub(crate) fn is_wrong(&self) -> bool {
        !self.off.is_empty() || self.algorithm.suits(&self.hardware, self.low()).is_err()
    }

    fn low(&self) -> LowRights {
        match &self.script {
            Script::Kernel(deeds, _) if vm::protects(deeds) => LowRights::MayWriteBack,
            _ => LowRights::NeverWriteBack,
        }
    }

    fn cpus(&self) -> usize {
        match &self.script {
            Script::Entries(deeds) => deeds.len(),
            Script::Kernel(deeds, _) => deeds.len(),
        }
    }

    fn run(&self, choices: &Choices, preemptions: usize, trace: bool) -> Result<(), String> {
        let plan = Plan::unsound(self.algorithm, &self.hardware, self.low());
        let plan = plan.with_form(self.form).unwrap_or(plan);
        let plan = plan.without(self.off).with_rendezvous(self.rendezvous);
        let mut setup = Setup {
            hardware: self.hardware,
            plan,
            cpus: self.cpus(),
            running: self.running,
            members: self.running + self.lazy,
            operations: 0,
            whims: self.whims,
            pages: PAGES,
            places: ONE_SPACE,
            entries: [WRITE; PAGES],
            trace,
        };
        let (world, bodies) = match &self.script {
            Script::Entries(deeds) => {
                let lowered =
                    |deed: &Deed| if let Deed::Lower(pages, _) = deed { Some(*pages) } else { None };
                let lowered = || deeds.iter().flatten().filter_map(lowered);
                setup.operations = lowered().count();
                setup.pages = lowered().flatten().max().map_or(0, |last| last + 1);
                let world = World::new(setup);
                let bodies = match (self.queue, self.straight) {
                    (1, false) => self.bodies::<1, false>(&world, deeds, plan),
                    (1, true) => self.bodies::<1, true>(&world, deeds, plan),
                    (_, false) => self.bodies::<2, false>(&world, deeds, plan),
                    (_, true) => self.bodies::<2, true>(&world, deeds, plan),
                };
                (world, bodies)
            }
            Script::Kernel(deeds, two) => {
                setup.pages = if *two { 2 } else { 1 };
                if *two {
                    setup.places = TWO_SPACES;
                    setup.entries = if vm::shares(deeds) { [WRITE; PAGES] } else { [WRITE, 0, 0] };
                }
                let world = World::new(setup);
                let bodies = vm::bodies(&world, deeds, plan, self.hardware);
                (world, bodies)
            }
        };
        run(bodies, &*world, choices, preemptions, trace)
    }

    fn bodies<const N: usize, const STRAIGHT: bool>(
        &self,
        world: &Rc<World>,
        deeds: &[Vec<Deed>],
        plan: Plan,
    ) -> Vec<Box<dyn FnOnce()>> {
        let kernel = Rc::new(Kernel::<N, STRAIGHT>::new(self.hardware).with_rendezvous(self.rendezvous));
        let body = |me: usize| {
            let (world, kernel, deeds) = (world.clone(), kernel.clone(), deeds[me].clone());
            Box::new(move || {
                let Ok(mut seat) = kernel.attach(me) else {
                    return world.wrong("the CPU has a handle already");
                };
                let mut here = Here::new(&world, me);
                for deed in deeds {
                    act(&kernel, &mut seat, &mut here, plan, &deed);
                }
                let algorithm = plan.algorithm();
                let is_carried = algorithm.order() == Order::TlbFirst
                    || algorithm.style() == Style::Remote
                    || plan.form() == Form::EarlyAcknowledgement;
                if me == 0 && is_carried {
                    drain(&kernel, &mut seat, &mut here);
                }
                world.ready.set(world.ready.get() + 1);
                while !world.is_over() {
                    if world.program(me) {
                        poll(&kernel, &mut seat, &mut here);
                    }
                }
            }) as Box<dyn FnOnce()>
        };
        (0..deeds.len()).map(body).collect()
    }
}

fn poll<const N: usize, const STRAIGHT: bool>(
    kernel: &Kernel<N, STRAIGHT>,
    seat: &mut Seat<'_, N>,
    here: &mut Here,
) {
    if let Err(why) = kernel.poll(seat, here) {
        here.world.wrong(format!("CPU {}: {why}", here.me));
    }
}

/// Has what was uncovered with no acknowledgement after it handed back, when there is nothing else left to do.
fn drain<const N: usize, const STRAIGHT: bool>(
    kernel: &Kernel<N, STRAIGHT>,
    seat: &mut Seat<'_, N>,
    here: &mut Here,
) {
    let world = here.world.clone();
    while !world.have_ended() {
        wait(kernel, seat, here);
    }
    while let Err(why) = kernel.drain(seat, here, &world.spaces[0]) {
        if !matches!(why, Misuse::Busy { .. }) {
            return world.wrong(format!("CPU {}: {why}", here.me));
        }
        wait(kernel, seat, here);
    }
}

/// Waits in the user's program until something has changed, and replies if asked.
fn wait<const N: usize, const STRAIGHT: bool>(
    kernel: &Kernel<N, STRAIGHT>,
    seat: &mut Seat<'_, N>,
    here: &mut Here,
) {
    here.world.user(here.me, true);
    here.world.wait(here.me);
    here.world.user(here.me, false);
    poll(kernel, seat, here);
}

fn act<const N: usize, const STRAIGHT: bool>(
    kernel: &Kernel<N, STRAIGHT>,
    seat: &mut Seat<'_, N>,
    here: &mut Here,
    plan: Plan,
    deed: &Deed,
) {
    let (world, me) = (here.world.clone(), here.me);
    world.user(me, false);
    match deed {
        Deed::Lower(pages, new) => {
            let mut change = Change::new(&world, pages, *new);
            loop {
                match kernel.start(seat, here, plan, change) {
                    Ok(_) => break,
                    Err((back, Misuse::Busy { .. })) => change = back,
                    Err((_, why)) => return world.wrong(format!("CPU {me}: {why}")),
                }
                wait(kernel, seat, here);
            }
        }
        Deed::Switch(change) => {
            if *change != SwitchKind::In {
                world.install(me, None);
            }
            if let Err(why) = kernel.switch(seat, here, *change, &world.spaces[0], asid(0)) {
                return world.wrong(format!("CPU {me}: {why}"));
            }
            if *change == SwitchKind::In {
                world.install(me, Some(0));
            }
        }
        Deed::Supersede(page) => {
            stop(Stop::Before("supersede"));
            if let Some(op) = world.name(0)
                && kernel.supersede(op) == Ok(true)
            {
                world.raise(*page, false);
            }
        }
        Deed::Raise(page) => {
            let [old, new] =
                [Attr::READ, Attr::READ.union(Attr::WRITE)].map(|attr| Entry { frame: Pfn::new(0), attr });
            match classify(Some(old), Some(new), Context::Plain).advice() {
                Advice::Skip => world.raise(*page, false),
                advice => world.wrong(format!("more rights: {advice:?}")),
            }
        }
        Deed::Map(page, after) => {
            while !world.has_ended(*after) {
                wait(kernel, seat, here);
            }
            world.raise(*page, true);
        }
    }
    // An interrupt may have ended a wait in there.
    poll(kernel, seat, here);
    world.user(me, true);
}

/// The hazards: a scene without one of the plan's repairs, in which something must be found wrong.
pub(crate) fn hazards() -> Vec<Scene> {
    use Algorithm as A;
    let late = |way| Hardware { referenced: StatusBit::by(way), ..Hardware::RISCV_SVADE };
    let (own, read) = (None, Some(late(Status::ReadThenWrite)));
    let table = [
        (A::PteFirst, Repair::TARGETS_AFTER, "a CPU joins", own),
        (A::TlbFirst, Repair::TARGETS_AFTER, "a CPU joins", own),
        (A::Optimistic, Repair::TARGETS_AFTER, "a CPU joins", own),
        (A::PteFirst, Repair::EXCLUSION, "two on one page", own),
        (A::PteFirstAsync, Repair::EXCLUSION, "two on one page", own),
        (A::TwoPhase, Repair::RENDEZVOUS, "two on two pages", own),
        (A::TwoPhase, Repair::REQUESTER_FLUSHES_AFTER, "unmap", own),
        (A::PteFirstAsync, Repair::ZERO_REPLIERS, "a lazy CPU comes back", own),
        (A::Optimistic, Repair::DRAIN, "unmap", own),
        (A::Optimistic, Repair::ROUNDS, "three CPUs", read),
        (A::OptimisticAsync, Repair::ROUNDS, "three CPUs", read),
        (A::TlbFirstRemote, Repair::REMOTE_DRAIN, "unmap", own),
        (A::TwoPhase, Repair::EXCHANGE, DASH, own),
        (A::TlbFirst, Repair::EXCHANGE, DASH, own),
        (A::PteFirstAsync, Repair::EXCHANGE, PAGE_OUT, own),
        (A::OptimisticAsync, Repair::DRAIN, PAGE_OUT, own),
    ];
    let scene = |(algorithm, off, name, hardware): (Algorithm, Repair, &str, Option<Hardware>)| {
        let scene = scenes().into_iter().find(|scene| scene.algorithm == algorithm && scene.name == name)?;
        let whims = if hardware.is_some() { 2 } else { scene.whims };
        Some(Scene { off, whims, hardware: hardware.unwrap_or(scene.hardware), ..scene })
    };
    let mut found: Vec<_> = table.into_iter().filter_map(scene).collect();
    found.extend(virtual_caches(&scenes(), false));
    let early = |scene: &Scene| scene.form == Form::EarlyAcknowledgement && scene.name == "unmap";
    let early = scenes().into_iter().find(early);
    found.extend(early.map(|scene| Scene { off: Repair::FLUSH_BEFORE_USE, ..scene }));
    found
}

const DASH: &str = "Dash unmaps a page";
const PAGE_OUT: &str = "a page is paged out";
const TWO_IN_A_QUEUE: &str = "two, and a queue of two";

/// All that is explored.
pub(crate) fn scenes() -> Vec<Scene> {
    let mut scenes = Vec::new();
    let machine = |algorithm: Algorithm| {
        let hardware = match algorithm.order() {
            Order::TlbFirst => Hardware::RP3,
            Order::Optimistic => Hardware { rewrites_set_bits: false, ..Hardware::NS32332 },
            _ => Hardware::I386,
        };
        Hardware { remote_flush: algorithm.style() == Style::Remote, ..hardware }
    };
    const GONE: Word = 0;
    for algorithm in Algorithm::ALL {
        let mut add = |name, running, lazy, deeds: &[&[Deed]]| {
            scenes.push(Scene {
                name,
                hardware: machine(algorithm),
                algorithm,
                form: Form::Printed,
                rendezvous: Rendezvous::Flag,
                script: Script::Entries(deeds.iter().map(|deeds| deeds.to_vec()).collect()),
                running,
                lazy,
                queue: if name == TWO_IN_A_QUEUE { 2 } else { 1 },
                whims: if algorithm.order() == Order::Optimistic { 1 } else { 0 },
                off: Repair::empty(),
                straight: false,
            });
        };
        use Deed::{Lower, Map, Raise, Supersede, Switch as Go};
        add("unmap", 2, 0, &[&[Lower(&[0], GONE)], &[]]);
        add("write-protect a batch of two ranges", 2, 0, &[&[Lower(&[0, 2], READ)], &[]]);
        add("three CPUs", 3, 0, &[&[Lower(&[0], GONE)], &[], &[]]);
        add("a slot used again", 2, 0, &[&[Lower(&[0], GONE), Map(0, 0), Lower(&[0, 1], GONE)], &[]]);
        if algorithm.style() != Style::Asynchronous {
            add(
                "rights raised without a flush",
                2,
                0,
                &[&[Lower(&[0], READ), Raise(0), Lower(&[0], GONE)], &[]],
            );
        }
        add("two on two pages", 2, 0, &[&[Lower(&[0], GONE)], &[Lower(&[1], GONE)]]);
        add("two on one page", 2, 0, &[&[Lower(&[0], READ)], &[Lower(&[0], GONE)]]);
        add("two, and a queue of one", 3, 0, &[&[Lower(&[0], GONE)], &[Lower(&[1], GONE)], &[]]);
        add(TWO_IN_A_QUEUE, 3, 0, &[&[Lower(&[0], GONE)], &[Lower(&[1], GONE)], &[]]);
        add("a CPU joins", 1, 0, &[&[Lower(&[0], GONE)], &[Go(SwitchKind::In)]]);
        add("a lazy CPU comes back", 1, 1, &[&[Lower(&[0], GONE)], &[Go(SwitchKind::In)]]);
        add(
            "a CPU goes and comes",
            2,
            0,
            &[&[Lower(&[0], GONE)], &[Go(SwitchKind::Out), Go(SwitchKind::In)]],
        );
        add(
            "a CPU forgets",
            2,
            0,
            &[&[Lower(&[0], GONE)], &[Go(SwitchKind::OutAndForget), Go(SwitchKind::In)]],
        );
        add("a CPU goes offline", 2, 0, &[&[Lower(&[0], GONE)], &[Go(SwitchKind::Offline)]]);
        add("one of three goes offline", 3, 0, &[&[Lower(&[0], GONE)], &[], &[Go(SwitchKind::Offline)]]);
        if algorithm.style() == Style::Asynchronous {
            add("rights raised again", 2, 0, &[&[Lower(&[0], GONE)], &[Supersede(0)]]);
            add(
                "rights raised again, and lowered",
                2,
                0,
                &[&[Lower(&[0], GONE), Lower(&[0], READ)], &[Supersede(0)]],
            );
        }
    }
    let serving = |scene: &Scene| scene.algorithm == Algorithm::TwoPhase && scene.name.starts_with("two");
    let serving: Vec<_> = scenes.iter().filter(|scene| serving(scene)).cloned().collect();
    scenes.extend(serving.into_iter().map(|scene| Scene { rendezvous: Rendezvous::Serve, ..scene }));
    // What a kernel with `tlbkit` runs.
    let pte_first: Vec<_> =
        scenes.iter().filter(|scene| scene.algorithm == Algorithm::PteFirst).cloned().collect();
    scenes.extend(pte_first.into_iter().map(|scene| Scene { straight: true, ..scene }));
    // A CPU that stops for 2-phase has a status write under way.
    let late = |scene: &Scene| scene.algorithm == Algorithm::TwoPhase && scene.name == "unmap";
    let late: Vec<_> = scenes.iter().filter(|scene| late(scene)).cloned().collect();
    let hardware = machine(Algorithm::Optimistic);
    scenes.extend(late.into_iter().map(|scene| Scene {
        name: "unmap, late status writes",
        hardware,
        whims: 1,
        ..scene
    }));
    scenes.extend(of_chapter_5(&machine));
    scenes.extend(virtual_caches(&scenes, true));
    for (_, algorithm, form) in FORMS {
        let of =
            |scene: &&Scene| (scene.algorithm, scene.form) == (algorithm, Form::Printed) && !scene.straight;
        let of: Vec<_> = scenes.iter().filter(of).cloned().collect();
        scenes.extend(of.into_iter().map(|scene| Scene { form, ..scene }));
    }
    scenes
}

/// Scenes on hardware whose cache lines need the entry to be written back: those whose algorithm suits it, or that of each other
/// algorithm in which a page is unmapped. There is no lazy handling on such hardware: a CPU that leaves keeps nothing.
fn virtual_caches(scenes: &[Scene], suits: bool) -> Vec<Scene> {
    let on = |scene: &Scene| Scene {
        hardware: Hardware {
            lines_need_entry: true,
            referenced: StatusBit::NEVER,
            dirty: StatusBit::NEVER,
            ..scene.hardware
        },
        whims: 1,
        ..scene.clone()
    };
    let of = |scene: &&Scene| scene.lazy == 0 && (suits || scene.name == "unmap");
    scenes.iter().filter(of).map(on).filter(|scene| scene.is_wrong() != suits).collect()
}

/// `Dash`, page-out and messages, by every algorithm.
fn of_chapter_5(machine: &dyn Fn(Algorithm) -> Hardware) -> Vec<Scene> {
    use vm::Deed::{Fault, MakeWritable, Map, PageOut, Receive, Send, Share, Switch as Go, Unmap};
    let mut scenes = Vec::new();
    let (ask, doubt) = (ipc::Send { duplicate: false, trust_hint: false }, ipc::Receive::default());
    let (hint, double) = (ipc::Send { trust_hint: true, ..ask }, ipc::Send { duplicate: true, ..ask });
    let now = ipc::Receive { immediate_use: ipc::Access::Write, ..doubt };
    let to_the_other = [Go(SwitchKind::Out, 0), Go(SwitchKind::In, 1)];
    for algorithm in Algorithm::ALL {
        let mut add = |name, hardware: Hardware, running, two, deeds: &[&[vm::Deed]]| {
            // What the hardware does with status bits is what these are about, where it does anything.
            let idle = hardware.dirty.on_hit == Status::Never;
            scenes.push(Scene {
                name,
                hardware,
                algorithm,
                form: Form::Printed,
                rendezvous: Rendezvous::Flag,
                script: Script::Kernel(deeds.iter().map(|deeds| deeds.to_vec()).collect(), two),
                running,
                lazy: 0,
                queue: 2,
                whims: if idle { 0 } else { 1 },
                off: Repair::empty(),
                straight: false,
            });
        };
        let own = machine(algorithm);
        // A dirty bit on its way when the page is unmapped: only these two orders change the entry after a flush.
        let late = match algorithm.order() {
            Order::TlbFirst => {
                Hardware { dirty: StatusBit { on_miss: Status::Never, on_hit: Status::ReadThenWrite }, ..own }
            }
            Order::TwoPhase => Hardware::VAX,
            _ => own,
        };
        add(DASH, late, 2, false, &[&[Unmap(0, false)], &[]]);
        add("Dash protects a page", own, 2, false, &[&[Unmap(0, true)], &[]]);
        if algorithm == Algorithm::TwoPhase {
            add("Dash protects a page, late status writes", late, 2, false, &[&[Unmap(0, true)], &[]]);
        }
        add("Dash unmaps a page that is mapped again", late, 2, false, &[&[Unmap(0, false)], &[Map(0)]]);
        add(
            "Dash unmaps, maps and unmaps",
            late,
            2,
            false,
            &[&[Unmap(0, false)], &[Map(0), Unmap(0, false)]],
        );
        add("Dash unmaps a page of two spaces", late, 2, true, &[&[Share, Unmap(0, false)], &to_the_other]);
        add(PAGE_OUT, late, 2, false, &[&[PageOut], &[]]);
        add("a page is paged out, and wanted", late, 2, false, &[&[PageOut], &[Fault]]);
        add("a message", own, 2, true, &[&[], &[Send(ask), to_the_other[0], to_the_other[1], Receive(now)]]);
        add(
            "a message that is not trusted as was thought",
            own,
            2,
            true,
            &[&[], &[Send(hint), to_the_other[0], to_the_other[1], Receive(doubt)]],
        );
        add(
            "a message is sent and received at once",
            own,
            1,
            true,
            &[&[Send(ask)], &[to_the_other[1], Receive(now)]],
        );
        add(
            "a message of which both keep a copy",
            own,
            2,
            true,
            &[
                &[],
                &[
                    Send(double),
                    to_the_other[0],
                    to_the_other[1],
                    Receive(ipc::Receive { immediate_use: ipc::Access::Read, ..doubt }),
                    MakeWritable(1),
                    MakeWritable(0),
                ],
            ],
        );
    }
    scenes
}
