//! A walk as hardware makes it: [`Vcpu::access`], for a guest whose processor is software.
//!
//! | entry | the walk |
//! |---|---|
//! | absent or withdrawn | a fault |
//! | link | sets A, if links of the format have it, and follows it |
//! | leaf without the permission | a fault |
//! | leaf | sets A; for a store D, too |
//!
//! Each bit is set by one CAS from the word that the walk has read, as hardware sets it: an entry that changed meanwhile
//! makes the walk begin again.

use super::Fault;
use crate::sync::mode::Lockless;
use crate::table::{Entry, Kind, Node};
use crate::{Access, Format, Gpa, Host, Idle, Mapping, Span, Vcpu, Walk, Word};

impl<F: Format, H: Host> Vcpu<'_, F, H> {
    /// Translates one access of the guest as the hardware's walk does on a TLB miss, for a guest that runs in software.
    /// Sets A in the links and in the leaf, and D in the leaf for a store, if the format has them. So aging and
    /// [`Track::DirtyBits`](crate::Track::DirtyBits) see what the guest does.
    ///
    /// Returns the mapping: frame `gfns.start + n` of the guest, of 4 KiB, is frame `leaf.pfn + n` of the host. The
    /// address is one of the vCPU's address space, in bytes. The walk asks no host, maps nothing, and never sleeps.
    /// [`GuestSpace::translate`](crate::GuestSpace::translate) sets no bits: it is for tools that look at a table.
    ///
    /// # Errors
    /// The fault, if no leaf allows the access: pass it to [`fault`](Self::fault), then repeat the access.
    ///
    /// # Use of the mapping
    /// The host may take the page back at any time. Keep the mapping in a TLB that [`Translations`](crate::Translations)
    /// flushes, and access memory through it only between [`enter`](Self::enter) and the end of that stay, before the
    /// next answer: a flush since this call is carried out by `enter`. Use it for loads and fetches as far as
    /// [`leaf.perms`](crate::Leaf::perms) allows, and for stores only if [`leaf.dirty`](crate::Leaf::dirty) is set
    /// where the format has D. Otherwise the first store must call this again, to set D.
    ///
    /// `Identity` is one of the [hosts of the examples](crate::host#hosts-of-the-examples).
    ///
    /// ```
    /// # use slat::{*, table::formats::Ept4};
    /// # struct Identity;
    /// # impl Host for Identity {
    /// #     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
    /// #         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
    /// #     }
    /// # }
    /// /// A TLB of one entry.
    /// struct SoftTlb(Option<Mapping>);
    /// impl Translations for SoftTlb {
    ///     fn flush_all(&mut self) {
    ///         self.0 = None;
    ///     }
    ///     fn flush(&mut self, _: Span<Gfn>) {
    ///         self.0 = None;
    ///     }
    /// }
    /// # let mut idle = Idle::take().unwrap();
    /// # let vm = Vm::<Ept4, _>::builder(Identity).build()?;
    /// # vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30))))?;
    /// let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
    /// let mut tlb = SoftTlb(None);
    /// let (gpa, access) = (Gpa(0x5123), Access::Write); // the guest stores, and misses the TLB
    /// let mapping = loop {
    ///     match vcpu.access(&mut idle, gpa, access) {
    ///         Ok(mapping) => break mapping,
    ///         Err(fault) => match vcpu.fault(&mut idle, fault)? {
    ///             Next::Resume(_) => {} // walk again
    ///             other => panic!("emulate a device, wait for the page, or harvest the ring: {other:?}"),
    ///         },
    ///     }
    /// };
    /// tlb.0 = Some(mapping);
    /// let guest = vcpu.enter(&mut idle, &mut tlb).poll(); // empties `tlb` if the page has been taken back since
    /// // … if `tlb` still has the mapping, the guest accesses this frame …
    /// let frame = mapping.leaf.pfn + (gpa.gfn().0 - mapping.gfns.start.0);
    /// # assert_eq!((frame, mapping.leaf.dirty), (Pfn((1 << 18) + 5), true));
    /// drop(guest);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn access(&mut self, idle: &mut Idle, gpa: Gpa, access: Access) -> Result<Mapping, Fault> {
        let seat = self.awake();
        let walk = Walk::<F, H, Lockless>::on_seat(self.vm, self.space, idle, seat);
        loop {
            if let Ok(found) = walk.access(gpa, access) {
                return found.ok_or(Fault { gpa, access });
            }
        }
    }
}

/// An entry has changed since the walk read it.
struct Changed;

impl<F: Format, H: Host> Walk<'_, F, H, Lockless> {
    /// Makes one attempt. `None` is a fault.
    fn access(&self, gpa: Gpa, access: Access) -> Result<Option<Mapping>, Changed> {
        let gfn = gpa.gfn();
        if gfn.0 >> F::FRAME_BITS != 0 {
            return Ok(None);
        }
        // SAFETY: as in `descend`.
        let mut node = unsafe { self.space.radix.top(self.vm.tables(), gfn) };
        let mut level = F::ROOT_LEVEL;
        loop {
            // SAFETY: as in `descend`.
            let entry = unsafe { &node.entries()[F::index(gfn, level)] };
            let word = entry.load();
            match word.kind::<F>(level) {
                Kind::Table(pfn) => {
                    touch(entry, word, F::touch_link(level))?;
                    // SAFETY: a link of this table, read in this section.
                    node = unsafe { Node::follow(self.vm.tables(), pfn) };
                    level = level.down();
                }
                Kind::Leaf if F::read_leaf(word).perms.allows(access) => {
                    let leaf = F::read_leaf(touch(entry, word, F::touch(access))?);
                    let gfns = Span::sized(gfn.base(level), level.pages());
                    return Ok(Some(Mapping { gfns, level, leaf }));
                }
                _ => return Ok(None),
            }
        }
    }
}

/// Sets those of `bits` that the word lacks. Returns the word with the bits.
fn touch(entry: &Entry, word: Word, bits: u64) -> Result<Word, Changed> {
    let is_done = word.0 & bits == bits || entry.touch(word, bits);
    if is_done { Ok(Word(word.0 | bits)) } else { Err(Changed) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
