//! The frames of a kernel, as a frame source for node storage.

use tlbkit_addr::{PageSize, PhysAddr};
use tlbkit_pagetable::Geometry;
use tlbkit_pagetable::nodes::{FrameSource, Record, Store};

use crate::{Kernel, Machine};

/// A kernel, as a frame source for node storage.
#[derive(Debug)]
pub struct Source<K>(pub(crate) K);

// SAFETY: the frames and records are the kernel's, and `Kernel` promises the same of them as `FrameSource`.
unsafe impl<K: Kernel> FrameSource for Source<K> {
    const SIZE: PageSize = <<K::Machine as Machine>::Geometry as Geometry>::BASE;

    #[inline]
    fn take(&self) -> Option<PhysAddr> {
        self.0.take_frame()
    }

    #[inline]
    fn give(&self, frame: PhysAddr) {
        self.0.give_frame(frame);
    }

    #[inline]
    fn take_zeroed(&self) -> Option<PhysAddr> {
        self.0.take_zeroed_frame()
    }

    #[inline]
    fn give_zeroed(&self, frame: PhysAddr) {
        self.0.give_zeroed_frame(frame);
    }

    #[inline(always)]
    fn stored(&self, store: Store) {
        self.0.stored(store);
    }

    #[inline(always)]
    fn memory(&self, frame: PhysAddr) -> *mut u8 {
        self.0.memory(frame)
    }

    #[inline(always)]
    fn record(&self, frame: PhysAddr) -> Option<&Record> {
        self.0.record(frame)
    }
}
