//! The workloads are what they are defined to be.

use std::collections::BTreeSet;

use super::conventional::{TABLE_1, pages};
use super::*;
use tlbkit_addr::Vpn;

const SIZES: FileSizes = FileSizes { median: 3072.0, sigma: 2.0 };
const ALL: [Workload; 4] = [Workload::Uniform, Workload::File, Workload::Dense, Workload::Conventional];

#[test]
fn exactly_so_many_different_pages() {
    for workload in ALL {
        for pages in [0, 1, 2, 3, 64, 1000, 8192] {
            let ranges = workload.ranges(pages, PageSize::K4, 1, SIZES);
            let different: BTreeSet<_> = ranges.iter().flat_map(|range| range.iter()).collect();
            assert_eq!(different.len(), pages, "{workload:?}");
            assert_eq!(ranges.iter().map(|range| range.len()).sum::<usize>(), pages, "{workload:?}");
            assert!(different.last().is_none_or(|last| last.get() <= last_page(PageSize::K4)));
        }
    }
}

#[test]
fn a_seed_decides() {
    for workload in [Workload::Uniform, Workload::File] {
        let ranges = workload.ranges(500, PageSize::K4, 7, SIZES);
        assert_eq!(ranges, workload.ranges(500, PageSize::K4, 7, SIZES));
        assert_ne!(ranges, workload.ranges(500, PageSize::K4, 8, SIZES));
    }
    // On every machine: these were drawn on x86-64.
    let first = |workload: Workload| workload.ranges(100, PageSize::K4, 1, SIZES)[0];
    assert_eq!(first(Workload::Uniform).to_string(), "0x67094cea8ca40..=0x67094cea8ca40");
    assert_eq!(first(Workload::File).to_string(), "0x149406d8fc0e8..=0x149406d8fc0e8");
}

#[test]
fn uniform_is_uniform() {
    let ranges = Workload::Uniform.ranges(16384, PageSize::K4, 3, SIZES);
    assert!(ranges.iter().all(|range| range.len() == 1));
    // 16 bins of 1024 expected: chi-squared with 15 degrees of freedom stays below 37.7 in 999 of 1000 seeds. By the
    // top bits, and by the bottom ones.
    for shift in [48, 0] {
        let mut bins = [0f64; 16];
        for range in &ranges {
            bins[range.first().get() >> shift & 15] += 1.0;
        }
        let chi = bins.iter().map(|bin| (bin - 1024.0).powi(2) / 1024.0).sum::<f64>();
        assert!(chi < 37.7, "{chi} at {shift}");
    }
}

#[test]
fn file_sizes_are_lognormal() {
    let objects = Workload::File.ranges(400_000, PageSize::K4, 5, SIZES);
    let share = |most: usize| {
        objects.iter().filter(|object| object.len() <= most).count() as f64 / objects.len() as f64
    };
    // P(size <= n pages) = Phi(ln(4096 n / 3072) / 2).
    for (most, expected) in [(1, 0.5572), (2, 0.6881), (4, 0.7988), (16, 0.9370), (256, 0.9982)] {
        assert!((share(most) - expected).abs() < 0.006, "{most} pages: {} not {expected}", share(most));
    }
    // Shorter and of one size: a parameter is a parameter.
    let small = Workload::File.ranges(1000, PageSize::K4, 5, FileSizes { median: 4096.0, sigma: 0.0 });
    assert!(small.iter().all(|object| object.len() == 1));
    assert!((FileSizes { median: f64::NAN, ..SIZES }).check().is_err());
    assert!((FileSizes { sigma: -1.0, ..SIZES }).check().is_err());
}

#[test]
fn dense_is_one_run() {
    let ranges = Workload::Dense.ranges(16384, PageSize::K4, 1, SIZES);
    assert_eq!(ranges, [Pages::count(Vpn::new(0x10_0000), 16384).unwrap()]);
}

#[test]
fn conventional_programs_have_three_segments_and_table_1s_sizes() {
    assert_eq!(Workload::Conventional.default_pages(PageSize::K4), 2381);
    for (name, mb) in TABLE_1 {
        let ranges = Workload::Conventional.ranges(pages(mb, PageSize::K4), PageSize::K4, 1, SIZES);
        let [text, data, stack] = ranges[..] else { panic!("{name} has {} segments", ranges.len()) };
        assert!(text.last() < data.first() && data.last() < stack.first(), "{name}");
        assert!(stack.len() < text.len() && text.len() < data.len(), "{name}");
        let sum = (text.len() + data.len() + stack.len()) as f64 * 4096.0 / f64::from(1 << 20);
        assert!((sum - mb).abs() < 0.01, "{name}: {sum}");
    }
}

/// The same bytes in larger pages are fewer pages, at the same addresses.
#[test]
fn larger_base_pages() {
    let k64 = PageSize::K64;
    assert_eq!(Workload::Conventional.default_pages(k64), 149);
    let bytes = |pages: &Pages| pages.first().address(k64).get();
    let ranges = Workload::Conventional.ranges(149, k64, 1, SIZES);
    assert_eq!(
        ranges.iter().map(bytes).collect::<Vec<_>>(),
        [0x40_0000, 0x1000_0000, 0x7fff_0000 - (2 << 16)]
    );
    assert_eq!(Workload::Dense.ranges(9, k64, 1, SIZES), [Pages::count(Vpn::new(0x1_0000), 9).unwrap()]);
    let uniform = Workload::Uniform.ranges(1000, k64, 1, SIZES);
    let highest = uniform.iter().map(|range| range.last().get()).max().unwrap();
    assert!((last_page(k64) / 2..=last_page(k64)).contains(&highest), "{highest:#x}");
    // Objects of 100,000 bytes are two pages of 64 KiB.
    let files = Workload::File.ranges(1000, k64, 1, FileSizes { median: 100_000.0, sigma: 0.0 });
    assert!(files.iter().all(|file| file.len() == 2));
    assert!(Workload::Conventional.check(1 << 14, k64).is_ok());
    assert!(Workload::Conventional.check((1 << 14) + 1, k64).is_err());
}
