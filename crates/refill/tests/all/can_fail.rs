//! The properties see what they are meant to see: every word of a handler matters, and so does every flush.

use crate::common::steps::{config, steps};
use crate::common::tables::{Kind, with};
use crate::common::{Base32, Config, Sabotage, Seen, Step};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_refill::features::Features;
use tlbkit_refill::handler::{Form, Root, Write};

/// Returns so many sequences of steps, the same every time.
fn sequences(count: usize, sizes: usize) -> Vec<Vec<Step>> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| steps(sizes).new_tree(&mut runner).unwrap().current()).collect()
}

const PLAIN: Config = Config {
    features: Features::R2,
    root: Root::Block,
    stlb: false,
    form: Form::PLAIN,
    write: Write::Random,
    near: false,
};

#[test]
fn every_word_of_a_handler_matters() {
    let sequences = sequences(300, 1);
    for kind in [Kind::Mpt, Kind::Lpt, Kind::Hpt, Kind::Cpt, Kind::G16, Kind::Ga] {
        for stlb in [false, true] {
            let config = Config { stlb, ..PLAIN };
            let run = |steps: &Vec<Step>, sabotage| with::<Base32>(kind, &config, steps, sabotage);
            let clean: Vec<_> =
                sequences.iter().map(|steps| run(steps, Sabotage::default()).unwrap()).collect();
            let words = if stlb { 12 } else { kind.words(&config) };
            for word in 0..words {
                let sabotage = Sabotage { word: Some(word), ..Sabotage::default() };
                // Without some words the cache is right, and never hits.
                let differs = |(steps, clean): (&Vec<Step>, &Seen)| {
                    run(steps, sabotage).map_or(true, |seen| seen.fewest != clean.fewest)
                };
                let seen = sequences.iter().zip(&clean).any(differs);
                assert!(seen, "{kind:?} without word {word}, cache {stlb}");
            }
        }
    }
}

#[test]
fn half_a_flush_is_seen() {
    // The second page makes a pair of the two, which an entry within the first would overlap.
    let map = |first| Step::Map { first, count: 1, frame: 0x40, size: 1, attr: 0 };
    let touch = |page| Step::Touch { page, ago: None, offset: 0, store: false };
    // A few misses between, so that Random does not happen to name the very entry.
    let sequence = |misses: usize| {
        let between = (0..misses).map(|miss| touch(0x1000 * (miss + 1)));
        [map(0), touch(0)].into_iter().chain(between).chain([map(4), touch(2)]).collect::<Vec<_>>()
    };
    let config = Config { form: Form::SIZED, ..PLAIN };
    for kind in Kind::ALL {
        let run = |misses, sabotage| with::<Va32>(kind, &config, &sequence(misses), sabotage);
        let narrow = Sabotage { narrow: true, ..Sabotage::default() };
        (0..4).for_each(|misses| _ = run(misses, Sabotage::default()).unwrap());
        let fails = (0..4).any(|misses| run(misses, narrow).is_err());
        // There the second page is in another block, and never in one entry with the first.
        assert_eq!(fails, kind != Kind::CptFour, "{kind:?}");
    }
}

#[test]
fn half_a_flush_is_seen_in_the_cache() {
    // A pair's entry is cached by an address of its second page; then the first is split.
    let map = Step::Map { first: 0, count: 2, frame: 0x40, size: 1, attr: 0 };
    let touch = |page| Step::Touch { page, ago: None, offset: 0, store: false };
    let steps = [map, touch(5), Step::Resize { first: 0, size: 0 }, Step::Forget, touch(4)];
    let config = Config { form: Form::SIZED, stlb: true, ..PLAIN };
    for kind in Kind::ALL {
        let run = |sabotage| with::<Va32>(kind, &config, &steps, sabotage);
        run(Sabotage::default()).unwrap();
        let fails = run(Sabotage { narrow: true, ..Sabotage::default() }).is_err();
        assert_eq!(fails, kind != Kind::CptFour, "{kind:?}");
    }
}

#[test]
fn the_properties_reach_everything() {
    let mut runner = TestRunner::deterministic();
    let forms = &[Form::SIZED, Form::BOTH];
    let all = Kind::ALL;
    for kind in all {
        let mut total = Seen::default();
        for steps in sequences(200, 7) {
            let config = config(forms).new_tree(&mut runner).unwrap().current();
            let seen = with::<Va32>(kind, &config, &steps, Sabotage::default()).unwrap();
            total.translated += seen.translated;
            total.faults += seen.faults;
            total.nested += seen.nested;
            total.larger += seen.larger;
            total.whole += seen.whole;
            total.reports += seen.reports;
        }
        println!("{kind:?} {total:?}");
        assert!(total.translated > 300 && total.faults > 300 && total.reports > 100, "{kind:?} {total:?}");
        assert!(total.larger > 50 && total.whole > 10, "{kind:?} {total:?}");
        assert_eq!(total.nested > 0, kind == Kind::Lpt, "{kind:?} {total:?}");
    }
}
