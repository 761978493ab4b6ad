//! Checks that flushes are needed, and that the engine makes them, on machines whose walkers cache translations.
//!
//! ```text
//! the guest uses a page                  its translation is cached
//! the host takes it away, by the engine  the debt is settled: a flush waits for the vCPU to enter
//! the guest uses it once more            the stale entry is seen: the flush was needed
//! the vCPU enters                        the engine has the machine forget
//! the guest uses it once more            refused: gone
//! ```

use crate::backing::Backing;
use crate::bench::{self, Places, SMALL_REGION};
use crate::judge::Flusher;
use crate::machine_trait::{Answer, Machine};
use crate::modelled_vm::hvas;
use crate::pattern::Pattern;
use crate::random::Random;
use crate::report::Verdict;
use slat::{Access, Fault, Format, Gpa, Idle, Level, Pfn, Reason, Span, Vcpu, Vm};

/// Number of pages for each kind of removal.
const PAGES: u64 = 16;

/// The kinds of removal of a page or a permission, and the access that is refused afterwards.
const WAYS: [(Reason, Access); 4] = [
    (Reason::Unmap, Access::Read),
    (Reason::Migrate, Access::Fetch),
    (Reason::Protect, Access::Write),
    // Not a reason of the host: to log writes.
    (Reason::SoftDirty, Access::Write),
];

/// Counts stale entries that are used without a flush, and gone after it; prints `STALE …`.
pub fn stale<F: Format, M: Machine>(machine: &mut M, idle: &mut Idle, seed: u64) -> Verdict {
    let pattern = Pattern::fill(machine);
    let mut verdict = Verdict::default();
    let (mut seen, mut gone) = (0, 0);
    let all = PAGES * WAYS.len() as u64;
    machine.flush();
    if let Some(places) = Places::find::<F, M>(machine)
        && let Some(vm) = bench::build::<F, M>(machine, idle, (places, pattern))
        && let Some(mut vcpu) = bench::vcpu(machine, &vm, idle)
    {
        let mut random = Random::new(seed);
        for (way, (why, access)) in (0..).zip(WAYS) {
            for page in way * PAGES..(way + 1) * PAGES {
                let gpa = (places.of(Level::K4) + page).gpa() + offset(access, &mut random);
                verdict.lookups += 3;
                let took = Took { gpa, access, page, why, pattern };
                if let Some((was_seen, was_gone)) = took.try_on(machine, idle, &vm, &mut vcpu) {
                    (seen, gone) = (seen + u64::from(was_seen), gone + u64::from(was_gone));
                }
            }
        }
    }
    let (format, name) = (F::NAME, machine.name());
    machine.log(format_args!(
        "STALE {format} {name}: seen without the flush {seen} of {all}, gone with it {gone} of {all}"
    ));
    verdict.differences = all - gone + if M::SHOWS_STALE { all - seen } else { 0 };
    verdict
}

fn offset(access: Access, random: &mut Random) -> u64 {
    if access == Access::Fetch { crate::CODE_OFFSET } else { random.below(crate::CODE_OFFSET / 8) * 8 }
}

/// One page with one kind of removal.
struct Took {
    gpa: Gpa,
    access: Access,
    page: u64,
    why: Reason,
    pattern: Pattern,
}

impl Took {
    /// Returns whether the stale entry was used, and whether it was gone after a flush. `None` if the first access
    /// failed.
    fn try_on<F: Format, M: Machine>(
        &self,
        machine: &mut M,
        idle: &mut Idle,
        vm: &Vm<F, Backing>,
        vcpu: &mut Vcpu<'_, F, Backing>,
    ) -> Option<(bool, bool)> {
        let fault = Fault { gpa: self.gpa, access: self.access };
        // Map with all permissions, so that only the change removes some.
        let _ = vcpu.fault(idle, Fault { access: Access::Write, ..fault }).ok()?;
        let _ = vcpu.fault(idle, fault).ok()?;
        let root = vcpu.enter(idle, &mut Flusher(machine)).root();
        let frame = self.pattern.frames().start + self.page;
        let used = self.goes_through(machine, root, frame);
        if self.why == Reason::SoftDirty {
            vm.memory().write_protect(idle, Span::sized(self.gpa.gfn(), 1)).settle();
        } else {
            let page = SMALL_REGION * Level::M2.pages() + self.page;
            let _change = vm.invalidate(hvas(page, 1), self.why).apply(idle).settle();
            // The host's new page: none, another frame, or the same one read-only.
            let elsewhere = frame + 2 * Level::M2.pages();
            vm.host().set(
                page,
                match self.why {
                    Reason::Migrate => Some((elsewhere, true)),
                    Reason::Protect => Some((frame, false)),
                    _ => None,
                },
            );
        }
        // Through the same root, like a vCPU that stays in the guest.
        let seen = self.goes_through(machine, root, frame);
        let root = vcpu.enter(idle, &mut Flusher(machine)).root();
        let gone = !self.goes_through(machine, root, frame);
        if self.why == Reason::Migrate {
            let _ = vcpu.fault(idle, fault).ok()?;
            let moved = self.goes_through(machine, root, frame + 2 * Level::M2.pages());
            return used.then_some((seen, gone && moved));
        }
        used.then_some((seen, gone))
    }

    /// Returns whether the access reaches `frame`.
    fn goes_through<M: Machine>(&self, machine: &mut M, root: Pfn, frame: Pfn) -> bool {
        let address = frame.address() + self.gpa.offset();
        match bench::access(machine, self.pattern, root, (self.gpa, self.access), Some(address)) {
            Answer::Through { value } if self.access == Access::Fetch => value & !0xfff == frame.address(),
            Answer::Through { value } => value == address,
            Answer::Fault { .. } => false,
        }
    }
}
