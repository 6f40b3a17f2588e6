//! Which algorithm suits which hardware (Tables 2.1 and 3.1), and which of them is chosen.

use tlbkit_shootdown::{
    Algorithm, Consistency, Form, Hardware, Loader, LowRights, Order, Plan, Rendezvous, Status, StatusBit,
    Style, Unsuitable, Want,
};

/// Hardware that writes the two bits in these ways, on a miss and on a hit alike.
fn writing(referenced: Status, dirty: Status) -> Hardware {
    let (referenced, dirty) = (StatusBit::by(referenced), StatusBit::by(dirty));
    Hardware { referenced, dirty, ..Hardware::RISCV_SVADE }
}

#[test]
fn table_3_1_and_what_the_explorer_adds() {
    use LowRights::{MayWriteBack, NeverWriteBack};
    let suits = |a: Algorithm, h: &Hardware| a.suits(h, NeverWriteBack);
    assert_eq!(suits(Algorithm::PteFirst, &Hardware::VAX), Err(Unsuitable::StatusOverwrites));
    assert_eq!(suits(Algorithm::TlbFirst, &Hardware::I386), Err(Unsuitable::LoadedByHardware));
    assert_eq!(suits(Algorithm::OptimisticRemote, &Hardware::VAX), Err(Unsuitable::NoRemoteFlush));
    assert!(suits(Algorithm::PteFirstRemote, &Hardware::MC88200).is_ok());
    let leaky = Hardware { drains: false, ..Hardware::VAX };
    assert_eq!(suits(Algorithm::TwoPhase, &leaky), Err(Unsuitable::StatusNeverDrains));
    assert!(Algorithm::PteFirst.suits(&Hardware::VAX.status_by_faults(), MayWriteBack).is_ok());
    for (_, hardware) in Hardware::TABLE.into_iter().chain(Hardware::TODAY) {
        assert!(Algorithm::TwoPhase.suits(&hardware, MayWriteBack).is_ok());
    }
}

/// Table 2.1, column by column: what loads, and what sets which bit.
#[test]
fn table_2_1_is_as_printed() {
    let (none, atomic) = (StatusBit::NEVER, StatusBit::ATOMIC);
    let twice = StatusBit { on_miss: Status::ReadThenWrite, on_hit: Status::FromTlb };
    let printed = [
        ("vax", Loader::Hardware, none, twice),
        ("ns32332", Loader::Hardware, none, twice),
        ("sun3", Loader::Software, none, none),
        ("i386", Loader::Hardware, atomic, atomic),
        ("n10", Loader::Hardware, atomic, none),
        ("rp3", Loader::Software, none, none),
    ];
    let is = Hardware::TABLE.map(|(name, h)| (name, h.loader, h.referenced, h.dirty));
    assert_eq!(is[..6], printed);
    let remote = Hardware::TABLE.map(|(_, hardware)| hardware.remote_flush);
    assert_eq!(remote, [false, false, false, false, false, false, true]);
}

/// What a kernel on a machine of today gets: to reclaim memory (no CPU need wait), and to protect at once.
#[test]
fn the_machines_of_today_get_what_they_can_use() {
    use Algorithm::{
        OptimisticRemote, PteFirst, PteFirstAsync, PteFirstRemote, TlbFirst, TlbFirstAsync, TwoPhase,
    };
    let expected = [
        ("x86-64", [PteFirst, PteFirstAsync, TwoPhase]),
        ("x86-64-invlpgb", [PteFirstRemote, PteFirstRemote, TwoPhase]),
        ("aarch64", [PteFirstRemote, PteFirstRemote, TwoPhase]),
        ("aarch64-hafdbs", [PteFirstRemote, PteFirstRemote, TwoPhase]),
        ("riscv-svade", [PteFirst, PteFirstAsync, TwoPhase]),
        ("riscv-svadu", [PteFirst, PteFirstAsync, TwoPhase]),
        ("mips32", [PteFirst, PteFirstAsync, TlbFirst]),
        ("loongarch64", [PteFirst, PteFirstAsync, TlbFirst]),
        ("powerpc-radix", [PteFirstRemote, PteFirstRemote, TwoPhase]),
        // Two bits that are written again although they are set: no number of rounds is enough.
        ("powerpc-hash", [TwoPhase, TwoPhase, TwoPhase]),
    ];
    let chosen = |hardware: &Hardware, consistency, asynchronous| {
        let want = Want { consistency, asynchronous, low: LowRights::NeverWriteBack };
        Plan::choose(hardware, want).unwrap().algorithm()
    };
    for ((name, hardware), (of, algorithms)) in Hardware::TODAY.into_iter().zip(expected) {
        let done = |asynchronous| chosen(&hardware, Consistency::WhenDone, asynchronous);
        let is = [done(false), done(true), chosen(&hardware, Consistency::Always, false)];
        assert_eq!((name, is), (of, algorithms));
    }
    // Asynchronous operations whose rights are raised meanwhile.
    assert_eq!(chosen(&Hardware::MIPS32, Consistency::Always, true), TlbFirstAsync);
    let once = Hardware { rewrites_set_bits: false, ..Hardware::POWERPC_HASH };
    assert_eq!(chosen(&once, Consistency::WhenDone, true), OptimisticRemote);
}

