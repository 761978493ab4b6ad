//! Steps of memslots, dirty logs, permissions, sizes and age; and every kind of look-up.

use super::step::TWO;
use super::step::{End, What};
use super::world::World;
use slat::GuestSpace;
use slat::{DirtyError, Format, Gfn, Idle, SecondaryMmu, SlotError, SpaceId, Span, VcpuId, Vm};
use std::mem::forget;

use super::panicking_host::Crafty;

type Slots<'vm, F> = GuestSpace<'vm, F, Crafty<F>>;

impl<'vm, F: Format> World<'vm, F> {
    fn slots(&self, vm: usize, space: usize) -> Slots<'vm, F> {
        self.vms[vm].vm.space(SpaceId(space as u8)).expect("there are two")
    }

    /// Takes the rest of the steps. Most of them may wait for a grace period.
    pub(super) fn take_about_memory(&mut self, what: &What) {
        if let What::Look { vm, space, gfn, hint, gfns, hvas } = *what {
            return self.look((vm, space), gfn, hint, (gfns, hvas));
        }
        let (at, idle, fuse) = (what.vm(), &mut self.idle, self.fuse);
        if self.vms.get(at).is_none_or(|state| state.sections > 0) {
            return;
        }
        let vm = self.vms[at].vm;
        let slots = |space: usize| vm.space(SpaceId(space as u8)).expect("there are two");
        match *what {
            What::Create { space, slot, .. } => drop(slots(space).commit(idle, |tx| {
                fuse.burn();
                tx.create(slot)?;
                fuse.burn();
                Ok::<_, SlotError>(())
            })),
            What::Delete { space, id, .. } => drop(slots(space).commit(idle, |tx| {
                let old = tx.delete(id)?;
                fuse.burn();
                Ok(old)
            })),
            What::Move { space, id, gfn, .. } => drop(slots(space).commit(idle, |tx| {
                tx.move_to(id, gfn)?;
                fuse.burn();
                tx.move_to(id, gfn)
            })),
            What::Log { space, id, on, .. } => drop(slots(space).commit(idle, |tx| tx.set_log_dirty(id, on))),
            What::Set { space, region, .. } => drop(slots(space).set(idle, region)),
            What::Harvest { space, kind, id, end, .. } => {
                let harvest = match kind {
                    0 => slots(space).harvest(idle, id),
                    1 => slots(space).harvest_all(idle),
                    _ => vm.harvest_ring(idle, VcpuId(id.0)),
                };
                let Ok(harvest) = harvest else { return };
                assert_eq!(harvest.iter().count() as u64, harvest.pages());
                match end {
                    End::Proper => harvest.commit(),
                    End::Dropped => drop(harvest),
                    End::Leaked => forget(harvest),
                    End::Kept if self.harvests.len() < 4 => self.harvests.push(harvest),
                    End::Kept => harvest.give_back(),
                }
            }
            What::EndHarvest { end } => {
                let Some(harvest) = self.harvests.pop() else { return };
                match end {
                    End::Proper => harvest.commit(),
                    End::Leaked => forget(harvest),
                    End::Dropped | End::Kept => drop(harvest),
                }
            }
            What::MarkDirty { space, gfns, hvas, .. } => {
                slots(space).mark_dirty(gfns);
                vm.mark_dirty(hvas);
            }
            What::ClearDirty { space, id, first, pages, words, .. } => {
                let _ = slots(space).clear_dirty(idle, id, first, pages, &vec![u64::MAX; words]);
            }
            What::DirtyBits { space, id, words, .. } => {
                let _ = slots(space).dirty_bits(idle, id, &mut vec![0; words]);
                let _: Result<(), DirtyError> = slots(space).dirty(idle, id, |_| fuse.burn());
            }
            What::WriteProtect { gfns, in_a_walk, end, .. } => {
                let mut walk;
                let debt = if in_a_walk {
                    walk = vm.memory().shared(idle);
                    walk.write_protect(gfns)
                } else {
                    vm.memory().write_protect(idle, gfns)
                };
                match end {
                    // A permission in a TLB is not checked here.
                    End::Leaked => forget(debt),
                    End::Proper => drop(debt.settle()),
                    End::Dropped | End::Kept => drop(debt),
                }
            }
            What::Split { gfns, to, .. } => drop(vm.memory().split(idle, gfns, to)),
            What::Recover { gfns, .. } => drop(vm.memory().recover(idle, gfns)),
            What::Age { gfns, hvas, young, .. } => {
                vm.memory().lockless(idle).age(gfns, |_| fuse.burn());
                vm.age(idle, hvas, &mut |_| fuse.burn());
                let _ = (vm.young(idle, hvas, young), vm.memory().lockless(idle).is_young(gfns));
                vm.forget(idle, hvas);
            }
            _ => {}
        }
    }

    /// Does every kind of look-up. A hint may come from any VM and address space.
    fn look(
        &mut self,
        (at, space): (usize, usize),
        gfn: Gfn,
        hint: usize,
        (gfns, hvas): (Span<Gfn>, Span<slat::Hva>),
    ) {
        let (vm, slots) = (self.vms[at].vm, self.slots(at, space));
        let snapshot = slots.snapshot(&mut self.idle);
        let found = snapshot.find(gfn);
        for _ in 0..2 {
            assert_eq!(snapshot.find_with(&self.hints[hint], gfn), found, "by a hint of any VM");
        }
        assert_eq!(snapshot.iter().count(), snapshot.len());
        assert_eq!(
            found,
            snapshot
                .range(Span::sized(gfn.min(Gfn(u64::MAX - 1)), 1))
                .next()
                .filter(|slot| slot.gfns.contains(gfn))
        );
        snapshot.over_hvas(hvas, |_| self.fuse.burn());
        let _ = (snapshot.range(gfns).count(), snapshot.generation(), slots.generation(), slots.len());
        drop(snapshot);
        let outside = SpaceId(TWO as u8);
        assert!(vm.space(outside).is_none());
        let _ = (vm.memory().translate(&mut self.idle, gfn), vm.vcpu(VcpuId(u32::MAX)).is_none());
        let _ = (vm.stats(), vm.table_pages(&mut self.idle));
        looked_through(vm, &mut self.idle, gfns, || self.fuse.burn());
    }
}

/// Walks with a visitor that may panic.
fn looked_through<F: Format>(
    vm: &Vm<F, Crafty<F>>,
    idle: &mut Idle,
    gfns: Span<Gfn>,
    mut visit: impl FnMut(),
) {
    vm.memory().shared(idle).for_each(gfns, |_| visit());
    let _ = vm.memory().translate(idle, gfns.start);
}

impl What {
    /// Returns the VM of a step that is taken here.
    fn vm(&self) -> usize {
        match *self {
            Self::Create { vm, .. }
            | Self::Delete { vm, .. }
            | Self::Move { vm, .. }
            | Self::Log { vm, .. }
            | Self::Set { vm, .. }
            | Self::Harvest { vm, .. }
            | Self::MarkDirty { vm, .. }
            | Self::ClearDirty { vm, .. }
            | Self::DirtyBits { vm, .. }
            | Self::WriteProtect { vm, .. }
            | Self::Split { vm, .. }
            | Self::Recover { vm, .. }
            | Self::Age { vm, .. } => vm,
            _ => 0,
        }
    }
}
