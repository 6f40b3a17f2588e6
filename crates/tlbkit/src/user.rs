//! Copies from and to user memory, and the contents of its frames.
//!
//! ```text
//!   copy_to_user      look the page up -> Kernel::user_memory -> store words     a piece: a page at most, interrupts masked
//!                         |  it does not allow the store
//!                     the kernel's page-fault handler, interrupts as the caller has them -> look it up again
//! ```
//!
//! Programs store to their memory while the kernel copies it, and so do other CPUs' copies. So every access here is a relaxed atomic
//! load or store. To Rust, a program's store is what another thread's atomic store would be, and no data race: the machine makes
//! either a store of an aligned word as a whole. A volatile access would be a data race with another CPU's copy. All accesses are
//! of aligned words, because atomic accesses of different sizes to the same bytes have no meaning in Rust either. A part of a word is
//! therefore stored by an exchange, which stores the other bytes of the word only if they have not changed.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tlbkit_addr::{PhysAddr, VirtAddr};
use tlbkit_pagetable::{Error, Geometry as _, Leaf, Pinned, Table as _};

use crate::block::Shape;
use crate::counted::pfn;
use crate::settle::status;
use crate::{Access, AddressSpace, FrameOf, Kernel, Mmu};

/// The size of a word.
const WORD: usize = size_of::<usize>();

/// Where a copy from or to user memory ended before its last byte, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// How many bytes were copied: those before the first one that was not.
    pub copied: usize,
    /// `None` if the program may not make the access: the kernel's page-fault handler has returned `false`, or the bytes extend
    /// beyond the last address (`EFAULT`). Otherwise the handler's error, or that of the copy.
    pub error: Option<Error>,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the copy stopped after {} bytes: ", self.copied)?;
        match &self.error {
            Some(why) => why.fmt(f),
            None => write!(f, "the program may not make the next access"),
        }
    }
}

impl core::error::Error for Stopped {}

impl<K: Kernel, const CPUS: usize> AddressSpace<K, CPUS> {
    /// Copies the user memory from `at` on to `to`, as loads of the program would. It need not be the program that runs.
    ///
    /// Where a page does not allow a load from user mode, or lacks a status bit, `fault` is called as for a fault of the program:
    /// with this address space, the address, and the access. The kernel passes its page-fault handler. `Ok(true)` repeats the
    /// access, `Ok(false)` ends the copy: [`Stopped`]. `fault` runs with interrupts as the caller has them, outside any call of
    /// `tlbkit`. A handler that resolves nothing and returns `Ok(true)` is called for ever.
    ///
    /// Programs may store to the memory during the copy: each aligned word (a `usize`) is loaded as a whole, in ascending order. A
    /// copy is no access that orders others. Protection keys are not checked, and neither is PMP.
    ///
    /// Interrupts are masked for a base page at a time, and no call into the [`Mmu`] is possible meanwhile: a kernel that maps its own
    /// memory at the first use writes to a new buffer before this call.
    ///
    /// Costs a call and a walk for each page, [`Kernel::user_memory`], and a load and a store for each word.
    ///
    /// # Errors
    ///
    /// [`Stopped`], with what `fault` has returned; [`Error::NotUserMemory`] where the program may make the access, but
    /// [`Kernel::user_memory`] gives no access to the frame, as by its default; [`Error::Nested`] inside an edit or a visit on this
    /// CPU; [`Error::Unflushed`] as for [`edit`](Self::edit).
    ///
    /// ```no_run
    /// # use tlbkit::{Access, AddressSpace, Error, Kernel, VirtAddr, arch};
    /// fn read_word<K: Kernel<Machine = arch::Sv32>>(
    ///     process: &AddressSpace<K>,
    ///     at: VirtAddr,
    ///     page_fault: impl FnMut(&AddressSpace<K>, VirtAddr, Access) -> Result<bool, Error>,
    /// ) -> Option<u32> {
    ///     let mut word = [0; 4];
    ///     process.copy_from_user(at, &mut word, page_fault).ok()?;
    ///     Some(u32::from_ne_bytes(word))
    /// }
    /// ```
    pub fn copy_from_user(
        &self,
        at: VirtAddr,
        to: &mut [u8],
        mut fault: impl FnMut(&Self, VirtAddr, Access) -> Result<bool, Error>,
    ) -> Result<(), Stopped> {
        self.copy(at, Access::LOAD.by_user(), Buffer::To(to), &mut fault)
    }

    /// Copies `from` to the user memory from `at` on, as stores of the program would: a copy-on-write page gets its own frame first.
    /// Everything else is as for [`copy_from_user`](Self::copy_from_user).
    ///
    /// Each aligned word is stored as a whole. Of a word that is copied in part, the program's concurrent stores to the other bytes
    /// are kept.
    ///
    /// # Errors
    ///
    /// As [`copy_from_user`](Self::copy_from_user).
    pub fn copy_to_user(
        &self,
        at: VirtAddr,
        from: &[u8],
        mut fault: impl FnMut(&Self, VirtAddr, Access) -> Result<bool, Error>,
    ) -> Result<(), Stopped> {
        self.copy(at, Access::STORE.by_user(), Buffer::From(from), &mut fault)
    }

