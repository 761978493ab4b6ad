//! A vCPU whose guest touches each page once.
//!
//! ```text
//! enter ─▶ the access that faulted: a walk, which sets Accessed ─▶ the guest computes ─▶ next page: leave, fault
//! ```
//! A page is missing the first time that it is touched, so the walk that finds it missing is left out. The one that succeeds
//! is not: links lose their Accessed bits to aging passes, and a processor that walks through them has to set them again. It
//! does not walk from the root each time: it remembers the last table of leaves, until it is told to forget. No leaves: this
//! guest does not touch a page again soon (`program` has one that does).

use crate::parts::concurrent_latency::TimedAction;
use crate::parts::processor::{Tables, walk};
use crate::parts::setting::Work;
use crate::parts::sim_host::{SimHost, hva_of};
use crate::parts::vm_setup::{SimVm, vcpu};
use crate::world::{Job, compute, guest};
use slat::table::formats::Ept4;
use slat::{Access, Fault, FaultError, Format, Gfn, Host, Idle, Next, Resume, Span, Vcpu, VcpuId, Vm};

/// A vCPU that touches pages, with a guest or without one.
pub trait Touch: Send {
    /// Which one it is.
    fn id(&self) -> VcpuId;
    /// On threads: the CPU that it is tied to, where that is not the one of its place among the jobs.
    fn cpu(&self) -> Option<usize> {
        None
    }
    /// Touches a page that is missing. An access that fails is not counted, so the checks find it.
    fn touched(&mut self, idle: &mut Idle, gfn: Gfn);
    /// Faults since the last job began, and those that mapped a page.
    fn counts(&mut self) -> &mut [u64; 2];

    /// Touches pages, one after the other.
    #[inline]
    fn touched_each(&mut self, idle: &mut Idle, pages: impl Iterator<Item = Gfn>) {
        for gfn in pages {
            self.touched(idle, gfn);
        }
    }

    /// Touches `pages`, on a CPU of its own; `then` is the last that is done there.
    fn job<'g>(
        &'g mut self,
        pages: impl Iterator<Item = Gfn> + Send + 'g,
        then: impl FnOnce() + Send + 'g,
    ) -> Job<'g>
    where
        Self: Sized,
    {
        *self.counts() = [0; 2];
        let (id, cpu) = (self.id(), self.cpu());
        let job = Job::vcpu(id.0, move || {
            let idle = &mut Idle::take().expect("each CPU has one vCPU");
            self.touched_each(idle, pages);
            then();
        });
        Job { cpu, ..job }
    }
}

/// A vCPU without a guest, which faults and does nothing in between: what is timed is the engine, with any host. On cache lines of
/// its own, as [`Guest`].
#[repr(align(128))]
pub struct Bare<'vm, F: Format, H: Host> {
    vcpu: Vcpu<'vm, F, H>,
    counts: [u64; 2],
    /// The computation before each fault, in nanoseconds.
    pub before_ns: u64,
}

impl<'vm, F: Format, H: Host> Bare<'vm, F, H> {
    /// vCPU `number`, of which there is no other.
    pub fn new(vm: &'vm Vm<F, H>, number: u32) -> Result<Self, String> {
        Ok(Self { vcpu: vcpu(vm, number)?, counts: [0; 2], before_ns: 0 })
    }
}

impl<F: Format, H: Host> Touch for Bare<'_, F, H> {
    fn id(&self) -> VcpuId {
        self.vcpu.id()
    }

    #[inline]
    fn touched(&mut self, idle: &mut Idle, gfn: Gfn) {
        if self.before_ns > 0 {
            compute(self.before_ns);
        }
        let done = self.vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write });
        self.counts[0] += 1;
        self.counts[1] += u64::from(matches!(done, Ok(Next::Resume(Resume::Mapped(_)))));
    }

    fn counts(&mut self) -> &mut [u64; 2] {
        &mut self.counts
    }
}

impl Touch for Guest<'_> {
    fn id(&self) -> VcpuId {
        self.vcpu.id()
    }

    fn touched(&mut self, idle: &mut Idle, gfn: Gfn) {
        let _ = self.touch(idle, gfn);
    }

    fn counts(&mut self) -> &mut [u64; 2] {
        &mut self.counts
    }
}

/// A vCPU with its guest. On cache lines of its own: it writes to itself with every fault, and they lie side by side.
#[repr(align(128))]
pub struct Guest<'vm> {
    vcpu: Vcpu<'vm, Ept4, SimHost>,
    work: &'vm Work,
    /// Faults that it has made, and those that mapped a page, no larger than the host's are.
    counts: [u64; 2],
    /// Where the access that faulted last goes on.
    pending: Option<Gfn>,
    tables: Tables,
}

impl<'vm> Guest<'vm> {
    /// vCPU `number`, of which there is no other.
    pub fn new(vm: &'vm SimVm, number: u32, work: &'vm Work) -> Result<Self, String> {
        let (vcpu, tables) = (vcpu(vm, number)?, Tables::default());
        Ok(Self { vcpu, work, counts: [0; 2], pending: None, tables })
    }

