//! A VM on slat-mm.

use crate::parts::sim_host::BASE;
use crate::parts::vm_setup::with_one_slot;
use slat::vm::Builder;
use slat::{Access, Format, Gfn, Level, PAGE_SIZE, Pfn, Vm};
use slat_mm::{AddressSpace, Backing, HostView, Place, Prot};
use std::sync::Arc;

/// The fill of a freed frame: a guest that still reads the frame finds this.
pub const POISON: u8 = 0xdd;

/// A registered VM whose guest memory is so many new bytes of `space`, with this backing. `with` sets further options.
pub fn machine<F: Format>(
    space: &Arc<AddressSpace>,
    bytes: u64,
    backing: Backing,
    with: impl FnOnce(Builder<F, HostView>) -> Builder<F, HostView>,
) -> Result<Arc<Vm<F, HostView>>, String> {
    let mapped = space.mmap(Place::Fixed(BASE), bytes, Prot::ReadWrite, backing);
    mapped.map_err(|error| error.to_string())?;
    let vm = Arc::new(with_one_slot(with(Vm::builder(HostView::new(space))), bytes / PAGE_SIZE)?);
    space.register(&vm);
    Ok(vm)
}

/// Whether a frame is the host's, in a page of this size that may be written.
pub fn host_has(space: &AddressSpace, page: Level) -> impl Fn(Gfn, Pfn) -> bool {
    move |gfn, pfn| {
        let host = space.lookup(BASE + gfn.0 * PAGE_SIZE, Access::Write);
        host.is_some_and(|host| host.writable && host.level == page && host.pfn == pfn)
    }
}
