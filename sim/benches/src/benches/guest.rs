//! A vCPU, its guest, and what the hardware under it does on an access.
//!
//! ```text
//! enter ─▶ the access that faulted: a walk, which sets Accessed ─▶ the guest computes ─▶ next page: leave, fault
//! ```
//! A page is missing the first time that it is touched, so the walk that finds it missing is left out. The one that succeeds
//! is not: links lose their Accessed bits to aging passes, and a processor that walks through them has to set them again. It
//! does not walk from the root each time: it remembers the last table of leaves, until it is told to forget.

use super::Work;
use super::machine::Machine;
use crate::host::{SimHost, hva_of};
use crate::world::{Job, compute, guest, now};
use slat::table::formats::Ept4;
use slat::table::{Entry, TableMemory};
use slat::{
    Access, Done, Fault, FaultError, Format, Gfn, Host as _, Idle, Level, Pfn, Span, Translations, Vcpu,
    VcpuId,
};
use std::ptr::NonNull;

/// A vCPU with its guest. On cache lines of its own: it writes to itself with every fault, and they lie side by side.
#[repr(align(128))]
pub struct Guest<'vm> {
    vcpu: Vcpu<'vm, Ept4, SimHost>,
    work: &'vm Work,
    /// Pages that its faults have mapped.
    pub mapped: u64,
    /// When each began and ended, where that is asked for.
    pub faults: Option<Vec<(u64, u64)>>,
    /// Where the access that faulted last goes on.
    pending: Option<Gfn>,
    caches: Caches,
}

/// What the processor remembers of the tables: the last table of leaves, and which frames it is for. No leaves: a guest
/// here does not touch a page again soon.
#[derive(Default)]
struct Caches(Option<(Gfn, Pfn)>);

impl Translations for Caches {
    fn flush_all(&mut self) {
        self.0 = None;
    }

    fn flush(&mut self, _: Span<Gfn>) {
        self.0 = None;
    }
}

impl<'vm> Guest<'vm> {
    /// vCPU `number`, of which there is no other.
    pub fn new(vm: &'vm Machine, number: u32, work: &'vm Work) -> Result<Self, String> {
        let vcpu = vm.vcpu(VcpuId(number)).ok_or_else(|| format!("there is no vCPU {number}"))?;
        Ok(Self { vcpu, work, mapped: 0, faults: None, pending: None, caches: Caches::default() })
    }

    /// From now on, when each fault begins and ends is kept.
    pub fn time_faults(&mut self) {
        self.faults = Some(Vec::new());
    }

    /// Touches `pages`, on a CPU of its own; `then` is the last that is done there.
    pub fn job<'g>(
        &'g mut self,
        pages: impl Iterator<Item = Gfn> + Send + 'g,
        then: impl FnOnce() + Send + 'g,
    ) -> Job<'g> {
        self.mapped = 0;
        Job::vcpu(self.vcpu.id().0, move || {
            let idle = &mut Idle::take().expect("each CPU has one vCPU");
            for gfn in pages {
                // What fails is not counted, and so found by the checks.
                let _ = self.touch(idle, gfn);
            }
            then();
        })
    }

    /// The guest computes, then writes to `gfn`, which it finds missing.
    pub fn touch(&mut self, idle: &mut Idle, gfn: Gfn) -> Result<Done, FaultError> {
        while let Some(missing) = self.inside(idle, self.work.guest_ns) {
            self.fault(idle, missing)?;
        }
        self.fault(idle, gfn)
    }

    fn fault(&mut self, idle: &mut Idle, gfn: Gfn) -> Result<Done, FaultError> {
        let began = self.faults.as_ref().map(|_| now());
        compute(self.work.exit_ns);
        if self.work.host_first {
            // An error is the engine's to find.
            let _ = self.vcpu.vm().host().resolve(idle, hva_of(gfn), Access::Write);
        }
        let done = self.vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write })?;
        self.mapped += u64::from(done == Done::Mapped(Level::K4));
        self.pending = Some(gfn);
        if let (Some(faults), Some(began)) = (&mut self.faults, began) {
            faults.push((began, now()));
        }
        Ok(done)
    }

    /// Enters the guest, where first of all the access goes on that faulted last. Leaves it when it has computed for so long, and
    /// whatever kicks take; or at once for a page that is missing again.
    fn inside(&mut self, idle: &mut Idle, ns: u64) -> Option<Gfn> {
        let host = self.vcpu.vm().host();
        let mut inside = self.vcpu.enter(idle, &mut self.caches);
        if let Some(gfn) = self.pending.take() {
            // SAFETY: in guest mode, and what `caches` remembers is forgotten with every flush that is answered.
            let found = unsafe { walk(host, inside.root(), &mut self.caches, gfn) };
            if !found {
                return Some(gfn);
            }
        }
        let mut left = ns;
        while left > 0 || inside.kicked() {
            if inside.kicked() {
                inside.answer(&mut self.caches);
            }
            left = guest(left, || inside.kicked());
        }
        None
    }
}

