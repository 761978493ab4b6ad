//! `Detached`: an invalidation between two callbacks.
//!
//! Some primary MMUs say "begin" in one call and "end" in another, as Linux's MMU notifiers do
//! (`invalidate_range_start`, `invalidate_range_end`). No borrow of the VM can last from one to the other. The host
//! therefore detaches the guard to a value without a lifetime, and keeps it in a map by range or in the event itself.
//!
//! | misuse | result |
//! |---|---|
//! | ended twice | does not compile: the value has moved |
//! | ended in another VM | that VM refuses, and returns the value |
//! | never ended | as with a leaked guard, faults on the range wait for ever; the compiler warns of an unused value |
//! | ended after its VM was dropped | no VM accepts it; dropping it does nothing |

use super::active::UnboundTicket;
use super::begun::{Begun, Range};
use super::invalidation::Invalidation;
use super::reserve::Reserve;
use crate::host::Host;
use crate::slots::publish::Name;
use crate::table::format::Format;
use crate::tlb::debt::Owed;
use crate::vm::Vm;
use crate::why::Why;
use core::cell::Cell;

/// An [`Invalidation`] that borrows nothing: see [`Invalidation::detach`]. Any thread may hold it. Faults on its range
/// wait until it is [attached](Vm::attach) and dropped as a guard. Dropping this value itself never ends it.
#[derive(Debug)]
#[must_use = "faults on the range wait until it is attached to its VM and dropped there"]
pub struct Detached {
    vm: Name,
    ticket: UnboundTicket,
    range: Range,
    why: Why,
    owed: Owed,
}

impl<F: Format, H: Host> Invalidation<'_, F, H> {
    /// Releases the borrow of the VM, for a host whose begin and end are two callbacks. [`Vm::attach`] restores it.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// use slat::{notify::Detached, table::formats::Npt4, *};
    /// use std::{collections::BTreeMap, sync::{Arc, Mutex}};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    ///
    /// /// What the kernel calls when it changes its page tables.
    /// struct Notifier {
    ///     vm: Arc<Vm<Npt4, Identity>>,
    ///     open: Mutex<BTreeMap<u64, Detached>>,
    /// }
    /// impl Notifier {
    ///     fn invalidate_range_start(&self, idle: &mut Idle, hvas: Span<Hva>) {
    ///         let change = self.vm.invalidate(hvas, Why::Unmap).apply(idle).settle();
    ///         self.open.lock().unwrap().insert(hvas.start.0, change.detach());
    ///     }
    ///     fn invalidate_range_end(&self, hvas: Span<Hva>) {
    ///         let begun = self.open.lock().unwrap().remove(&hvas.start.0).expect("begun");
    ///         drop(self.vm.attach(begun).expect("of this VM")); // faults continue
    ///     }
    /// }
    ///
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Arc::new(Vm::<Npt4, _>::builder(Identity).build()?);
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// # let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let fault = Fault { gpa: Gpa(0), access: Access::Read };
    /// vcpu.fault(&mut idle, fault)?;
    /// let (notifier, page) = (Notifier { vm: vm.clone(), open: Mutex::default() }, Span::sized(Hva(1 << 30), 4096));
    /// notifier.invalidate_range_start(&mut idle, page);
    /// assert_eq!(vm.memory().translate(&mut idle, Gfn(0)), None);
    /// notifier.invalidate_range_end(page);
    /// assert_eq!(vcpu.fault(&mut idle, fault)?, Next::Resume(Resume::Mapped(Level::K4)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn detach(self) -> Detached {
        let (Begun { vm, ticket, range, why, reserve, reached: _ }, owed) = self.into_parts();
        reserve.drain(vm);
        let ticket = ticket.unbind();
        Detached { vm: vm.name, ticket, range, why, owed }
    }
}

