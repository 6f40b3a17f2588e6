//! The kernel's use of an address space: as a program's, faults and all.

use super::fault::Refusal;
use super::machine::Machine;
use super::space::Space;
use super::structure::Structure;
use crate::arch::touch::{self, Fault, Touched};

/// How often an access may fault before something must be wrong: nothing mapped, then clean, then spurious.
pub const TRIES: u32 = 4;

impl<S: Structure> Machine<S> {
    /// Reads a word.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn read(&mut self, space: &mut Space<'_, S>, at: u32) -> Result<Touched, Refusal> {
        self.retry(space, at, || touch::load(at))
    }

    /// Writes a word.
    ///
    /// # Errors
    ///
    /// [`Refusal`].
    pub fn write(&mut self, space: &mut Space<'_, S>, at: u32, value: u32) -> Result<(), Refusal> {
        // SAFETY: the address is a program's: kernel memory is not in any address space.
        self.retry(space, at, || unsafe { touch::store(at, value) })
    }

    /// Tries an access to `at` until it succeeds or is refused.
    fn retry<T>(
        &mut self,
        space: &mut Space<'_, S>,
        at: u32,
        access: impl Fn() -> Result<T, Fault>,
    ) -> Result<T, Refusal> {
        self.activate(space);
        for _ in 0..TRIES {
            match access() {
                Ok(done) => return Ok(done),
                Err(fault) if fault.at == at => self.resolve(space, fault)?,
                Err(fault) => return Err(Refusal::Elsewhere(fault.at)),
            }
        }
        Err(Refusal::Again)
    }
}
