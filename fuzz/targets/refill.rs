//! The words of the refill handlers, run by the interpreter, against `lookup`: what is left in the TLB, and what the
//! kernel finds at a fault, for every table, with and without the cache in front.
#![no_main]

use common::tables::{Kind, with};
use common::{Base32, Config, Sabotage, Step};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use tlbkit_pagetable::geometry::Va32;
use tlbkit_refill::features::{Endian, Features};
use tlbkit_refill::handler::{Form, Root, Write};

#[path = "../../crates/refill/tests/all/common/mod.rs"]
mod common;

#[derive(Arbitrary, Debug)]
struct Input {
    kind: u8,
    processor: u8,
    root: u8,
    form: u8,
    big: bool,
    stlb: bool,
    random: bool,
    steps: Vec<Act>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Act {
    kind: u8,
    place: u8,
    count: u8,
    size: u8,
    number: u16,
}

/// The most steps of an input.
const STEPS: usize = 60;

/// Where pages collide: neighbours, pairs, blocks, nodes of a table, buckets of a hash, both ends of the space.
const PLACES: [usize; 8] = [0, 0x3f8, 0x400, 0x800, 0x1_0000, 0x7_fff0, 0xc_0400, 0xf_fff0];

impl Act {
    fn step(self, sizes: usize) -> Step {
        let first = PLACES[usize::from(self.place >> 4) % PLACES.len()] + usize::from(self.place & 15);
        let count =
            if self.count < 192 { 1 + usize::from(self.count % 2) } else { usize::from(self.count % 20) + 1 };
        let size = if self.size < 128 { 0 } else { usize::from(self.size) % sizes };
        let (number, attr) = (usize::from(self.number), usize::from(self.size % 8));
        match self.kind % 20 {
            0..=4 => Step::Map { first, count, frame: number & 0x7fff, size, attr },
            5 | 6 => Step::Unmap { first, count },
            7 => Step::Protect { first, count, attr },
            8 => Step::Resize { first, size },
            9 => Step::Switch,
            10 => Step::Forget,
            _ => {
                // A page, or mostly one near what was mapped not long ago.
                let ago = (self.count < 192).then_some(usize::from(self.count >> 1) % 4);
                Step::Touch { page: first, ago, offset: (number % 0x400) << 2, store: self.count & 1 == 1 }
            }
        }
    }
}

fuzz_target!(|input: Input| {
    const FORMS: [Form; 4] = [Form::PLAIN, Form::REPORTING, Form::SIZED, Form::BOTH];
    let features = [Features::R1, Features::R2, Features::P5600][usize::from(input.processor % 3)];
    let root = [Root::Block, Root::ErrorEpc, Root::KScratch(3)][usize::from(input.root % 3)];
    let has = match root {
        Root::KScratch(select) => features.has_kscratch(select),
        _ => true,
    };
    let form = FORMS[usize::from(input.form % 4)];
    let config = Config {
        features: features.with_endian(if input.big { Endian::Big } else { Endian::Little }),
        root: if has { root } else { Root::Block },
        stlb: input.stlb,
        form,
        write: if input.random && !form.reporting { Write::Random } else { Write::Index },
        near: input.root >= 128,
    };
    let kind = Kind::ALL[usize::from(input.kind) % Kind::ALL.len()];
    let acts = input.steps.iter().take(STEPS);
    let outcome = if form.sized {
        with::<Va32>(kind, &config, &acts.map(|act| act.step(7)).collect::<Vec<_>>(), Sabotage::default())
    } else {
        with::<Base32>(kind, &config, &acts.map(|act| act.step(1)).collect::<Vec<_>>(), Sabotage::default())
    };
    if let Err(error) = outcome {
        panic!("{kind:?} with {config:?}: {error}");
    }
});