/// Where a status write may add no bit, the old entry can come back in every round and be covered up before the check.
#[test]
fn who_writes_set_bits_again_is_refused_what_counts_on_the_bits() {
    use LowRights::{MayWriteBack, NeverWriteBack};
    use Status::{Atomic, FromTlb, Never, ReadThenWrite};
    let suits = |referenced, dirty| {
        let hardware = Hardware { rewrites_set_bits: true, ..writing(referenced, dirty) };
        [NeverWriteBack, MayWriteBack].map(|low| Algorithm::Optimistic.suits(&hardware, low).is_ok())
    };
    for atomic in [Never, Atomic] {
        assert_eq!(suits(atomic, atomic), [true; 2], "nothing is written late");
        for late in [ReadThenWrite, FromTlb] {
            assert_eq!([suits(atomic, late), suits(late, atomic)], [[true, false]; 2], "one bit");
        }
    }
    assert_eq!(suits(ReadThenWrite, FromTlb), [false; 2], "two bits, of which each may miss in a stale copy");
    assert_eq!(suits(FromTlb, FromTlb), [true, false], "no write covers anything up");
    for algorithm in [Algorithm::Optimistic, Algorithm::OptimisticAsync] {
        let why = algorithm.suits(&Hardware::VAX, MayWriteBack);
        assert_eq!(why, Err(Unsuitable::RewritesSetBits), "{algorithm}");
        assert!(algorithm.suits(&Hardware::VAX, NeverWriteBack).is_ok());
    }
    // A bit that is set on a miss alone: software that loads the TLB sets it another way.
    let on_miss = StatusBit { on_miss: ReadThenWrite, on_hit: Never };
    for (loader, suits) in [(Loader::Hardware, false), (Loader::Software, true)] {
        let hardware = Hardware { loader, dirty: on_miss, rewrites_set_bits: true, ..Hardware::RISCV_SVADE };
        assert_eq!(Algorithm::Optimistic.suits(&hardware, MayWriteBack).is_ok(), suits, "{loader:?}");
        assert_eq!(hardware.status_overwrites(), !suits, "{loader:?}");
    }
}

#[test]
fn the_chooser_takes_the_cheapest_that_is_sound() {
    let want = |consistency, asynchronous| Want { consistency, asynchronous, low: LowRights::NeverWriteBack };
    let chosen = |h: &Hardware, w| Plan::choose(h, w).unwrap().algorithm();
    let when_done = Consistency::WhenDone;
    assert_eq!(chosen(&Hardware::I386, want(when_done, false)), Algorithm::PteFirst);
    assert_eq!(chosen(&Hardware::I386, want(when_done, true)), Algorithm::PteFirstAsync);
    assert_eq!(chosen(&Hardware::I386, want(Consistency::Always, true)), Algorithm::TwoPhase);
    assert_eq!(chosen(&Hardware::RP3, want(Consistency::Always, false)), Algorithm::TlbFirst);
    assert_eq!(chosen(&Hardware::VAX, want(when_done, false)), Algorithm::Optimistic);
    assert_eq!(chosen(&Hardware::MC88200, want(when_done, false)), Algorithm::PteFirstRemote);
    // A check of the entry costs less than a flag that every miss reads, whether the caller waits or not.
    let soft = Hardware { loader: Loader::Software, ..writing(Status::Never, Status::FromTlb) };
    assert_eq!(chosen(&soft, want(when_done, false)), Algorithm::Optimistic);
    assert_eq!(chosen(&soft, want(when_done, true)), Algorithm::OptimisticAsync);
}