    /// Faults that mapped a page since its job began.
    pub fn mapped(&self) -> u64 {
        self.counts[1]
    }

    /// The guest computes, then writes to `gfn`, which it finds missing.
    pub fn touch(&mut self, idle: &mut Idle, gfn: Gfn) -> Result<Next, FaultError> {
        while let Some(missing) = self.inside(idle, self.work.guest_ns) {
            let _ = self.fault(idle, missing)?;
        }
        self.fault(idle, gfn)
    }

    fn fault(&mut self, idle: &mut Idle, gfn: Gfn) -> Result<Next, FaultError> {
        self.counts[0] += 1;
        compute(self.work.exit_ns);
        if self.work.host_first {
            // An error is the engine's to find.
            let _ = self.vcpu.vm().host().resolve(idle, hva_of(gfn), Access::Write);
        }
        let done = self.vcpu.fault(idle, Fault { gpa: gfn.gpa(), access: Access::Write })?;
        self.counts[1] +=
            u64::from(matches!(done, Next::Resume(Resume::Mapped(level)) if level <= self.work.host_page));
        self.pending = Some(gfn);
        Ok(done)
    }

    /// Enters the guest, where first of all the access goes on that faulted last. Leaves it when it has computed for so long, and
    /// whatever kicks take; or at once for a page that is missing again.
    fn inside(&mut self, idle: &mut Idle, ns: u64) -> Option<Gfn> {
        let memory = self.vcpu.vm().tables();
        let mut inside = self.vcpu.enter(idle, &mut self.tables).poll();
        if let Some(gfn) = self.pending.take() {
            // SAFETY: in guest mode, and what `tables` remembers is forgotten with every flush that is answered.
            let found = unsafe { walk(memory, inside.root(), &mut self.tables, (gfn, Access::Write)) };
            if found.is_err() {
                return Some(gfn);
            }
        }
        let mut left = ns;
        while left > 0 || inside.kicked() {
            if inside.kicked() {
                inside.answer(&mut self.tables);
            }
            left = guest(left, || inside.kicked());
        }
        None
    }
}

/// A vCPU whose guest touches one page of a part after the other. The timed part begins where it leaves the guest.
pub struct Touching<'vm> {
    guest: Guest<'vm>,
    left: Span<Gfn>,
    /// A page that is missing again.
    again: Option<Gfn>,
}

impl<'vm> Touching<'vm> {
    /// `guest`, in frames that no other one uses.
    pub fn new(guest: Guest<'vm>, part: Span<Gfn>) -> Self {
        Self { guest, left: part, again: None }
    }
}

impl TimedAction for Touching<'_> {
    fn vcpu(&self) -> Option<VcpuId> {
        Some(self.guest.id())
    }

    /// In virtual time no work lasts so long; a starved machine's may.
    fn is_done(&self) -> bool {
        self.left.is_empty()
    }

    fn prepare(&mut self, idle: &mut Idle) {
        self.again = self.guest.inside(idle, self.guest.work.guest_ns);
    }

    fn act(&mut self, idle: &mut Idle) -> bool {
        let gfn = self.again.unwrap_or(self.left.start);
        self.left.start = self.left.start + u64::from(self.again.is_none());
        matches!(self.guest.fault(idle, gfn), Ok(Next::Resume(Resume::Mapped(_))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::setting::NONE;
    use crate::parts::vcpu_parts::Parts;
    use crate::parts::vm_setup::{idle, sim_vm};

    use crate::parts::setting::Setting;
    use crate::parts::test_settings::setting;
    use slat::Translations as _;

    /// An aging pass clears the links that it comes through, and passes over those that no walk has come through since.
    #[test]
    fn an_access_that_goes_on_sets_accessed_in_links_and_a_fault_alone_does_not() {
        let setting = &Setting { vcpus: 1, ..setting(NONE) };
        let work = &setting.work;
        let parts = Parts::new(setting, 8);
        let all = parts.all();
        let vm = sim_vm(SimHost::new(all.len(), work), setting, all.len()).unwrap();
        let (mut guest, mut idle) = (Guest::new(&vm, 0, work).unwrap(), idle().unwrap());
        let young = |idle: &mut Idle| {
            let mut young = 0;
            vm.memory().lockless(idle).age(all, |seen| young += seen.count());
            young
        };
        let _ = guest.touch(&mut idle, Gfn(0)).unwrap();
        let _ = guest.touch(&mut idle, Gfn(1)).unwrap();
        assert_eq!(young(&mut idle), 2);
        let _ = guest.fault(&mut idle, Gfn(2)).unwrap();
        assert_eq!(young(&mut idle), 0, "no walk has come through the link");
        // The processor does not look up the cached link again before it is told to forget.
        let _ = guest.touch(&mut idle, Gfn(3)).unwrap();
        assert_eq!(young(&mut idle), 0);
        guest.tables.flush_all();
        let _ = guest.touch(&mut idle, Gfn(4)).unwrap();
        assert_eq!(young(&mut idle), 3);
    }
}
