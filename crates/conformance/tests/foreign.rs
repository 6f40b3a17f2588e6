//! The mappers of two crates that have never heard of tlbkit, behind the adapter.
#![cfg(all(target_arch = "x86_64", not(any(miri, tlbkit_loom))))]

use tlbkit_addr::PageSize;
use tlbkit_conformance::foreign::{Foreign, Want, check};
use tlbkit_conformance::mapper;
use tlbkit_pagetable::Space;

mod page;

#[path = "mappers/x86_64.rs"]
mod x86_64_mapper;

mod by_x86_64 {
    use super::x86_64_mapper::X86;
    use super::*;

    #[test]
    fn agrees() {
        assert_eq!(check::<X86<true, true>>(64, 0), Ok([Want::Visit, Want::KeepsEmpty].into()));
    }

    mapper!(holds, X86<true, true>);

    /// A bug of x86_64 0.15: `map_to` of a small page where a large one is mapped adds the small page's flags to the large
    /// one's entry, as if that were a link, before it fails with `ParentEntryHugePage`. A caller that is refused a writable
    /// page has made a read-only one writable.
    #[test]
    fn a_refused_map_gives_a_right() {
        let wrong = check::<X86<false, true>>(64, 0).unwrap_err().to_string();
        assert!(wrong.contains("is writable, and should be read-only"), "{wrong}");
    }

    /// Another: `update_flags` of a large page where small ones are mapped makes a large page of the node that leads to them.
    #[test]
    fn a_protect_of_a_large_page_takes_a_node_for_one() {
        let wrong = check::<X86<true, false>>(64, 0).unwrap_err().to_string();
        assert!(
            wrong.contains("it was done, and should have been refused: no page of 2M is mapped at"),
            "{wrong}"
        );
    }
}

#[path = "mappers/multiarch.rs"]
mod multiarch_mapper;

mod by_multiarch {
    use super::multiarch_mapper::Multiarch;
    use super::*;

    #[test]
    fn agrees() {
        assert_eq!(
            check::<Multiarch>(64, 0),
            Ok([Want::Visit, Want::Flushed, Want::KeepsEmpty, Want::OtherSizes, Want::Nodes].into())
        );
    }
}

/// The ten lines that a mapper needs, and a bug of one that they find.
#[test]
fn a_map_of_nothing_is_tested() {
    struct Least(std::collections::BTreeMap<usize, usize>);

    impl Foreign for Least {
        fn new() -> Self {
            Self(Default::default())
        }

        fn space(&self) -> Space {
            Space::new(32, false, PageSize::K4, &[PageSize::K4])
        }

        fn map(&mut self, at: usize, to: usize, _size: PageSize, _writable: bool) -> bool {
            self.0.insert(at, to).is_none()
        }

        fn unmap(&mut self, at: usize, _size: PageSize) -> bool {
            self.0.remove(&at).is_some()
        }

        fn translate(&self, at: usize) -> Option<usize> {
            self.0.get(&(at & !0xfff)).map(|to| to + (at & 0xfff))
        }
    }

    // A map that is refused has replaced what was there.
    let wrong = check::<Least>(64, 0).unwrap_err().to_string();
    assert!(wrong.contains("is translated to") && wrong.contains("map(0x"), "{wrong}");
}

/// The page says what is not checked.
#[test]
fn the_page_says_what_is_unchecked() {
    let rows: String = Want::ALL.iter().map(|want| format!("- {want}\n")).collect();
    page::shows("<!-- unchecked -->\n", "<!-- end of unchecked -->", &rows);
}
