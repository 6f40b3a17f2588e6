//! The rights of a range of pages, as `mprotect` gives them.

use tlbkit_addr::Attr;
use tlbkit_pagetable::format::Format;
use tlbkit_pagetable::{Change, Error};

/// The attributes that allow an access.
const ACCESS: Attr = Attr::READ.union(Attr::WRITE).union(Attr::EXEC);

/// Whose the contents of pages are, for [`Edit::set_rights`](crate::Edit::set_rights).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// The address space's alone (`MAP_PRIVATE`). Another address space may map the frames, too, so the right to write comes
    /// with the next store, which faults: [`unshare`](crate::AddressSpace::unshare).
    Private,
    /// Those of all that map the frames (`MAP_SHARED`, and devices). The pages can be written at once.
    Shared,
}

/// Returns the change that gives pages the access rights `rights` and no others.
///
/// # Errors
///
/// [`Error::WrongAttr`] for other attributes.
pub(crate) fn change<F: Format>(mapping: Mapping, rights: Attr) -> Result<Change, Error> {
    let other = rights.difference(ACCESS);
    if !other.is_empty() {
        return Err(Error::WrongAttr { attr: other });
    }
    let set = match (rights.contains(Attr::WRITE), mapping) {
        (false, _) => rights,
        (true, Mapping::Shared) => rights.union(Attr::READ),
        (true, Mapping::Private) => {
            rights.union(Attr::READ).difference(Attr::WRITE).union(Attr::COPY_ON_WRITE)
        }
    };
    // An entry that allows any access allows what the format implies.
    let implied = if set.is_empty() { Attr::empty() } else { F::IMPLIED };
    let copied = Attr::COPY_ON_WRITE.intersection(F::OPTIONAL);
    Ok(Change { clear: ACCESS.union(copied).difference(set).difference(implied), set })
}
