//! What is explored: every algorithm on every hardware, every repair switched off, every damage of Table 2.2.

use std::sync::LazyLock;

use tlbkit_shootdown::{
    Algorithm, Broadcast, Form, Hardware, Loader, LowRights, Order, Plan, Rendezvous, Repair, Status,
    StatusBit, Style, SwitchKind,
};

use super::world::{Damage, Scene, Word};

/// A machine to explore on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    pub(crate) hardware: Hardware,
}

const fn machine(name: &'static str, hardware: Hardware) -> Machine {
    Machine { name, hardware }
}

const NEVER: StatusBit = StatusBit::NEVER;
const READ_THEN_WRITE: StatusBit = StatusBit::by(Status::ReadThenWrite);
const FROM_TLB: StatusBit = StatusBit::by(Status::FromTlb);
/// Neither atomic nor known to leave a set bit alone, and on a miss only.
const ON_MISS: StatusBit = StatusBit { on_miss: Status::ReadThenWrite, on_hit: Status::Never };

/// A machine like the NS32332, with these status bits instead of its own.
const fn writing(referenced: StatusBit, dirty: StatusBit) -> Hardware {
    Hardware { referenced, dirty, rewrites_set_bits: false, ..Hardware::NS32332 }
}

const fn rewriting(hardware: Hardware) -> Hardware {
    Hardware { rewrites_set_bits: true, ..hardware }
}

const fn broadcasting(hardware: Hardware) -> Hardware {
    Hardware { remote_flush: true, broadcasts: true, ..hardware }
}

/// The rows of Table 2.1, those machines of today that are like none before them, and [`OTHERS`].
pub(crate) static MACHINES: LazyLock<Vec<Machine>> = LazyLock::new(|| {
    let mut all: Vec<_> = Hardware::TABLE.map(|(name, hardware)| machine(name, hardware)).into();
    for (name, hardware) in Hardware::TODAY {
        if !all.iter().any(|known| known.hardware == hardware) {
            all.push(machine(name, hardware));
        }
    }
    all.extend(OTHERS);
    all
});

/// Machines that there are not: each way of non-atomic status writes, alone and beside another, with and without bits that are
/// written again although they are set, with remote flush or a software-loaded TLB, and a virtually tagged cache (2.3).
const OTHERS: [Machine; 9] = [
    machine("read-then-write", writing(READ_THEN_WRITE, NEVER)),
    machine("read-then-rewrite", rewriting(writing(READ_THEN_WRITE, NEVER))),
    machine("from-tlb", writing(FROM_TLB, NEVER)),
    machine("on-miss", rewriting(writing(ON_MISS, NEVER))),
    machine("read-and-from-tlb", writing(READ_THEN_WRITE, FROM_TLB)),
    machine("soft-read-then-write", Hardware { loader: Loader::Software, ..writing(READ_THEN_WRITE, NEVER) }),
    machine("soft-remote", broadcasting(Hardware::RP3)),
    machine("remote-read-then-write", broadcasting(writing(READ_THEN_WRITE, NEVER))),
    machine("virtual-cache", Hardware { lines_need_entry: true, ..writing(NEVER, FROM_TLB) }),
];

const D: u8 = Word::DIRTY;
const R: u8 = Word::REFERENCED;

/// The name of the way by which `tlbkit` ends a change on hardware that broadcasts flushes: the crate's [`Broadcast`].
pub(crate) const BROADCAST: &str = "broadcast";
/// The name of no algorithm.
const NONE: &str = "none";

/// One exploration.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The algorithm's name, [`BROADCAST`], or [`NONE`].
    pub(crate) algorithm: &'static str,
    pub(crate) machine: &'static str,
    /// What goes on, in a word.
    pub(crate) doing: String,
    /// The repair that is switched off.
    pub(crate) off: Option<Repair>,
    pub(crate) scene: Scene,
    /// Whether it must be found sound. An unsuitable pairing must be found wrong in at least one of its cases.
    pub(crate) sound: bool,
}

impl Machine {
    fn low(&self, new: Word) -> LowRights {
        let dirty = self.hardware.dirty.overwrites() && new.rights() == 2;
        let referenced = self.hardware.referenced.overwrites() && new.rights() != 0;
        if dirty || referenced { LowRights::MayWriteBack } else { LowRights::NeverWriteBack }
    }

