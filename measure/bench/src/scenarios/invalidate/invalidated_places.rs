//! Which frames vCPUs fault in, and which ones invalidators invalidate.

use crate::scenarios::prelude::*;
use core::sync::atomic::AtomicU64;

/// Frames of a leaf table.
pub const TABLE: u64 = Level::M2.pages();
/// Tables from one invalidator's to the next one's, so that no two have their links in one cache line.
const APART: u64 = 8;

/// The frames of a run.
pub struct Layout {
    /// Frames of a page of the host.
    pub page: u64,
    /// Pages of the host that each vCPU faults in.
    pub pages: u64,
    /// Where each vCPU's begin.
    pub starts: Vec<Gfn>,
    /// The first invalidator's place.
    place: Gfn,
}

impl Layout {
    /// With so many pages of the host for each vCPU.
    pub fn new(setting: &Setting<'_>, pages: u64) -> Self {
        let level = setting.work.host_page;
        // Each vCPU has leaf tables of its own; but 1024 vCPUs have 256 TiB.
        let (stride, lots) = match level {
            Level::G1 => (pages + 1, 1),
            _ => (pages.next_multiple_of(TABLE) + TABLE, TABLE - 1),
        };
        let page = level.pages();
        let start = |vcpu| Gfn((vcpu * stride + 1 + setting.lot(vcpu) % lots) * page);
        let end = u64::from(setting.vcpus) * stride * page;
        let place = match setting.work.over {
            Over::Near => end.next_multiple_of(TABLE),
            _ => end.next_multiple_of(Level::G1.pages()),
        };
        let starts = (0..u64::from(setting.vcpus)).map(start).collect();
        Self { page, pages, starts, place: Gfn(place) }
    }

    /// The 2 MiB of an invalidator.
    pub fn place(&self, invalidator: u32) -> Span<Gfn> {
        Span::sized(self.place + u64::from(invalidator) * APART * TABLE, TABLE)
    }

    /// Frames of the whole, with so many invalidators.
    pub fn end(&self, invalidators: u32) -> u64 {
        self.place(invalidators).end.0.next_multiple_of(self.page)
    }

    /// The first frames of a vCPU's pages.
    pub fn pages(&self, start: Gfn) -> impl Iterator<Item = Gfn> + use<> {
        let page = self.page;
        (0..self.pages).map(move |nth| start + nth * page)
    }
}

/// Each vCPU touches the page before its part, at no cost.
pub fn warm(vcpus: &mut [impl Touch], layout: &Layout) -> Result<()> {
    let mut idle = idle()?;
    for (vcpu, start) in vcpus.iter_mut().zip(&layout.starts) {
        vcpu.touched(&mut idle, Gfn(start.0 - layout.page));
    }
    Ok(())
}

/// Maps every page of `place`, and returns how many that were.
fn fill<F: Format, H: Host>(vcpu: &mut Vcpu<'_, F, H>, idle: &mut Idle, place: Span<Gfn>) -> u64 {
    let fault = |gfn: Gfn| Fault { gpa: gfn.gpa(), access: Access::Write };
    // A failure is not counted, and so found by the checks.
    let is_mapped = |&gfn: &Gfn| matches!(vcpu.fault(idle, fault(gfn)), Ok(Next::Resume(Resume::Mapped(_))));
    gfns(place).filter(is_mapped).count() as u64
}

/// Makes `place` a leaf table without leaves, where the host's pages are small; where they are large, empty. How many pages were
/// there before.
pub fn empty<F: Format, H: Host>(vm: &Vm<F, H>, place: Span<Gfn>, host_page: Level) -> Result<u64> {
    let mut idle = idle()?;
    let mapped = fill(&mut vcpu(vm, 0)?, &mut idle, place);
    let page = Span::sized(place.start.base(host_page), host_page.pages());
    drop(vm.invalidate(hvas_of(page.hull(&place)), Reason::Clear).apply(&mut idle).settle());
    Ok(mapped)
}

/// A thread that invalidates.
pub struct Invalidator<'r, F: Format, H: Host> {
    pub vm: &'r Vm<F, H>,
    pub setting: &'r Setting<'r>,
    pub number: u32,
    pub place: Span<Gfn>,
    /// Where each vCPU is.
    pub at: &'r [AtomicU64],
}

impl<'r, F: Format, H: Host> Invalidator<'r, F, H> {
    /// Invalidates until it may not go on, and computes in between; how often.
    pub fn run(&self, goes_on: impl Fn(u64) -> bool) -> u64 {
        let mut idle = Idle::take().expect("a CPU of its own");
        let mut vcpu = self.vcpu();
        let mut made = 0;
        loop {
            self.invalidate(&mut idle, vcpu.as_mut(), made);
            made += 1;
            if !goes_on(made) {
                return made;
            }
            crate::world::compute(self.setting.work.pause_ns);
        }
    }

