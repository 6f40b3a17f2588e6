//! Which algorithm suits which hardware (Tables 2.1 and 3.1), and which of them is chosen.

#![cfg(not(tlbkit_loom))]

use tlbkit_shootdown::{
    Algorithm, Consistency, Hardware, LowRights, Order, Plan, Rendezvous, Status, Style, Unsuitable, Want,
};

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
    assert_eq!(
        Algorithm::Optimistic.suits(&Hardware::VAX, MayWriteBack),
        Err(Unsuitable::NewRightsWriteBack)
    );
    assert!(Algorithm::PteFirst.suits(&Hardware::VAX.status_by_faults(), MayWriteBack).is_ok());
    for (_, hardware) in Hardware::TABLE {
        assert!(Algorithm::TwoPhase.suits(&hardware, MayWriteBack).is_ok());
    }
    let nonatomic = Hardware { status: Status::ReadThenWrite, status_bits: 2, ..Hardware::I386 };
    assert_eq!(Plan::new(Algorithm::Optimistic, &nonatomic, MayWriteBack).unwrap().rounds(), 3);
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
}

/// The rights that are left count only where the hardware reads an entry with them and writes it back.
#[test]
fn what_each_order_makes_of_status_writes() {
    let suits = |algorithm: Algorithm| {
        [Status::Never, Status::Atomic, Status::ReadThenWrite, Status::FromTlb].map(|status| {
            let hardware = Hardware { status, ..Hardware::RP3 };
            let on = |low| algorithm.suits(&hardware, low).is_ok();
            [on(LowRights::NeverWriteBack), on(LowRights::MayWriteBack)]
        })
    };
    let always = [true; 2];
    assert_eq!(suits(Algorithm::TwoPhase), [always; 4]);
    assert_eq!(suits(Algorithm::PteFirst), [always, always, [false; 2], [false; 2]]);
    assert_eq!(suits(Algorithm::TlbFirst), [always, always, [true, false], always]);
    assert_eq!(suits(Algorithm::Optimistic), [always, always, always, [true, false]]);
}

/// 2.3.3: such a cache is flushed while the old entry is still there, or somebody looks whether it has come back.
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
fn emulated_status_bits_are_in_nobodys_way() {
    use Unsuitable::{NewRightsWriteBack, StatusNeverDrains, StatusOverwrites};
    for (name, hardware) in Hardware::TABLE {
        let hardware = Hardware { drains: false, ..hardware };
        let emulated = hardware.status_by_faults();
        assert_eq!(emulated, Hardware { status: Status::Never, status_bits: 0, ..hardware });
        for algorithm in Algorithm::ALL {
            let why = algorithm.suits(&emulated, LowRights::MayWriteBack).err();
            let status = [StatusOverwrites, NewRightsWriteBack, StatusNeverDrains];
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

/// A plan is as the paper has it, until somebody asks for another rendezvous or for the hint of Table 5.2.
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

/// Each late write of the old rights uses a status bit up; in the round after the last one none can come.
#[test]
fn rounds_are_one_more_than_the_status_bits_that_are_written_late() {
    for (status, rounds) in
        [(Status::Never, 1), (Status::Atomic, 1), (Status::FromTlb, 1), (Status::ReadThenWrite, 3)]
    {
        let hardware = Hardware { status, status_bits: 2, ..Hardware::I386 };
        let plan = Plan::new(Algorithm::Optimistic, &hardware, LowRights::NeverWriteBack).unwrap();
        assert_eq!(plan.rounds(), rounds, "{status:?}");
    }
    let wide = Hardware { status: Status::ReadThenWrite, status_bits: u8::MAX, ..Hardware::I386 };
    let plan = Plan::new(Algorithm::Optimistic, &wide, LowRights::NeverWriteBack).unwrap();
    assert_eq!(plan.rounds(), u8::MAX);
}

#[test]
fn what_is_unsuitable_is_said() {
    use Unsuitable::{
        LoadedByHardware, NewRightsWriteBack, NoRemoteFlush, StatusNeverDrains, StatusOverwrites,
        WriteBackNeedsEntry,
    };
    let texts = [
        StatusOverwrites,
        LoadedByHardware,
        NoRemoteFlush,
        StatusNeverDrains,
        WriteBackNeedsEntry,
        NewRightsWriteBack,
    ]
    .map(|why| why.to_string());
    assert!(texts.iter().all(|text| !text.is_empty()));
    assert_eq!(std::collections::BTreeSet::from(texts).len(), 6, "each says something else");
}

/// With nothing that suits, 2-phase says why not: it needs least.
#[test]
fn without_an_algorithm_that_suits_there_is_a_reason() {
    let leaky = Hardware { drains: false, ..Hardware::VAX };
    let want = Want { consistency: Consistency::Always, asynchronous: true, low: LowRights::MayWriteBack };
    assert_eq!(Plan::choose(&leaky, want), Err(Unsuitable::StatusNeverDrains));
}
