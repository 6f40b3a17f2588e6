//! Frames and payloads that no entry holds yet.

use tlbkit_pagetable::{Mark, Run, Uncovered};

use crate::counted::{pfn, typed};
use crate::{FrameOf, Kernel};

/// A use of frames, or of a payload, by an entry that is to be made. If the change fails or unwinds before the entry is made, the drop
/// of this value gives the use back ([`Kernel::release`], [`Kernel::release_payload`]).
pub(crate) struct Owned<'k, K: Kernel> {
    kernel: &'k K,
    what: Option<Uncovered>,
}

impl<'k, K: Kernel> Owned<'k, K> {
    /// Takes over frames that the kernel has handed over with a use.
    #[inline]
    pub(crate) const fn new(kernel: &'k K, frames: Run) -> Self {
        Self { kernel, what: Some(Uncovered::Frames(frames)) }
    }

    /// Takes over a frame that the kernel has handed over with a use.
    #[inline]
    pub(crate) fn frame(kernel: &'k K, frame: FrameOf<K>) -> Self {
        Self::new(kernel, Run { first: pfn::<K>(frame), len: 1, dirty: false })
    }

    /// Makes one more use of frames, or of the payload of a mark. If the kernel's method unwinds, there is none.
    pub(crate) fn shared(kernel: &'k K, what: Uncovered) -> Self {
        match what {
            Uncovered::Frames(run) => kernel.share(typed::<K, _>(run)),
            Uncovered::Mark(Mark::Payload(payload, _)) => kernel.share_payload(payload),
            Uncovered::Mark(Mark::Guard) => {}
        }
        Self { kernel, what: Some(what) }
    }

    /// Leaves the use to the entry, which has been made, or to the caller.
    #[inline]
    pub(crate) fn keep(mut self) {
        self.what = None;
    }
}

impl<K: Kernel> Drop for Owned<'_, K> {
    #[inline]
    fn drop(&mut self) {
        let Some(what) = self.what else { return };
        // The call that was to make the entry may not have begun, so that interrupts are not masked yet.
        self.kernel.masked(|| match what {
            Uncovered::Frames(run) => self.kernel.release(typed::<K, _>(run)),
            Uncovered::Mark(Mark::Payload(payload, _)) => self.kernel.release_payload(payload),
            Uncovered::Mark(Mark::Guard) => {}
        });
    }
}
