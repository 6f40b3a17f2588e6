//! Each call that four outside kernels made of `AddressSpace` and `Mmu` once `tlbkit` was in them, once.

use core::hint::black_box;
use core::ops::ControlFlow;

use tlbkit::{
    Access, AddressSpace, Attr, Change, Edit, Error, Fault, Mark, PageSize, Pages, Pfn, SupervisorPages,
    VirtAddr,
};

use super::kernel::{CPUS, MMU, Mine, Space};

const USER: Attr = Attr::READ.union(Attr::WRITE).union(Attr::USER);

/// What the calls are given: address spaces, and numbers that the compiler does not know.
pub struct Given {
    spaces: [Option<Space>; 2],
    at: VirtAddr,
    count: usize,
    frame: Pfn,
}

impl Given {
    pub const fn new() -> Self {
        Self { spaces: [None, None], at: VirtAddr::new(0), count: 1, frame: Pfn::new(0) }
    }

    /// Replaces the numbers.
    pub fn vary(&mut self, by: usize) {
        self.at = black_box(VirtAddr::new(by));
        self.count = black_box(by);
        self.frame = black_box(Pfn::new(by));
    }

    fn space(&self) -> Result<&Space, Error> {
        self.spaces[0].as_ref().ok_or(Error::NoRoom)
    }

    fn page(&self) -> Pages {
        Pages::one(self.at.vpn(PageSize::K4))
    }

    fn pages(&self) -> Result<Pages, Error> {
        Pages::count(self.at.vpn(PageSize::K4), self.count).ok_or(Error::OutOfRange { at: self.at })
    }
}

/// A call. Its number is of no interest, but the compiler does not know that.
pub type Call = fn(&mut Given) -> Result<usize, Error>;

pub static CALLS: &[Call] = &[
    #[cfg(not(target_arch = "aarch64"))]
    |given| {
        let slot = Pages::count(tlbkit::Vpn::new(0x80000), 1 << 18).ok_or(Error::NoRoom)?;
        given.spaces[1] = Some(AddressSpace::lending(&MMU, [slot])?);
        Ok(0)
    },
    #[cfg(not(target_arch = "aarch64"))]
    |given| {
        let kernel = given.spaces[1].as_ref().ok_or(Error::NoRoom)?;
        given.spaces[0] = Some(AddressSpace::sharing(kernel)?);
        Ok(0)
    },
    // The kernel's half has a table of its own.
    #[cfg(target_arch = "aarch64")]
    |given| {
        given.spaces[0] = Some(AddressSpace::new(&MMU)?);
        Ok(0)
    },
    |given| given.space()?.map(given.page(), given.frame, USER).map(|()| 0),
    |given| given.space()?.map_linear(given.pages()?, given.frame, USER).map(|()| 0),
    |given| given.space()?.unmap(given.pages()?),
    |given| given.space()?.protect(given.pages()?, Change::READ_ONLY),
    |given| given.space()?.replace(given.at, given.frame, USER).map(|()| 0),
    |given| given.space()?.mark(given.at, Mark::Guard).map(|_| 0),
    |given| Ok(given.space()?.translate(given.at).map_or(0, |at| at.get())),
    |given| Ok(given.space()?.lookup(given.at).map_or(0, |leaf| leaf.frame.get())),
    |given| {
        let bytes = given.at.get().to_ne_bytes();
        let copied =
            given
                .space()?
                .copy_to_user(given.at, bytes.get(..given.count).unwrap_or(&[]), |_, _, _| Ok(false));
        copied.map(|()| 0).map_err(|stopped| stopped.error.unwrap_or(Error::NoRoom))
    },
    |given| {
        given.spaces[1] = Some(given.space()?.fork(SupervisorPages::LeftOut)?);
        Ok(0)
    },
    |given| {
        given.spaces[0] = None;
        Ok(0)
    },
    |given| given.space()?.activate().map(|()| 0),
    |given| given.space()?.edit(|edit| page_fault(edit, given.at, given.frame)),
    |given| {
        let mut sum = 0;
        let _ = given.space()?.for_each(given.pages()?, |leaf| {
            sum += leaf.frame.get();
            ControlFlow::Continue(())
        });
        Ok(sum)
    },
    |_| MMU.idle().map(|()| 0),
    |_| {
        if CPUS > 1 {
            MMU.on_interrupt();
        }
        Ok(0)
    },
];

/// A page-fault handler. `frame` is the kernel's, for a page that the process has not used before, or as a copy.
fn page_fault(edit: &mut Edit<'_, Mine, CPUS>, at: VirtAddr, frame: Pfn) -> Result<usize, Error> {
    let page = Pages::one(at.vpn(PageSize::K4));
    match edit.fault(at, Access::STORE.by_user())? {
        Fault::NotMapped => edit.map(page, frame, USER)?,
        Fault::CopyOnWrite(leaf) if leaf.frame == frame => {
            return edit.protect(page, Change { clear: Attr::COPY_ON_WRITE, set: Attr::WRITE });
        }
        Fault::CopyOnWrite(_) => edit.replace(at, frame, USER)?,
        _ => {}
    }
    Ok(0)
}