    fn scene(&self, algorithm: Algorithm, cpus: usize, ops: &[(usize, Word)]) -> Scene {
        let lows = ops.iter().map(|&(_, new)| self.low(new));
        let low = lows.reduce(|a, b| if a == LowRights::MayWriteBack { a } else { b });
        let low = low.unwrap_or(LowRights::NeverWriteBack);
        Scene {
            hardware: self.hardware,
            plan: Plan::unsound(algorithm, &self.hardware, low),
            cpus,
            ptes: ops.iter().map(|&(pte, _)| pte + 1).max().unwrap_or(1),
            ops: ops.to_vec(),
            change: None,
            lazy: false,
            raise: None,
            start: Word::WRITE,
            bare: None,
            broadcasts: false,
            visits: false,
            reduce: true,
        }
    }

    fn suits(&self, algorithm: Algorithm, new: Word) -> bool {
        algorithm.suits(&self.hardware, self.low(new)).is_ok()
    }

    /// Returns the machine of that name, or the one that has the properties of the machine of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        let like = Hardware::TODAY.iter().find(|(today, _)| *today == name).map(|(_, hardware)| hardware);
        let is = |machine: &&Self| machine.name == name || Some(&machine.hardware) == like;
        MACHINES.iter().find(is)
    }
}

/// Every way of using `algorithm` on `machine`: lowering to nothing and to read-only on `cpus` CPUs, and on `fewer`
/// with two requesters, with CPUs that come and go, and with rights that are raised again.
pub(crate) fn pairing(algorithm: Algorithm, machine: &Machine, cpus: usize, fewer: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    if algorithm.style() == Style::Remote && !machine.hardware.remote_flush {
        return cases; // There is nothing to run it on.
    }
    // Two bits that are written late make more worlds of three CPUs that all do something than can be told apart.
    let late = machine.hardware.referenced.overwrites() && machine.hardware.dirty.overwrites();
    let fewer = if late { fewer.min(2) } else { fewer };
    let mut add = |doing: &str, sound: bool, scene: Scene| {
        cases.push(Case {
            algorithm: algorithm.name(),
            machine: machine.name,
            doing: format!("{doing}, {} CPUs", scene.cpus),
            off: None,
            scene,
            sound,
        });
    };
    let unmaps = machine.suits(algorithm, Word::NONE);
    let protects = machine.suits(algorithm, Word::READ);
    add("unmap", unmaps, machine.scene(algorithm, cpus, &[(0, Word::NONE)]));
    add("write-protect", protects, machine.scene(algorithm, cpus, &[(0, Word::READ)]));
    let same = [(0, Word::READ), (0, Word::NONE)];
    add("two on one page", protects, machine.scene(algorithm, fewer, &same));
    add("two on two pages", unmaps, machine.scene(algorithm, fewer, &[(0, Word::NONE), (1, Word::NONE)]));
    // There is no lazy handling on such hardware: a CPU that leaves keeps nothing.
    let keeps = !machine.hardware.lines_need_entry;
    let changes = [
        ("a CPU joins", SwitchKind::In),
        ("a CPU idles", SwitchKind::Out),
        ("a CPU forgets", SwitchKind::OutAndForget),
        ("a CPU goes offline", SwitchKind::Offline),
    ];
    for (doing, change) in changes.into_iter().filter(|&(_, change)| keeps || change != SwitchKind::Out) {
        let mut scene = machine.scene(algorithm, fewer, &[(0, Word::NONE)]);
        scene.change = Some((fewer - 1, change));
        add(doing, unmaps, scene);
    }
    if !keeps {
        return cases;
    }
    let mut scene = machine.scene(algorithm, fewer, &[(0, Word::NONE)]);
    scene.change = Some((fewer - 1, SwitchKind::In));
    scene.lazy = true;
    add("a lazy CPU comes back", unmaps, scene);
    let mut scene = machine.scene(algorithm, fewer, &[(0, Word::NONE)]);
    scene.raise = Some(fewer - 1);
    add("rights raised again", unmaps, scene);
    if algorithm == Algorithm::TwoPhase {
        let mut scene = machine.scene(algorithm, fewer, &[(0, Word::NONE), (1, Word::NONE)]);
        scene.plan = scene.plan.with_rendezvous(Rendezvous::Serve);
        add("two on two pages, serving", unmaps, scene);
    }
    if machine.hardware.broadcasts {
        let mut scene = machine.scene(algorithm, fewer, &[(0, Word::NONE)]);
        scene.visits = true;
        // What the update returns waits for an operation that interrupts, with these (`System::run`).
        let waits = algorithm.order() == Order::TlbFirst || algorithm.style() == Style::Remote;
        add("a node beside walks by software", unmaps && !waits, scene);
    }
    cases
}