/// The rights that are left count only where the hardware reads an entry with them and writes it back.
#[test]
fn what_each_order_makes_of_status_writes() {
    let suits = |algorithm: Algorithm| {
        [Status::Never, Status::Atomic, Status::ReadThenWrite, Status::FromTlb].map(|status| {
            let dirty = StatusBit::by(status);
            let hardware = Hardware { dirty, ..Hardware::RP3 };
            let on = |low| algorithm.suits(&hardware, low).is_ok();
            [on(LowRights::NeverWriteBack), on(LowRights::MayWriteBack)]
        })
    };
    let always = [true; 2];
    assert_eq!(suits(Algorithm::TwoPhase), [always; 4]);
    assert_eq!(suits(Algorithm::PteFirst), [always, always, [false; 2], [false; 2]]);
    assert_eq!(suits(Algorithm::TlbFirst), [always, always, [true, false], always]);
    assert_eq!(suits(Algorithm::Optimistic), [always; 4]);
}

/// 2.3.3: such a cache is flushed while the old entry is still there, or a check tells whether it has come back.
#[test]
fn a_cache_that_needs_the_entry_to_write_back_wants_it_unchanged() {
    let hardware = Hardware { lines_need_entry: true, remote_flush: true, ..Hardware::RP3 };
    for algorithm in Algorithm::ALL {
        let expected = match algorithm.order() {
            Order::PteFirst | Order::TwoPhase => Err(Unsuitable::WriteBackNeedsEntry),
            Order::TlbFirst | Order::Optimistic => Ok(()),
        };
        assert_eq!(algorithm.suits(&hardware, LowRights::NeverWriteBack), expected, "{algorithm}");
    }
}

/// 2.1.3: whatever stands in the way then, it is no status bit.
#[test]
fn emulated_status_bits_are_no_obstacle() {
    use Unsuitable::{NewRightsWriteBack, RewritesSetBits, StatusNeverDrains, StatusOverwrites};
    for (name, hardware) in Hardware::TABLE {
        let hardware = Hardware { drains: false, ..hardware };
        let emulated = hardware.status_by_faults();
        assert_eq!((emulated.referenced, emulated.dirty), (StatusBit::NEVER, StatusBit::NEVER));
        assert!(!emulated.status_overwrites(), "{name}");
        for algorithm in Algorithm::ALL {
            let why = algorithm.suits(&emulated, LowRights::MayWriteBack).err();
            let status = [StatusOverwrites, NewRightsWriteBack, StatusNeverDrains, RewritesSetBits];
            assert!(why.is_none_or(|why| !status.contains(&why)), "{algorithm} on {name}: {why:?}");
        }
    }
}

#[test]
fn names_and_promises_are_table_3_1s() {
    use Consistency::{Always, WhenDone};
    let table = [
        ("PTE-first", WhenDone),
        ("TLB-first", Always),
        ("2-phase", Always),
        ("optimistic", WhenDone),
        ("PTE-first'", WhenDone),
        ("TLB-first'", Always),
        ("optimistic'", WhenDone),
        ("PTE-first''", WhenDone),
        ("TLB-first''", Always),
        ("optimistic''", WhenDone),
    ];
    assert_eq!(Algorithm::ALL.map(|a| (a.name(), a.consistency())), table);
    for algorithm in Algorithm::ALL {
        let primes = match algorithm.style() {
            Style::Synchronous => 0,
            Style::Asynchronous => 1,
            Style::Remote => 2,
        };
        assert_eq!(algorithm.name().matches('\'').count(), primes);
    }
    assert_eq!(format!("{:>10}|{:<10}|", Algorithm::TwoPhase, Algorithm::PteFirst), "   2-phase|PTE-first |");
}