/// A store to `gfn`, as hardware walks for it: Accessed in each link that it comes through and in the leaf, Dirty in the leaf.
/// Whether the page is there to be written.
///
/// # Safety
/// The calling vCPU is in guest mode in the VM of these tables, and has not answered a flush since `caches` remembered: so no
/// table that the walk can reach has been freed.
unsafe fn walk(memory: &impl TableMemory, root: Pfn, caches: &mut Caches, gfn: Gfn) -> bool {
    let of_table = gfn.base(Level::M2);
    'from_cache: loop {
        let (mut level, mut table) = match caches.0 {
            Some((first, table)) if first == of_table => (Level::K4, table),
            _ => (Level(Ept4::LEVELS), Ept4::top(root, gfn)),
        };
        loop {
            let page: NonNull<Entry> = memory.at(table).cast();
            // SAFETY: a table page holds 512 entries; it is allocated, says the caller.
            let entry = unsafe { page.add(Ept4::index(gfn, level)).as_ref() };
            let word = entry.load();
            if !Ept4::is_present(word) {
                return false;
            }
            let link = Ept4::is_table(word, level);
            let bits = if link { Ept4::touch_link(level) } else { Ept4::touch(Access::Write) };
            if word.0 & bits != bits && !entry.touch(word, bits) {
                continue 'from_cache;
            }
            if !link {
                return Ept4::read_leaf(word).perms.allows(Access::Write);
            }
            (level, table) = (level.down(), Ept4::pfn(word));
            if level == Level::K4 {
                caches.0 = Some((of_table, table));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::machine::{Parts, builder, idle, with_one_slot};
    use crate::benches::{Policy, Setting};
    use crate::world::Costs;

    /// An aging pass clears the links that it comes through, and passes over those that nobody has come through since.
    #[test]
    fn an_access_that_goes_on_sets_accessed_in_links_and_a_fault_alone_does_not() {
        let (policy, work) = (Policy::None, Work::default());
        let setting =
            &Setting { costs: &Costs::SERVER, vcpus: 1, policy, quick: true, seed: 1, work: work.clone() };
        let parts = Parts::new(setting, 8);
        let all = parts.all();
        let vm = with_one_slot(builder(SimHost::new(all.len(), &work), setting, policy.lock()), all.len())
            .unwrap();
        let (mut guest, mut idle) = (Guest::new(&vm, 0, &work).unwrap(), idle().unwrap());
        let young = |idle: &mut Idle| {
            let mut young = 0;
            vm.lockless(idle).age(all, |seen| young += seen.count());
            young
        };
        guest.touch(&mut idle, Gfn(0)).unwrap();
        guest.touch(&mut idle, Gfn(1)).unwrap();
        assert_eq!(young(&mut idle), 2);
        guest.fault(&mut idle, Gfn(2)).unwrap();
        assert_eq!(young(&mut idle), 0, "no walk has come through the link");
        // What the processor remembers of the link is not looked up again before it is told to forget.
        guest.touch(&mut idle, Gfn(3)).unwrap();
        assert_eq!(young(&mut idle), 0);
        guest.caches.flush_all();
        guest.touch(&mut idle, Gfn(4)).unwrap();
        assert_eq!(young(&mut idle), 3);
    }
}