/// The later forms that are explored as algorithms of their own: the name, the algorithm, the form.
pub(crate) const FORMS: [(&str, Algorithm, Form); 3] = [
    ("concurrent", Algorithm::PteFirst, Form::Concurrent),
    ("early", Algorithm::PteFirst, Form::EarlyAcknowledgement),
    ("swept", Algorithm::PteFirstAsync, Form::Swept),
];

/// Every way of using a later form of an algorithm, as [`pairing`] has them.
pub(crate) fn form(
    (name, algorithm, form): (&'static str, Algorithm, Form),
    machine: &Machine,
    cpus: usize,
    fewer: usize,
) -> Vec<Case> {
    let mut cases = pairing(algorithm, machine, cpus, fewer);
    for case in &mut cases {
        case.algorithm = name;
        // Each has an algorithm that has the form.
        case.scene.plan = case.scene.plan.with_form(form).unwrap_or(case.scene.plan);
    }
    cases
}

/// Every way of ending a change by a broadcast on `machine`, as [`pairing`] has them, beside walks by software. Where hardware also writes
/// status bits, which no such walk looks at, there are such walks in the first case alone: more worlds than can be told apart.
pub(crate) fn broadcast(machine: &Machine, cpus: usize, fewer: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    if !machine.hardware.broadcasts {
        return cases; // There is nothing to run it on.
    }
    let scene = |cpus, ops: &[(usize, Word)]| Scene {
        broadcasts: true,
        visits: machine.hardware.referenced == NEVER && machine.hardware.dirty == NEVER,
        ..machine.scene(Algorithm::PteFirst, cpus, ops)
    };
    let sound = Broadcast::suits(&machine.hardware).is_ok();
    let mut add = |doing: &str, scene: Scene| {
        cases.push(Case {
            algorithm: BROADCAST,
            machine: machine.name,
            doing: format!("{doing}, {} CPUs", scene.cpus),
            off: None,
            scene,
            sound,
        });
    };
    let one = [(0, Word::NONE)];
    add("unmap", Scene { visits: true, ..scene(cpus, &one) });
    add("write-protect", scene(cpus, &[(0, Word::READ)]));
    add("two on one page", scene(fewer, &[(0, Word::READ), (0, Word::NONE)]));
    add("two on two pages", scene(fewer, &[(0, Word::NONE), (1, Word::NONE)]));
    for (doing, change, lazy) in [
        ("a CPU joins", SwitchKind::In, false),
        ("a CPU idles", SwitchKind::Out, false),
        ("a CPU forgets", SwitchKind::OutAndForget, false),
        ("a CPU goes offline", SwitchKind::Offline, false),
        ("a lazy CPU comes back", SwitchKind::In, true),
    ] {
        add(doing, Scene { change: Some((fewer - 1, change)), lazy, ..scene(fewer, &one) });
    }
    // A node that is put in is another one than that which was taken out: no walk says which it is in.
    add("rights raised again", Scene { raise: Some(fewer - 1), visits: false, ..scene(fewer, &one) });
    if !sound {
        cases.truncate(1); // The first one shows it.
    }
    cases
}

/// One repair switched off, in the smallest world that shows what it is for.
pub(crate) fn hazards() -> Vec<Case> {
    use Algorithm as A;
    const GONE: Word = Word::NONE;
    let mut cases = Vec::new();
    let mut add = |algorithm: Algorithm,
                   name: &'static str,
                   off: Repair,
                   doing: &str,
                   scene: &dyn Fn(&Machine) -> Scene| {
        let Some(machine) = Machine::named(name) else { return };
        for sound in [true, false] {
            let mut scene = scene(machine);
            if !sound {
                scene.plan = scene.plan.without(off);
            }
            cases.push(Case {
                algorithm: algorithm.name(),
                machine: name,
                doing: format!("{doing}, {} CPUs", scene.cpus),
                off: (!sound).then_some(off),
                scene,
                sound,
            });
        }
    };
    for algorithm in [A::Optimistic, A::OptimisticAsync, A::OptimisticRemote] {
        let name =
            if algorithm == A::OptimisticRemote { "remote-read-then-write" } else { "read-then-write" };
        add(algorithm, name, Repair::ROUNDS, "write-protect", &|m| m.scene(algorithm, 3, &[(0, Word::READ)]));
    }
    // Of words from the TLB, only copies of the new rights write the new rights. Two bits need three rounds.
    for (name, doing, new) in
        [("from-tlb", "write-protect", Word::READ), ("read-and-from-tlb", "unmap", GONE)]
    {
        add(A::Optimistic, name, Repair::ROUNDS, doing, &|m| m.scene(A::Optimistic, 3, &[(0, new)]));
    }
    add(A::Optimistic, "from-tlb", Repair::DRAIN, "unmap", &|m| m.scene(A::Optimistic, 3, &[(0, GONE)]));
    add(A::TwoPhase, "from-tlb", Repair::FLUSH_AFTER_UPDATE, "unmap", &|m| {
        m.scene(A::TwoPhase, 2, &[(0, GONE)])
    });
    for name in ["n10", "i386", "rp3"] {
        add(A::PteFirst, name, Repair::FLUSH_BEFORE_USE, "unmap, acknowledged early", &|m| {
            let scene = m.scene(A::PteFirst, 2, &[(0, GONE)]);
            let plan = scene.plan.with_form(Form::EarlyAcknowledgement).unwrap_or(scene.plan);
            Scene { plan, ..scene }
        });
    }
    for (algorithm, name) in [(A::PteFirst, "n10"), (A::Optimistic, "from-tlb")] {
        add(algorithm, name, Repair::EXCLUSION, "two on one page", &|m| {
            let mut scene = m.scene(algorithm, 2, &[(0, Word::READ), (0, GONE)]);
            // Reprotection with the referenced bit set beforehand: it never writes back.
            scene.hardware.dirty = std::mem::replace(&mut scene.hardware.referenced, NEVER);
            scene.plan = Plan::unsound(algorithm, &scene.hardware, LowRights::NeverWriteBack);
            scene
        });
    }
    let joins = [(A::PteFirst, "i386"), (A::TlbFirst, "rp3"), (A::Optimistic, "from-tlb")];
    for (algorithm, name) in joins {
        add(algorithm, name, Repair::TARGETS_AFTER, "a CPU joins", &|m| {
            let mut scene = m.scene(algorithm, 2, &[(0, GONE)]);
            scene.change = Some((1, SwitchKind::In));
            scene
        });
    }
    // The tentative entry is an old one that allowed more than the page does now.
    add(A::TlbFirst, "rp3", Repair::VALUE_BEFORE_FLAG, "unmap", &|m| Scene {
        start: Word::READ,
        ..m.scene(A::TlbFirst, 2, &[(0, GONE)])
    });
    for algorithm in [A::TlbFirst, A::TlbFirstAsync, A::PteFirst] {
        add(algorithm, "rp3", Repair::MISS_MASKED, "unmap", &|m| m.scene(algorithm, 2, &[(0, GONE)]));
    }
    add(A::TlbFirst, "rp3", Repair::FLAG_PER_PTE, "two on two pages", &|m| {
        m.scene(A::TlbFirst, 2, &[(0, GONE), (1, Word::READ)])
    });
    let two = [(0, GONE), (1, GONE)];
    add(A::TwoPhase, "n10", Repair::RENDEZVOUS, "two on two pages", &|m| m.scene(A::TwoPhase, 2, &two));
    add(A::TwoPhase, "n10", Repair::RENDEZVOUS, "two on two pages, serving", &|m| {
        let mut scene = m.scene(A::TwoPhase, 2, &two);
        scene.plan = scene.plan.with_rendezvous(Rendezvous::Serve);
        scene
    });
    add(A::TwoPhase, "n10", Repair::ENQUEUE_BEFORE_FLAG, "two on two pages", &|m| {
        m.scene(A::TwoPhase, 2, &two)
    });
    add(A::TwoPhase, "i386", Repair::FLUSH_AFTER_UPDATE, "unmap", &|m| m.scene(A::TwoPhase, 2, &[(0, GONE)]));
    add(A::TwoPhase, "i386", Repair::REQUESTER_FLUSHES_AFTER, "unmap", &|m| {
        m.scene(A::TwoPhase, 2, &[(0, GONE)])
    });
    add(A::TwoPhase, "i386", Repair::ALL_LOADERS, "unmap", &|m| m.scene(A::TwoPhase, 2, &[(0, GONE)]));
    add(A::TwoPhase, "from-tlb", Repair::INTERRUPTS_DISABLED, "unmap", &|m| {
        m.scene(A::TwoPhase, 2, &[(0, GONE)])
    });
    for (algorithm, name) in
        [(A::PteFirstAsync, "i386"), (A::TlbFirstAsync, "rp3"), (A::OptimisticAsync, "vax")]
    {
        add(algorithm, name, Repair::ATOMIC_COUNT, "unmap", &|m| m.scene(algorithm, 3, &[(0, GONE)]));
        add(algorithm, name, Repair::ZERO_REPLIERS, "unmap", &|m| m.scene(algorithm, 1, &[(0, GONE)]));
        add(algorithm, name, Repair::RAISE_SUPERSEDES, "rights raised again", &|m| {
            let mut scene = m.scene(algorithm, 2, &[(0, GONE)]);
            scene.raise = Some(1);
            scene
        });
    }
    for (algorithm, name) in [
        (A::PteFirstRemote, "mc88200"),
        (A::TlbFirstRemote, "soft-remote"),
        (A::OptimisticRemote, "remote-read-then-write"),
    ] {
        add(algorithm, name, Repair::REMOTE_DRAIN, "unmap", &|m| m.scene(algorithm, 2, &[(0, GONE)]));
    }
    add(A::PteFirstRemote, "soft-remote", Repair::GENERATION, "two on two pages", &|m| {
        m.scene(A::PteFirstRemote, 3, &two)
    });
    for (algorithm, name) in [(A::PteFirst, "i386"), (A::PteFirstRemote, "mc88200")] {
        add(algorithm, name, Repair::EXCHANGE, "unmap", &|m| m.scene(algorithm, 2, &[(0, GONE)]));
    }
    cases.extend(parts_of_a_broadcast());
    cases
}

/// The parts of a broadcast: each left out, and none.
fn parts_of_a_broadcast() -> Vec<Case> {
    let Some(machine) = Machine::named("aarch64") else { return Vec::new() };
    let mut cases: Vec<_> =
        broadcast(machine, 2, 2).into_iter().filter(|case| case.doing.starts_with("unmap")).collect();
    for off in [Repair::BARRIER, Repair::USES_END, Repair::WALKS_END, Repair::ANNOUNCE_FIRST] {
        cases.extend(cases.first().cloned().map(|mut case| {
            case.scene.plan = case.scene.plan.without(off);
            Case { off: Some(off), sound: false, ..case }
        }));
    }
    cases
}

/// Every damage of every row of Table 2.2: how entry and copies come to differ, and the damage, where no algorithm is used.
pub(crate) fn damages() -> Vec<Case> {
    let dirty = Word(Word::WRITE.0 | D);
    let rows = [
        ("increase rights, status bit clear", Word::READ, Word::WRITE, Damage::Overwriting),
        ("increase rights, status bit clear", Word::READ, Word::WRITE, Damage::RejectedReference),
        ("reduce rights, status bit clear", Word::WRITE, Word::NONE, Damage::Overwriting),
        ("reduce rights, status bit clear", Word::WRITE, Word::NONE, Damage::IllegalReference),
        (
            "increase rights, status bit set",
            Word(Word::READ.0 | R),
            Word(Word::WRITE.0 | R),
            Damage::RejectedReference,
        ),
        (
            "reduce rights, status bit set",
            Word(dirty.0 | R),
            Word(Word::READ.0 | R),
            Damage::IllegalReference,
        ),
        ("clear status bits", Word(dirty.0 | R), Word(Word::WRITE.0 | R), Damage::WrongStatus),
        (
            "clear status bits, increase rights",
            Word(Word::READ.0 | R),
            Word(Word::WRITE.0),
            Damage::RejectedReference,
        ),
        (
            "clear status bits, increase rights",
            Word(Word::READ.0 | R),
            Word(Word::WRITE.0),
            Damage::WrongStatus,
        ),
        ("clear status bits, reduce rights", Word(dirty.0 | R), Word(Word::READ.0), Damage::IllegalReference),
        ("clear status bits, reduce rights", Word(dirty.0 | R), Word(Word::READ.0), Damage::WrongStatus),
    ];
    let Some(machine) = Machine::named("read-then-write") else { return Vec::new() };
    rows.into_iter()
        .map(|(doing, start, new, damage)| {
            let mut scene = machine.scene(Algorithm::PteFirst, 2, &[(0, new)]);
            scene.hardware.dirty = READ_THEN_WRITE;
            scene.start = start;
            scene.bare = Some(damage);
            Case {
                algorithm: NONE,
                machine: machine.name,
                doing: format!("{doing}: {damage}"),
                off: None,
                scene,
                sound: false,
            }
        })
        .collect()
}