    fn copy(
        &self,
        at: VirtAddr,
        access: Access,
        mut bytes: Buffer<'_>,
        fault: &mut dyn FnMut(&Self, VirtAddr, Access) -> Result<bool, Error>,
    ) -> Result<(), Stopped> {
        let (mut next, mut copied) = (Some(at), 0);
        while !bytes.is_empty() {
            let stopped = move |error| Stopped { copied, error };
            let at = next.ok_or(stopped(None))?;
            match self.copy_piece(at, access, &mut bytes).map_err(|why| stopped(Some(why)))? {
                Some(len) => {
                    copied += len;
                    next = at.checked_add(len);
                }
                None if fault(self, at, access).map_err(|why| stopped(Some(why)))? => {}
                None => return Err(stopped(None)),
            }
        }
        Ok(())
    }

    /// Copies as many bytes as the base page of `at` has from there on, or as are left. Returns how many, or `None` if the page does
    /// not allow the access, or lacks a status bit.
    fn copy_piece(
        &self,
        at: VirtAddr,
        access: Access,
        bytes: &mut Buffer<'_>,
    ) -> Result<Option<usize>, Error> {
        let (base, kernel) = (self.0.base(), self.mmu().kernel());
        let allows = |leaf: &Leaf| access.allowed(leaf.attr) && leaf.attr.contains(status::<K>(access));
        let piece = |pinned: Pinned<'_>| {
            let Some(leaf) = self.0.table.lookup(pinned, at).filter(allows) else { return Ok(None) };
            let phys = leaf.phys(at, base);
            let frame = phys.pfn(base);
            let copy = |words: &[AtomicUsize]| bytes.copy(words, phys.get() & base.mask());
            let copied = words(kernel, frame.address(base), copy);
            copied.map(Some).ok_or(Error::NotUserMemory { frame })
        };
        // SAFETY: interrupts are masked; this CPU is inside a call, so that it serves no shootdown during the copy. A CPU that unmaps
        // the page, or takes the right to write from it, waits.
        self.mmu().call(|_| unsafe { self.0.using(piece) })
    }
}

impl<K: Kernel, const CPUS: usize> Mmu<K, CPUS> {
    /// Fills a frame of user memory with zeros, with interrupts masked: for the frame of a new page. It is possible inside an edit, and
    /// in the functions that one calls.
    ///
    /// # Errors
    ///
    /// [`Error::NotUserMemory`] if [`Kernel::user_memory`] gives no access to the frame.
    pub fn clear_frame(&self, frame: FrameOf<K>) -> Result<(), Error> {
        self.kernel().masked(|| self.words(frame, clear))
    }

    /// Copies the contents of the frame `from`, of user memory, to the frame `to`, as [`clear_frame`](Self::clear_frame) fills it: for the
    /// copy that [`Edit::unshare`](crate::Edit::unshare) asks for.
    ///
    /// # Errors
    ///
    /// [`Error::NotUserMemory`] if [`Kernel::user_memory`] gives no access to one of the frames.
    pub fn copy_frame(&self, from: FrameOf<K>, to: FrameOf<K>) -> Result<(), Error> {
        self.kernel().masked(|| self.words(from, |from| self.words(to, |to| copy(from, to)))?)
    }

    fn words<R>(&self, frame: FrameOf<K>, access: impl FnOnce(&[AtomicUsize]) -> R) -> Result<R, Error> {
        let (frame, base) = (pfn::<K>(frame), <Shape<K>>::BASE);
        let at = frame.address(base);
        // A number that is too large for an address would name another frame.
        let found = if at.pfn(base) == frame { words(self.kernel(), at, access) } else { None };
        found.ok_or(Error::NotUserMemory { frame })
    }
}

/// Calls `access` with the words of a frame, if it is one of user memory.
fn words<K: Kernel, R>(kernel: &K, frame: PhysAddr, access: impl FnOnce(&[AtomicUsize]) -> R) -> Option<R> {
    kernel.user_memory(frame, |memory| {
        let words = memory.cast::<AtomicUsize>();
        // SAFETY: by the promise of `Kernel` the frame is mapped there, aligned to its size, and until `access` returns holds
        // nothing but bytes, which all Rust code accesses by atomic accesses of words.
        access(unsafe { core::slice::from_raw_parts(words, <Shape<K>>::BASE.bytes() / WORD) })
    })
}

/// The kernel's side of a copy: the bytes that are left.
enum Buffer<'b> {
    To(&'b mut [u8]),
    From(&'b [u8]),
}

impl Buffer<'_> {
    const fn is_empty(&self) -> bool {
        match self {
            Self::To(to) => to.is_empty(),
            Self::From(from) => from.is_empty(),
        }
    }

    /// Copies what the words have from the byte `offset` on, or what is left. Returns the number of bytes.
    fn copy(&mut self, words: &[AtomicUsize], offset: usize) -> usize {
        let room = words.len() * WORD - offset;
        match self {
            Self::To(to) => {
                let len = room.min(to.len());
                to.split_off_mut(..len).map_or(0, |to| load(words, offset, to))
            }
            Self::From(from) => {
                let len = room.min(from.len());
                from.split_off(..len).map_or(0, |from| store(words, offset, from))
            }
        }
    }
}

