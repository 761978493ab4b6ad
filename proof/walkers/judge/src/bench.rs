//! A VM with one page of each size, for `stale` and `mutate`.

use crate::backing::{Backing, FIXED, GIB, REGIONS, SMALL};
use crate::machine_trait::{Answer, Machine};
use crate::pattern::Pattern;
use slat::{
    Access, Fault, Format, Gfn, Gpa, Idle, Level, PAGE_SHIFT, Pfn, Slot, SlotId, Span, Vcpu, VcpuId, Vm,
};

/// The region whose pages are small.
pub(crate) const SMALL_REGION: u64 = 0;
/// The region that is one huge page.
const HUGE_REGION: u64 = 1;

/// Guest addresses of a page of each size: multiples of 1 GiB, away from the guest's own frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    gfns: [Gfn; 3],
}

impl Places {
    /// Finds the addresses. `None` if the guest's own frames leave no room.
    pub(crate) fn find<F: Format, M: Machine>(machine: &M) -> Option<Self> {
        let bits = F::FRAME_BITS.min(machine.gpa_bits() - PAGE_SHIFT);
        let is_free = |gfn: &Gfn| {
            let gib = Span::sized(*gfn, Level::G1.pages());
            !machine.fixed().iter().any(|own| Span::sized(own.gfn, own.pages).overlaps(&gib))
        };
        let mut free =
            (0..1 << (bits - Level::G1.shift())).map(|gib| Gfn(gib << Level::G1.shift())).filter(is_free);
        Some(Self { gfns: [free.next()?, free.next()?, free.next()?] })
    }

    /// Returns the first frame of the page of this size.
    pub(crate) fn of(self, level: Level) -> Gfn {
        self.gfns[usize::from(level.number()) - 1]
    }
}

/// Builds a VM over `host` with a memslot for each of `places`, and for the guest's own frames.
pub(crate) fn build<F: Format, M: Machine>(
    machine: &M,
    idle: &mut Idle,
    (places, pattern): (Places, Pattern),
) -> Option<Vm<F, Backing>> {
    let host = Backing::new(machine.ram(), false);
    let frames = pattern.frames();
    for page in 0..Level::M2.pages() {
        host.set(SMALL_REGION * Level::M2.pages() + page, Some((frames.start + page, true)));
    }
    host.set_huge(HUGE_REGION, frames.start + Level::M2.pages(), true);
    let vm = Vm::<F, _>::builder(host).address_bits(machine.gpa_bits()).build().ok()?;
    const { assert!(REGIONS > HUGE_REGION) };
    let slots = [
        Slot::new(
            SlotId(0),
            places.of(Level::K4),
            Level::M2.pages(),
            SMALL + SMALL_REGION * Level::M2.bytes(),
        ),
        Slot::new(
            SlotId(1),
            places.of(Level::M2),
            Level::M2.pages(),
            SMALL + HUGE_REGION * Level::M2.bytes(),
        ),
        Slot::new(SlotId(2), places.of(Level::G1), Level::G1.pages(), GIB),
    ];
    let own = machine.fixed().iter().zip(3..);
    let own = own.map(|(own, id)| Slot::new(SlotId(id), own.gfn, own.pages, FIXED + own.pfn.address()));
    let all = slots.into_iter().chain(own);
    vm.memory()
        .commit(idle, |tx| {
            for slot in all {
                tx.create(slot)?;
            }
            Ok(())
        })
        .ok()?;
    Some(vm)
}

/// Makes the only vCPU, and maps the guest's own frames.
pub(crate) fn vcpu<'vm, F: Format, M: Machine>(
    machine: &M,
    vm: &'vm Vm<F, Backing>,
    idle: &mut Idle,
) -> Option<Vcpu<'vm, F, Backing>> {
    let mut vcpu = vm.vcpu(VcpuId(0))?;
    for own in machine.fixed() {
        for page in 0..own.pages {
            let gpa = (own.gfn + page).gpa();
            let _ = vcpu.fault(idle, Fault { gpa, access: Access::Write }).ok()?;
            let _ = vcpu.fault(idle, Fault { gpa, access: Access::Fetch }).ok()?;
        }
    }
    Some(vcpu)
}

/// Makes one access. Restores the pattern in frame `pfn` after a store.
pub(crate) fn access<M: Machine>(
    machine: &mut M,
    pattern: Pattern,
    root: Pfn,
    (gpa, access): (Gpa, Access),
    stored_at: Option<u64>,
) -> Answer {
    let value = !gpa.0;
    let answer = machine.access(root, gpa, access, value);
    let Some(address) = stored_at.filter(|_| access == Access::Write) else { return answer };
    let stored = pattern.load(address);
    pattern.store(address, address);
    match (answer, stored) {
        (Answer::Through { .. }, Some(stored)) if stored == value => Answer::Through { value: address },
        (Answer::Through { .. }, _) => Answer::Through { value: 0 },
        _ => answer,
    }
}
