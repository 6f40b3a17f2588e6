//! The probe sequence of a key: the units of its chain, in the order in which every search reads them.
//!
//! ```text
//!              Probe::pass_near: no branch     Probe::seek: a branch for each unit
//!            .----------------------------.  .-------------------------------.
//!   first -> | unit --> unit --> unit ----|->| unit --> unit --> .. --> no link: the key has no bucket
//!            '----------------------------'  '-------------------------------'
//! ```
//!
//! A search compares the whole tag of a unit with the tag that it is for. Walkers and the writer use the same sequence:
//!
//! | search | used by |
//! |-|-|
//! | [`find`](Probe::find): the near units without a branch, then the others | a lookup, and changes of one page |
//! | [`seek`](Probe::seek): a branch for each unit | changes of a range, and an unmap of one page in a bucket of several pages or that is taken out at once |
//!
//! [Near buckets](crate::hpt#near-buckets) says why. A walker beside the writer may have to search again: that is
//! [`Walk::search`](super::Walk::search).
//!
//! # How long the sequence is
//!
//! It ends. An overflow bucket gets its place once, in front of those that its chain has then, and its links lead behind it ever after;
//! a bucket that is taken out keeps them. So no search reads a bucket twice. If the table grows beside a walker,
//! [`Walk::search`](super::Walk::search) starts again, once for each change of the segment's chains.
//!
//! Nothing but the hash bounds the length. A chain has the buckets of all blocks with one hash, [vacant](crate::hpt::vacant) ones
//! included, and, until a [split](crate::hpt::grow) has parted it, those of a second hash. With `n` buckets in use and `m` first ones:
//!
//! | hash | mean of a hit | the longest chain that somebody can make who chooses the pages, but not the secret |
//! |-|-|-|
//! | folded, for a refill handler | `1 + n / 2m` if pages are spread | in 32 bits `2^19 / m` units of pairs: no secret, and the inverse is a shift |
//! | public, [`Hashed::new`](crate::hpt::Hashed::new) | `1 + n / 2m`, for any stride | `n`: the inverse of a multiplication is one |
//! | with a secret, fixed size | `1 + n / m` for any pages | `n` in theory; a page shares the chain of another with a probability of `2 / m` at most |
//! | with a secret, grows | as fixed, and `n / m` is at most the load | as fixed; who measures many lookups may learn which pages collide |
//!
//! A long chain costs time and nothing else: no search recurses, or holds a lock. A program affects only the table of its own space.

use core::hint::select_unpredictable;

use super::{Unit, Walk};
use crate::format::Format;
use crate::hpt::Sizes;
use crate::hpt::shape::{Shape as _, Spot};
use crate::nodes::{NodeAddr, Nodes};
use crate::{Geometry, Word};

/// A place in the probe sequence of a key.
pub(crate) struct Probe<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> {
    /// The unit that the search has reached.
    pub(super) unit: Unit<'a, 'n, G, F, N, S>,
    /// The place of the unit from which [`advance`](Self::advance) came.
    pub(super) before: Option<Spot>,
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Walk<'a, 'n, G, F, N, S> {
    /// Returns the beginning of the probe sequence of a key.
    #[inline(always)]
    pub(crate) fn probe(self, key: usize) -> Probe<'a, 'n, G, F, N, S> {
        self.first(key).probe()
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Unit<'a, 'n, G, F, N, S> {
    /// Returns the rest of the probe sequence from this unit on.
    #[inline(always)]
    pub(crate) fn probe(self) -> Probe<'a, 'n, G, F, N, S> {
        Probe { unit: self, before: None }
    }

    /// Returns this unit and those behind it. The next one is loaded before one is returned.
    #[inline(always)]
    pub(crate) fn chain(self) -> impl Iterator<Item = Self> {
        core::iter::successors(Some(self), |unit| unit.next())
    }
}

impl<'a, 'n, G: Geometry, F: Format, N: Nodes<Word = F::Word>, S: Sizes> Probe<'a, 'n, G, F, N, S> {
    /// Returns the unit that the search has reached.
    #[inline(always)]
    pub(crate) fn unit(self) -> Unit<'a, 'n, G, F, N, S> {
        self.unit
    }

    /// Goes to the next unit. Returns whether there is one.
    #[inline(always)]
    pub(crate) fn advance(&mut self) -> bool {
        let Some(next) = self.unit.next() else { return false };
        (self.before, self.unit) = (Some(self.unit.spot), next);
        true
    }

    /// Goes to the unit with the tag `wanted`, of those from this one on. Returns whether there is one.
    #[inline(always)]
    pub(crate) fn seek(&mut self, wanted: usize) -> bool {
        // No unit before this one has the tag.
        while self.unit.tag() != wanted {
            if !self.advance() {
                return false;
            }
        }
        true
    }

    /// Goes to the unit with the tag `wanted`, if it is one of the [near](crate::hpt::shape::Shape::NEAR) units, and to the last near
    /// unit if not: from the first unit, without a branch.
    #[inline(always)]
    pub(crate) fn pass_near(mut self, wanted: usize) -> Self {
        let unit = &mut self.unit;
        for _ in 1..Self::NEAR {
            let link = unit.link();
            let stays = (unit.tag() == wanted) | (link == F::Word::ZERO);
            let next = unit.linked(link);
            // A selection of each number, because that of a struct would be one in memory.
            unit.spot = Spot {
                node: NodeAddr::new(select_unpredictable(stays, unit.spot.node.get(), next.node.get())),
                at: select_unpredictable(stays, unit.spot.at, next.at),
            };
        }
        self
    }

    /// Returns the unit with the tag `wanted`: the search for one page, from the first unit.
    #[inline(always)]
    pub(crate) fn find(self, wanted: usize) -> Option<Unit<'a, 'n, G, F, N, S>> {
        let mut probe = self.pass_near(wanted);
        probe.seek(wanted).then_some(probe.unit)
    }
}