/// A plan is as the paper has it, until a kernel asks for another rendezvous or for the hint of Table 5.2.
#[test]
fn a_plan_says_what_it_was_told() {
    let plan = Plan::new(Algorithm::TwoPhase, &Hardware::I386, LowRights::NeverWriteBack).unwrap();
    let said = |plan: Plan| (plan.algorithm(), plan.rendezvous(), plan.is_conditional(), plan.rounds());
    assert_eq!(said(plan), (Algorithm::TwoPhase, Rendezvous::Flag, false, 1));
    assert_eq!(said(plan.conditional()), (Algorithm::TwoPhase, Rendezvous::Flag, true, 1));
    let serve = plan.with_rendezvous(Rendezvous::Serve);
    assert_eq!(said(serve), (Algorithm::TwoPhase, Rendezvous::Serve, false, 1));
    // Each entry has its own flag.
    assert_eq!([0, 1, 7].map(|entry| plan.flag_of(entry)), [0, 1, 7]);
    for algorithm in Algorithm::ALL {
        let hardware = Hardware { remote_flush: true, ..Hardware::RP3 };
        let plan = Plan::new(algorithm, &hardware, LowRights::NeverWriteBack).unwrap();
        assert_eq!(plan.stops_repliers(), algorithm == Algorithm::TwoPhase);
    }
}

/// Each late write of the old rights uses a status bit up; in the round after the last one none can come. One check is
/// enough where nothing writes the new rights.
#[test]
fn rounds_are_one_more_than_the_status_bits_that_are_written_late() {
    use LowRights::{MayWriteBack, NeverWriteBack};
    use Status::{Atomic, FromTlb, Never, ReadThenWrite};
    let rounds = |referenced, dirty| {
        let hardware = writing(referenced, dirty);
        [NeverWriteBack, MayWriteBack]
            .map(|low| Plan::new(Algorithm::Optimistic, &hardware, low).unwrap().rounds())
    };
    for atomic in [Never, Atomic] {
        assert_eq!(rounds(atomic, atomic), [1, 1]);
        assert_eq!([rounds(FromTlb, atomic), rounds(atomic, FromTlb)], [[1, 2]; 2]);
        assert_eq!([rounds(ReadThenWrite, atomic), rounds(atomic, ReadThenWrite)], [[2, 2]; 2]);
    }
    assert_eq!(rounds(FromTlb, FromTlb), [1, 3]);
    // Two ways on one machine.
    assert_eq!([rounds(ReadThenWrite, FromTlb), rounds(FromTlb, ReadThenWrite)], [[3, 3]; 2]);
    assert_eq!(rounds(ReadThenWrite, ReadThenWrite), [3, 3]);
}

#[test]
fn what_is_unsuitable_is_said() {
    use Unsuitable::{
        LoadedByHardware, NewRightsWriteBack, NoRemoteFlush, RewritesSetBits, StatusNeverDrains,
        StatusOverwrites, WriteBackNeedsEntry,
    };
    let texts = [
        StatusOverwrites,
        LoadedByHardware,
        NoRemoteFlush,
        StatusNeverDrains,
        WriteBackNeedsEntry,
        NewRightsWriteBack,
        RewritesSetBits,
    ]
    .map(|why| why.to_string());
    assert!(texts.iter().all(|text| !text.is_empty()));
    assert_eq!(std::collections::BTreeSet::from(texts).len(), 7, "each says something else");
}

/// With nothing that suits, 2-phase says why not: it needs least.
#[test]
fn without_an_algorithm_that_suits_there_is_a_reason() {
    let leaky = Hardware { drains: false, ..Hardware::VAX };
    let want = Want { consistency: Consistency::Always, asynchronous: true, low: LowRights::MayWriteBack };
    assert_eq!(Plan::choose(&leaky, want), Err(Unsuitable::StatusNeverDrains));
}

#[test]
fn an_algorithm_has_the_forms_that_the_table_says() {
    let low = LowRights::NeverWriteBack;
    let hardware = Hardware { remote_flush: true, ..Hardware::RP3 };
    for algorithm in Algorithm::ALL {
        let plan = Plan::new(algorithm, &hardware, low).unwrap();
        let has = |form| plan.with_form(form).map(|plan| plan.form()) == Ok(form);
        assert!(has(Form::Printed));
        let is_first = algorithm == Algorithm::PteFirst;
        assert_eq!([Form::Concurrent, Form::EarlyAcknowledgement].map(has), [is_first; 2], "{algorithm}");
        assert_eq!(has(Form::Swept), algorithm.style() == Style::Asynchronous, "{algorithm}");
        if let Ok(swept) = plan.with_form(Form::Swept) {
            assert_eq!(swept.waited_for().form(), Form::Printed, "a requester that waits interrupts");
        }
    }
}