    /// The vCPU that brings its pages back, where it has pages.
    fn vcpu(&self) -> Option<Vcpu<'r, F, H>> {
        let vcpu = || self.vm.vcpu(VcpuId(self.setting.vcpus + self.number));
        (self.setting.work.over == Over::Mapped).then(vcpu).flatten()
    }

    fn invalidate(&self, idle: &mut Idle, vcpu: Option<&mut Vcpu<'r, F, H>>, nth: u64) {
        if let Some(vcpu) = vcpu.filter(|_| nth.is_multiple_of(TABLE / self.setting.work.range)) {
            fill(vcpu, idle, self.place);
        }
        drop(self.vm.invalidate(hvas_of(self.range(nth)), Reason::Clear).apply(idle).settle());
    }

    /// The next range to invalidate.
    fn range(&self, nth: u64) -> Span<Gfn> {
        let Work { over, range, .. } = self.setting.work;
        let (place, nth) = if over == Over::Same {
            let vcpu = self.number as usize % self.at.len();
            // ORDER(at): Relaxed: it publishes nothing.
            let gfn = Gfn(self.at[vcpu].load(Relaxed));
            (gfn.base(Level::M2), self.setting.lot(u64::from(self.number) << 32 | nth))
        } else {
            (self.place.start, nth)
        };
        Span::sized(place + nth % (TABLE / range) * range, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(invalidators: u32) -> Work {
        Work { invalidators, pause_ns: 1000, ..Work::default() }
    }

    #[test]
    fn every_place_is_apart_from_the_others_and_from_every_vcpu() {
        for over in [Over::Elsewhere, Over::Mapped, Over::Near] {
            for host_page in [Level::K4, Level::M2, Level::G1] {
                let work = Work { host_page, over, ..work(3) };
                let setting = Setting { vcpus: 3, work, ..setting(NONE) };
                let layout = Layout::new(&setting, setting.pages_per_vcpu());
                let part =
                    |&start: &Gfn| Span::new(Gfn(start.0 - layout.page), start + layout.pages * layout.page);
                let mut all: Vec<_> =
                    layout.starts.iter().map(part).chain((0..3).map(|number| layout.place(number))).collect();
                all.sort_unstable_by_key(|span| span.start);
                assert!(
                    all.windows(2).all(|pair| pair[0].end <= pair[1].start),
                    "{over:?} {host_page:?}: {all:?}"
                );
                assert!(all.last().unwrap().end.0 <= layout.end(3));
                let giga = |gfn: Gfn| gfn.base(Level::G1);
                if over != Over::Near {
                    assert!(giga(layout.place(0).start) > giga(Gfn(all[2].end.0 - 1)));
                }
            }
        }
    }

    #[test]
    fn an_invalidator_goes_round_its_place_or_follows_its_vcpu() {
        for (over, range) in
            [(Over::Elsewhere, 1), (Over::Mapped, 8), (Over::Near, 64), (Over::Same, 1), (Over::Same, 64)]
        {
            let setting = &Setting { work: Work { over, range, ..work(3) }, ..setting(NONE) };
            let layout = Layout::new(setting, setting.pages_per_vcpu());
            let vm = &sim_vm(SimHost::new(8, &setting.work), setting, 8).unwrap();
            let at = [7, 5 * TABLE + 9].map(AtomicU64::new);
            for number in 0..3 {
                let place = layout.place(number);
                let invalidator = Invalidator { vm, setting, number, place, at: &at };
                let place = if over == Over::Same {
                    Span::sized(Gfn(5 * TABLE * u64::from(number % 2)), TABLE)
                } else {
                    place
                };
                let mut spans: Vec<_> = (0..TABLE / range).map(|nth| invalidator.range(nth)).collect();
                assert!(spans.iter().all(|span| span.len() == range && place.covers(span)), "{over:?}");
                spans.sort_unstable_by_key(|span| span.start);
                spans.dedup();
                let all = (TABLE / range) as usize;
                assert!(
                    if over == Over::Same { spans.len() > all / 3 } else { spans.len() == all },
                    "{over:?}: {}",
                    spans.len()
                );
            }
        }
    }

    #[test]
    fn pages_that_are_mapped_come_back_once_all_are_gone() {
        let setting = &Setting { work: Work { over: Over::Mapped, range: 64, ..work(1) }, ..setting(NONE) };
        let layout = Layout::new(setting, setting.pages_per_vcpu());
        let (end, place) = (layout.end(1), layout.place(0));
        let builder = builder(SimHost::filled(end, &setting.work), setting, NONE.lock);
        let vm = &with_one_slot(builder.vcpus(setting.vcpus + 1), end).unwrap();
        let invalidator = Invalidator { vm, setting, number: 0, place, at: &[] };
        let (mut vcpu, mut idle) = (invalidator.vcpu(), idle().unwrap());
        let mut left = |nth| {
            invalidator.invalidate(&mut idle, vcpu.as_mut(), nth);
            vm.stats().leaves[0]
        };
        assert_eq!([0, 1, 7, 8].map(&mut left), [448, 384, 320, 448]);
        drop((vcpu, idle));
        assert_eq!(empty(vm, place, Level::K4), Ok(64));
    }
}
