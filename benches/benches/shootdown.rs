//! The shootdown's hot paths beside the least that the hardware lets one do: a locked add, a load, a mailbox of one
//! word in each direction. `cargo bench -p tlbkit-benches --bench shootdown`

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use tlbkit_addr::{Asid, Pages, Vpn};
use tlbkit_shootdown::{
    Algorithm, Edit, Hardware, Local, LowRights, Mailbox, OpId, Outcome, Plan, Request, SharedSpace, System,
    Target, Work,
};

struct Page<'a>(&'a SharedSpace);

impl Edit<1> for Page<'_> {
    fn exclude(&self) -> bool {
        true
    }
    fn release(&self) {}
    fn update(&self) {}
    fn space(&self) -> &SharedSpace {
        self.0
    }
    fn what(&self) -> Target {
        Target::Pages(Asid::default(), Pages::one(Vpn::new(3)))
    }
}

/// A CPU whose interrupts are polled for, and whose TLB is empty.
struct Quiet;

impl Local<()> for Quiet {
    fn flush(&mut self, what: Target, _drain: bool) {
        black_box(what);
    }
    fn interrupt(&mut self, _cpu: usize) {}
    fn complete(&mut self, (): (), outcome: Outcome) {
        black_box(outcome);
    }
}

type Kernel<'a> = System<(), Page<'a>, 2, 4>;

fn plan() -> Plan {
    Plan::new(Algorithm::PteFirst, &Hardware::I386, LowRights::NeverWriteBack).expect("it suits")
}

fn one_cpu(c: &mut Criterion) {
    let mut group = c.benchmark_group("one CPU");
    let word = AtomicU32::new(0);
    group.bench_function("locked add", |b| b.iter(|| black_box(&word).fetch_add(1, Ordering::SeqCst)));
    let mailbox = Mailbox::<64>::new().expect("room for 64");
    let request = Request {
        op: OpId { cpu: 1, slot: 0, generation: 1 },
        what: Target::Pages(Asid::default(), Pages::one(Vpn::new(3))),
    };
    group.bench_function("publish a request", |b| {
        b.iter_custom(|times| {
            let mut spent = Duration::ZERO;
            for _ in 0..times.div_ceil(64) {
                let begin = Instant::now();
                for _ in 0..64 {
                    black_box(black_box(&mailbox).post(black_box(request)).is_ok());
                }
                spent += begin.elapsed();
                while let Some(work) = mailbox.take() {
                    black_box(matches!(work, Work::One(_)));
                }
            }
            spent.mul_f64(times as f64 / (times.div_ceil(64) * 64) as f64)
        });
    });
    let flag = AtomicBool::new(false);
    group.bench_function("load", |b| b.iter(|| black_box(&flag).load(Ordering::Acquire)));
    let kernel = Kernel::new(plan()).expect("sizes are not zero");
    let mut station = kernel.station(0).expect("it exists");
    group.bench_function("poll that finds nothing", |b| {
        b.iter(|| black_box(&kernel).poll(&mut station, &mut Quiet).is_ok());
    });
    let alone = SharedSpace::new();
    alone.members.insert(0);
    alone.running.insert(0);
    group.bench_function("unshared unmap", |b| {
        b.iter(|| kernel.start(&mut station, &mut Quiet, (), Page(&alone)).is_ok());
    });
    group.finish();
}

#[repr(align(64))]
struct Line(AtomicU32);

fn round_trips(c: &mut Criterion) {
    let mut group = c.benchmark_group("round trip");
    group.bench_function("bare mailbox", |b| {
        b.iter_custom(|times| {
            let (ask, answer, stop) =
                (Line(AtomicU32::new(0)), Line(AtomicU32::new(0)), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let now = ask.0.load(Ordering::Acquire);
                        if now != seen {
                            seen = now;
                            answer.0.store(now, Ordering::Release);
                        }
                        spin_loop();
                    }
                });
                let begin = Instant::now();
                for n in 1..=times as u32 {
                    ask.0.store(n, Ordering::Release);
                    while answer.0.load(Ordering::Acquire) != n {
                        spin_loop();
                    }
                }
                let spent = begin.elapsed();
                stop.store(true, Ordering::Relaxed);
                spent
            })
        });
    });
    group.bench_function("shootdown, polled", |b| {
        b.iter_custom(|times| {
            let space = SharedSpace::new();
            for cpu in [0, 1] {
                space.members.insert(cpu);
                space.running.insert(cpu);
            }
            let (kernel, stop) = (Kernel::new(plan()).expect("sizes are not zero"), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut station = kernel.station(1).expect("it exists");
                    while !stop.load(Ordering::Relaxed) {
                        black_box(kernel.poll(&mut station, &mut Quiet).is_ok());
                        spin_loop();
                    }
                });
                let mut station = kernel.station(0).expect("it exists");
                let begin = Instant::now();
                for _ in 0..times {
                    black_box(kernel.start(&mut station, &mut Quiet, (), Page(&space)).is_ok());
                }
                let spent = begin.elapsed();
                stop.store(true, Ordering::Relaxed);
                spent
            })
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    targets = one_cpu, round_trips
}
criterion_main!(benches);