impl<F: Format, H: Host> Vm<F, H> {
    /// Restores the guard of a [detached](Invalidation::detach) invalidation, for more edits, or to be dropped, which
    /// ends it.
    ///
    /// # Errors
    /// Returns the value unchanged if it belongs to another VM.
    #[allow(clippy::result_large_err, reason = "an error gives the value back, which is rare")]
    pub fn attach(&self, detached: Detached) -> Result<Invalidation<'_, F, H>, Detached> {
        let bound = if detached.vm == self.name { self.active.bind(&detached.ticket) } else { None };
        let Some(ticket) = bound else { return Err(detached) };
        let Detached { range, why, owed, .. } = detached;
        let (reserve, reached) = (Reserve::default(), Cell::new(false));
        let begun = Begun { vm: self, ticket, range, why, reserve, reached };
        Ok(Invalidation::from_parts(begun, owed))
    }
}

#[cfg(all(test, feature = "std", not(any(loom, shuttle))))]
mod tests {
    use super::Detached;
    use crate::notify::Invalidation;
    use crate::table::formats::Npt4;
    use crate::*;
    use std::vec::Vec;

    #[derive(Debug)]
    struct Plain;

    impl Host for Plain {
        fn lookup(&self, _: Hva, _: Access) -> Option<HostPage> {
            Some(HostPage::PLAIN)
        }

        fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
            Ok(HostPage::PLAIN)
        }
    }

    const FIRST: Span<Hva> = Span::new(Hva(0), Hva(4096));
    const WIDE: Span<Hva> = Span::new(Hva(0), Hva(1 << 40));

    fn vm() -> Vm<Npt4, Plain> {
        Vm::<Npt4, _>::builder(Plain).build().unwrap()
    }

    /// Whether faults on the first page wait: asks for a stamp, as a fault does.
    fn waits(vm: &Vm<Npt4, Plain>) -> bool {
        let (epoch, page) = (vm.active.epoch(), crate::notify::active::Page::small(Gfn(0), Hva(0)));
        vm.active.stamp(epoch, page, Level::K4, crate::table::Word::OLDEST).is_err()
    }

    #[test]
    fn a_detached_invalidation_goes_on_until_it_is_attached_and_ends() {
        for hvas in [FIRST, WIDE] {
            let vm = vm();
            // Among the first places, and beyond them.
            let others: Vec<_> =
                (0..100).map(|_| vm.invalidate(Span::new(Hva(1 << 50), Hva(1 << 51)), Why::Clear)).collect();
            for many in [0, 100] {
                let _some = &others[..many];
                assert!(!waits(&vm));
                let detached = vm.invalidate(hvas, Why::Unmap).detach();
                assert!(waits(&vm));
                let attached = vm.attach(detached).unwrap();
                assert!(waits(&vm));
                drop(attached);
                assert!(!waits(&vm));
            }
        }
    }

    #[test]
    fn another_vm_refuses_it_and_a_vm_may_move_meanwhile() {
        fn is_send<T: Send>(_: &T) {}
        let (vm, other) = (vm(), vm());
        let detached: Detached = vm.invalidate(FIRST, Why::Unmap).detach();
        is_send(&detached);
        let detached = other.attach(detached).unwrap_err();
        let moved = std::boxed::Box::new(vm);
        assert!(waits(&moved) && !waits(&other));
        drop(moved.attach(detached).unwrap());
        assert!(!waits(&moved));
        let left: Detached = moved.invalidate(FIRST, Why::Unmap).detach();
        drop(moved);
        assert!(other.attach(left).is_err(), "its VM is gone");
    }

    #[test]
    fn a_debt_that_is_open_is_paid_when_it_is_attached_and_ends() {
        let (mut idle, vm) = (Idle::take().unwrap(), vm());
        vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 8, Hva(0)))).unwrap();
        let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
        let _ = vcpu.fault(&mut idle, Fault { gpa: Gpa(0), access: Access::Read }).unwrap();
        let mut change: Invalidation<'_, _, _> = vm.invalidate(FIRST, Why::Unmap);
        change.edit_all(&mut idle, None);
        let before = vm.stats().flushes.paid;
        let detached = change.detach();
        assert_eq!(vm.stats().flushes.paid, before);
        drop(vm.attach(detached).unwrap());
        assert_eq!(vm.stats().flushes.paid, before + 1);
    }
}
