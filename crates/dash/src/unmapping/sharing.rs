//! Segments that address spaces share: a change of a page there concerns every space that shares it.

use heapless::Vec;
use tlbkit_addr::{Asid, Pages, Vpn};

use super::{Dash, DashError, Tables};

/// The address spaces that share a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SharingId {
    /// Every address space (the text's 0).
    AllSpaces,
    /// The spaces that have called [`Dash::share`] with this number.
    Group(u32),
}

impl<T: Tables, M, const PENDING: usize, const SHARES: usize> Dash<T, M, PENDING, SHARES> {
    /// Returns the other spaces that share the page at `at`: those that share a segment with `space` there, and transitively
    /// those that share one with any of these, because an unmapping concerns every space that shares the page with a space
    /// that it concerns.
    ///
    /// The time grows with the square of the number of declarations.
    pub(super) fn sharers(&self, space: Asid, at: Vpn) -> Vec<Asid, SHARES> {
        let here = || self.shares.iter().filter(|(.., pages)| pages.contains(at));
        let mut others: Vec<Asid, SHARES> = Vec::new();
        let (mut next, mut done) = (Some(space), 0);
        while let Some(of) = next {
            let ids = here().filter(|(_, whose, _)| *whose == of).map(|(id, ..)| id);
            for (_, other, _) in ids.flat_map(|id| here().filter(move |(same, ..)| same == id)) {
                if *other != space && !others.contains(other) {
                    // There are at most as many spaces as declarations, so the push succeeds.
                    let _ = others.push(*other);
                }
            }
            next = others.get(done).copied();
            done += 1;
        }
        others
    }

    /// Returns all spaces that share the page at `at`, including `space`.
    pub(super) fn spaces(
        &self,
        space: Asid,
        at: Vpn,
    ) -> impl Iterator<Item = Asid> + Clone + use<T, M, PENDING, SHARES> {
        self.sharers(space, at).into_iter().chain([space])
    }

    /// `share(sharing_id, seg_start, seg_end)`: from now on, mapping and unmapping in these pages affects every space that
    /// has called this with the same `id` for them. Each space must call it itself, also for [`SharingId::AllSpaces`].
    /// Existing mappings do not change; the caller ensures that all spaces map the same frames there.
    ///
    /// # Errors
    ///
    /// [`DashError::Full`].
    pub fn share(&mut self, space: Asid, id: SharingId, segment: Pages) -> Result<(), DashError> {
        self.shares.push((id, space, segment)).map_err(|_| DashError::Full)
    }

    /// `share(-1, seg_start, seg_end)`: ends this space's sharing of these pages in all segments. The part of a segment that
    /// is outside these pages stays shared.
    ///
    /// # Errors
    ///
    /// [`DashError::NotShared`] if the space shares none of these pages; [`DashError::Full`] if there is no space for the
    /// declarations of the remaining parts.
    pub fn unshare(&mut self, space: Asid, segment: Pages) -> Result<(), DashError> {
        let ends =
            |(_, of, pages): &&(SharingId, Asid, Pages)| *of == space && pages.intersect(segment).is_some();
        if !self.shares.iter().any(|share| ends(&share)) {
            return Err(DashError::NotShared);
        }
        let mut rest = Vec::new();
        for share in &self.shares {
            if !ends(&share) {
                rest.push(*share).map_err(|_| DashError::Full)?;
                continue;
            }
            let (id, of, pages) = *share;
            let below = segment.first().checked_sub(1).and_then(|last| Pages::new(pages.first(), last));
            let above = segment.last().checked_add(1).and_then(|first| Pages::new(first, pages.last()));
            for piece in below.into_iter().chain(above) {
                rest.push((id, of, piece)).map_err(|_| DashError::Full)?;
            }
        }
        self.shares = rest;
        Ok(())
    }
}
