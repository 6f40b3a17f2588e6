//! The guarded table's handlers: equal to `lookup`, never fooled by an address outside the table, counted.

mod common;

use common::{Base32, Config, NODES, Sabotage, Seen, Step, Storage, Subject, run, steps};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::sync::atomic::AtomicU32;
use tlbkit_addr::{Attr, PageSize, Pages, Pfn, VirtAddr, Vpn};
use tlbkit_pagetable::format::{EntryLo, Format};
use tlbkit_pagetable::gpt::{Adaptive, Digits, Fixed, Gpt, Kseg0};
use tlbkit_pagetable::nodes::{Chunk, NodeAddr, Nodes};
use tlbkit_pagetable::{Local, Table};
use tlbkit_refill::asm::Code;
use tlbkit_refill::features::{Endian, Features};
use tlbkit_refill::handler::{self, Form, Front, Place, Root, Spec, Walk, Write};
use tlbkit_refill::interp::{Access, Machine, Stop, Window, Windows};

type Subject32<'n, 'm, P> = Gpt<'n, Base32, EntryLo, Storage<'m>, Kseg0<P>, P>;

/// A policy of node sizes, and its handler.
trait Kind: Digits {
    fn walk() -> Walk;
}

impl<const W: u32> Kind for Fixed<W> {
    fn walk() -> Walk {
        Walk::Gpt(handler::Gpt::fixed::<Base32>(W).unwrap())
    }
}

impl Kind for Adaptive {
    fn walk() -> Walk {
        Walk::Gpt(handler::Gpt::adaptive::<Base32>().unwrap())
    }
}

fn with<P: Kind>(config: &Config, steps: &[Step], sabotage: Sabotage) -> Result<Seen, TestCaseError> {
    let chunks = 160;
    let mut memory = vec![Chunk::ZERO; chunks];
    let storage = &Storage::new(&mut memory, NODES).unwrap();
    let subject = Subject {
        walk: P::walk(),
        storage,
        nodes: NODES,
        chunks,
        make: |nodes| Subject32::<P>::new(nodes),
        root: |table| table.root(),
    };
    run(config, subject, steps, sabotage)
}

fn config() -> impl Strategy<Value = Config> {
    let features = prop_oneof![Just(Features::R1), Just(Features::R2), Just(Features::P5600)];
    let endian = prop_oneof![Just(Endian::Little), Just(Endian::Big)];
    let root = prop_oneof![Just(Root::Block), Just(Root::ErrorEpc)];
    let form = prop::sample::select(&[Form::PLAIN, Form::SIZED, Form::REPORTING, Form::BOTH][..]);
    let write = prop_oneof![Just(Write::Random), Just(Write::Index)];
    (features, endian, root, any::<bool>(), form, write).prop_map(
        |(features, endian, root, stlb, form, write)| {
            let write = if form.reporting { Write::Index } else { write };
            Config { features: features.with_endian(endian), root, stlb, form, write }
        },
    )
}

macro_rules! equals {
    ($($name:ident $kind:ty;)*) => { $(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(128))]
            #[test]
            fn $name(config in config(), steps in steps(1)) {
                with::<$kind>(&config, &steps, Sabotage::default())?;
            }
        }
    )* };
}

equals! {
    g8_equals_lookup Fixed<3>;
    g16_equals_lookup Fixed<4>;
    g32_equals_lookup Fixed<5>;
    g64_equals_lookup Fixed<6>;
    g128_equals_lookup Fixed<7>;
    g256_equals_lookup Fixed<8>;
    ga_equals_lookup Adaptive;
}

const BLOCK: u32 = 0x8000_2000;

fn spec<P: Kind>(root: Root, features: Features) -> Spec {
    Spec {
        features,
        place: Place::VECTOR,
        block: BLOCK,
        root,
        front: Front::None,
        walk: P::walk(),
        form: Form::PLAIN,
        write: Write::Random,
    }
}

