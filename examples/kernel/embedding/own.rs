//! The kernel's own address space, where one root register has both the kernel's part and the processes'.

use tlbkit::{AddressSpace, Attr, Error};

use super::cpu;
use super::memory::{MMU, Mine, prepare};

/// The kernel's own address space, which is never dropped.
pub type Own = AddressSpace<Mine>;

/// Frees memory, and returns the kernel's own address space: pages that every process shares.
pub fn boot() -> Result<Own, Error> {
    prepare();
    let kernel = AddressSpace::lending(&MMU, cpu::kernels_parts()?)?;
    for (pages, frame, rights) in cpu::kernels_pages()? {
        kernel.map_linear(pages, frame, rights | Attr::GLOBAL | Attr::ACCESSED | Attr::DIRTY)?;
    }
    Ok(kernel)
}

/// Returns the address space of a new process: the kernel's part, and nothing else.
pub fn process(kernel: &Own) -> Result<AddressSpace<Mine>, Error> {
    AddressSpace::sharing(kernel)
}
