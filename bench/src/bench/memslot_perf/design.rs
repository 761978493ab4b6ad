//! A design of memslots, as the scenarios see it: a host for the engine, and operations for the host's thread.

use super::memory::Memory;
use slat::table::formats::Npt4;
use slat::{Gfn, Host, Hva, Idle, Slot, SlotId, Span, Vm};
use slat_cli::error::Error;
use std::sync::Arc;

/// The VM that both designs run on; they differ in its host and in their own operations.
pub type Machine<D> = Vm<Npt4, <D as Design>::Host>;

/// See the module's header.
pub trait Design {
    /// What the engine asks for pages.
    type Host: Host;
    /// The operations.
    type Slots<'vm>: Memslots
    where
        Self: 'vm;

    /// A host on `memory`.
    fn host(memory: &Arc<Memory>) -> Self::Host;
    /// The operations on a VM with that host, for one thread at a time. May sleep.
    fn slots<'vm>(vm: &'vm Machine<Self>, idle: &mut Idle) -> Result<Self::Slots<'vm>, Error>
    where
        Self: Sized;
}

/// Operations on memslots, and the host's own that needs them. All may sleep.
pub trait Memslots {
    /// Adds many at once, untimed.
    fn populate(&mut self, idle: &mut Idle, slots: impl Iterator<Item = Slot>) -> Result<(), Error>;
    /// Adds one.
    fn create(&mut self, idle: &mut Idle, slot: Slot) -> Result<(), Error>;
    /// Moves one.
    fn move_to(&mut self, idle: &mut Idle, id: SlotId, gfn: Gfn) -> Result<(), Error>;
    /// What slot `id` is.
    fn get(&mut self, idle: &mut Idle, id: SlotId) -> Option<Slot>;
    /// The host takes the pages of `hvas` away, once no vCPU uses them any more.
    fn take_away(&mut self, idle: &mut Idle, hvas: Span<Hva>);
}