/// Calls with a machine whose root is in ErrorEPC, and a table of these pages, mapped to the frames in order.
fn machine<P: Kind>(
    pages: &[usize],
    mut visit: impl FnMut(&mut Machine<Windows<'_, 2>, 16>, &Subject32<'_, '_, P>),
) {
    let chunks = 400;
    let mut memory = vec![Chunk::ZERO; chunks];
    let storage = Storage::new(&mut memory, NODES).unwrap();
    let mut table = Local::new(Subject32::<P>::new(&storage), |_| ());
    for (frame, &page) in pages.iter().enumerate() {
        let _ = table.map(
            Pages::one(Vpn::new(page)),
            Pfn::new(frame + 1),
            PageSize::K4,
            EntryLo::IMPLIED | Attr::WRITE,
        );
    }
    let handler = spec::<P>(Root::ErrorEpc, Features::R2).assemble().unwrap();
    let low: Vec<_> = handler.refill.words().iter().map(|&word| AtomicU32::new(word)).collect();
    // SAFETY: the slab's memory, which nobody writes while the machine runs.
    let nodes =
        unsafe { Window::from_raw(NODES as u64, storage.at(NodeAddr::new(NODES)).cast(), chunks * 1024) };
    let mut machine = Machine::new(Features::R2, Windows([Window::new(0, &low), nodes]));
    machine.cp0.error_epc = table.table().root() as u32 as i32 as u64;
    visit(&mut machine, table.table());
    table.destroy();
}

/// Asks the handler about every pair of pages of the 32-bit space.
fn exhaustive<P: Kind>(pages: &[usize]) {
    machine::<P>(pages, |machine, table| {
        for pair in 0..1usize << 19 {
            let at = pair << 13;
            machine.tlb.flush();
            machine.cp0.status = 0;
            let stop = machine.touch(at as u32 as i32 as u64, Access::Load).unwrap_err();
            // SAFETY: nobody writes meanwhile.
            let pinned = || unsafe { tlbkit_pagetable::Pinned::by(&pair) };
            let mapped = [at, at | 0x1000].map(|at| table.lookup(pinned(), VirtAddr::new(at)));
            let present = mapped.iter().any(Option::is_some);
            assert_eq!(stop, if present { Stop::Returned } else { Stop::Reached }, "{at:#x}");
            let found = machine.tlb.find(at as u32 as i32 as u64, 0).unwrap();
            assert_eq!(found.is_some(), present, "{at:#x}");
            if !present {
                assert_eq!(machine.cp0.bad_vaddr as u32 as usize, at, "the miss is passed on as it was");
                assert_eq!(machine.cp0.entry_hi as u32 as usize, at);
            }
        }
    });
}

/// Pages near each other and far apart, at both ends, in nodes shallow and deep.
fn scattered() -> Vec<usize> {
    let mut pages: Vec<_> = (0..40).map(|n| n * 3).collect();
    pages.extend((0..20).map(|n| 1usize << n));
    pages.extend((0..300usize).map(|n| n.wrapping_mul(0x9e37_79b1) >> 7 & 0xf_ffff));
    pages.extend([0xf_ffff, 0x8_0000, 0x7_ffff]);
    pages
}

#[test]
fn no_address_outside_the_table_matches() {
    exhaustive::<Fixed<4>>(&scattered());
    exhaustive::<Adaptive>(&scattered());
    exhaustive::<Fixed<3>>(&[0x1234]);
    exhaustive::<Adaptive>(&[]);
}

/// Instructions of a refill by how many nodes are on the way, the root word in ErrorEPC.
fn costs<P: Kind>(pages: &[usize]) -> std::collections::BTreeMap<u64, u64> {
    let mut costs = std::collections::BTreeMap::new();
    machine::<P>(pages, |machine, _| {
        for &page in pages {
            machine.tlb.flush();
            machine.cp0.status = 0;
            machine.counts = Default::default();
            assert_eq!(machine.touch((page << 12) as u32 as i32 as u64, Access::Load), Err(Stop::Returned));
            // A link a node, the tag, two EntryLos.
            costs.insert(machine.counts.loads - 3, machine.counts.instructions);
        }
    });
    costs
}

#[test]
fn a_level_takes_five_instructions_fixed_and_ten_adaptive() {
    let check = |costs: std::collections::BTreeMap<u64, u64>, level| {
        assert!(costs.len() > 1, "{costs:?}");
        for (levels, instructions) in costs {
            assert_eq!(instructions, 16 + level * levels, "{levels} levels");
            assert!(level > 5 || levels == 0 || instructions < 15 + 7 * levels);
        }
    };
    check(costs::<Fixed<4>>(&scattered()), 5);
    check(costs::<Fixed<8>>(&scattered()), 5);
    check(costs::<Fixed<5>>(&scattered()), 6);
    check(costs::<Adaptive>(&scattered()), 10);
    assert_eq!(costs::<Fixed<4>>(&[7])[&0], 16);
}

fn lines(code: &Code) -> Vec<String> {
    code.words().iter().map(|word| format!("{word:08x}")).collect()
}

/// The fixed handler's words, the root word in ErrorEPC, release 2: a change shows.
#[test]
fn the_words_of_g16() {
    let handler = spec::<Fixed<4>>(Root::ErrorEpc, Features::R2).assemble().unwrap();
    let expected = "\
        401bf000 07610006 401a4000 \
        037ad006 7f5b2884 8f7bffff 0760fffc 401a4000";
    let words = lines(&handler.refill).join(" ");
    assert!(words.starts_with(expected), "{words}");
    assert_eq!(handler.refill.words().len(), 21);
}