/// Loads the bytes from the byte `offset` of the words on, and returns how many there are.
fn load(words: &[AtomicUsize], offset: usize, to: &mut [u8]) -> usize {
    let part = |skip: usize, to: &mut [u8], word: Option<&AtomicUsize>| {
        let word = word.map_or([0; WORD], |word| word.load(Relaxed).to_ne_bytes());
        to.iter_mut().zip(word.iter().skip(skip)).for_each(|(to, &byte)| *to = byte);
    };
    let (len, skip) = (to.len(), offset % WORD);
    let mut words = words.iter().skip(offset / WORD);
    let (head, rest) = to.split_at_mut(head(skip, len));
    if !head.is_empty() {
        part(skip, head, words.next());
    }
    let (whole, tail) = rest.as_chunks_mut::<WORD>();
    match aligned_mut(whole) {
        Some(whole) => {
            whole.iter_mut().zip(words.by_ref()).for_each(|(to, word)| *to = word.load(Relaxed));
        }
        None => {
            let load = |(to, word): (&mut [u8; WORD], &AtomicUsize)| *to = word.load(Relaxed).to_ne_bytes();
            whole.iter_mut().zip(words.by_ref()).for_each(load);
        }
    }
    if !tail.is_empty() {
        part(0, tail, words.next());
    }
    len
}

/// Stores bytes from the byte `offset` of the words on, and returns how many there are.
fn store(words: &[AtomicUsize], offset: usize, from: &[u8]) -> usize {
    let part = |skip: usize, from: &[u8], word: Option<&AtomicUsize>| {
        let stored = |old: usize| {
            let mut word = old.to_ne_bytes();
            word.iter_mut().skip(skip).zip(from).for_each(|(to, &byte)| *to = byte);
            Some(usize::from_ne_bytes(word))
        };
        // It succeeds: there is always a word to store.
        let _ = word.map(|word| word.fetch_update(Relaxed, Relaxed, stored));
    };
    let skip = offset % WORD;
    let mut words = words.iter().skip(offset / WORD);
    let (head, rest) = from.split_at(head(skip, from.len()));
    if !head.is_empty() {
        part(skip, head, words.next());
    }
    let (whole, tail) = rest.as_chunks::<WORD>();
    match aligned(whole) {
        Some(whole) => whole.iter().zip(words.by_ref()).for_each(|(&from, word)| word.store(from, Relaxed)),
        None => {
            let store =
                |(&from, word): (&[u8; WORD], &AtomicUsize)| word.store(usize::from_ne_bytes(from), Relaxed);
            whole.iter().zip(words.by_ref()).for_each(store);
        }
    }
    if !tail.is_empty() {
        part(0, tail, words.next());
    }
    from.len()
}

/// Returns bytes as words, if they are aligned: a CPU without unaligned accesses copies the others byte by byte.
fn aligned(bytes: &[[u8; WORD]]) -> Option<&[usize]> {
    let (words, len) = (bytes.as_ptr().cast::<usize>(), bytes.len());
    if !words.is_aligned() {
        return None;
    }
    // SAFETY: the bytes are as many words, which are aligned, and any bytes are a word. The borrow is that of `bytes`.
    Some(unsafe { core::slice::from_raw_parts(words, len) })
}

/// Returns bytes as words, if they are aligned.
fn aligned_mut(bytes: &mut [[u8; WORD]]) -> Option<&mut [usize]> {
    let (len, words) = (bytes.len(), bytes.as_mut_ptr().cast::<usize>());
    if !words.is_aligned() {
        return None;
    }
    // SAFETY: the bytes are as many words, which are aligned; any bytes are a word, and any word is bytes. The borrow is that of
    // `bytes`, which is not used until it ends.
    Some(unsafe { core::slice::from_raw_parts_mut(words, len) })
}

/// Returns how many of `len` bytes, which begin `skip` bytes behind the beginning of a word, are in that word, if it is not whole.
fn head(skip: usize, len: usize) -> usize {
    if skip == 0 { 0 } else { len.min(WORD - skip) }
}

/// How many words the loops over a frame handle at a time: with single ones every other instruction would be one of the loop.
const TOGETHER: usize = 8;

fn clear(words: &[AtomicUsize]) {
    let (together, _) = words.as_chunks::<TOGETHER>();
    together.iter().for_each(|words| words.iter().for_each(|word| word.store(0, Relaxed)));
}

fn copy(from: &[AtomicUsize], to: &[AtomicUsize]) {
    let ((from, _), (to, _)) = (from.as_chunks::<TOGETHER>(), to.as_chunks::<TOGETHER>());
    for (from, to) in from.iter().zip(to) {
        from.iter().zip(to).for_each(|(from, to)| to.store(from.load(Relaxed), Relaxed));
    }
}
