//! Which frames vCPUs fault in, and which ones invalidators invalidate.

use super::super::guest::Guest;
use super::super::machine::{Machine, idle};
use super::super::{Over, Setting, Work};
use crate::host::hvas_of;
use crate::world::Ordering::Relaxed;
use core::sync::atomic::AtomicU64;
use slat::{Access, Fault, Gfn, Idle, Level, Span, VcpuId, Why};

/// Frames of a leaf table.
const TABLE: u64 = Level::M2.pages();
/// Tables from one invalidator's to the next one's, so that no two have their links in one cache line.
const APART: u64 = 8;

/// The frames of a run.
pub struct Layout {
    /// Frames of a page of the host.
    pub page: u64,
    /// Pages of the host that each vCPU faults in.
    pub pages: u64,
    pub starts: Vec<Gfn>,
    /// The first invalidator's place.
    place: Gfn,
}

impl Layout {
    pub fn new(setting: &Setting<'_>) -> Self {
        let (level, many) = (setting.work.host_page, setting.pages_per_vcpu());
        // Each vCPU has leaf tables of its own; but 1024 vCPUs have 256 TiB.
        let (pages, stride, lots) = match level {
            Level::G1 => (many / 8, many / 8 + 1, 1),
            _ => (many, many.next_multiple_of(TABLE) + TABLE, TABLE - 1),
        };
        let page = level.pages();
        let start = |vcpu| Gfn((vcpu * stride + 1 + setting.lot(vcpu) % lots) * page);
        let end = u64::from(setting.vcpus) * stride * page;
        let place = match setting.work.over {
            Over::Elsewhere | Over::Same => end.next_multiple_of(Level::G1.pages()),
            Over::Near => end.next_multiple_of(TABLE),
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

/// The vCPUs, each of which has touched the page before its part, at no cost.
pub fn guests<'vm>(vm: &'vm Machine, layout: &Layout, work: &'vm Work) -> Result<Vec<Guest<'vm>>, String> {
    let mut idle = idle()?;
    let guest = |(number, &start): (u32, &Gfn)| {
        let mut guest = Guest::new(vm, number, work)?;
        guest.touch(&mut idle, Gfn(start.0 - layout.page)).map_err(|error| error.to_string())?;
        Ok(guest)
    };
    (0..).zip(&layout.starts).map(guest).collect()
}

/// Makes `place` a leaf table without leaves, where the host's pages are small; where they are large, empty.
pub fn empty(vm: &Machine, place: Span<Gfn>, host_page: Level) -> Result<(), String> {
    let (mut idle, vcpu) = (idle()?, vm.vcpu(VcpuId(0)));
    let fault = Fault { gpa: place.start.gpa(), access: Access::Write };
    let done = vcpu.ok_or("vCPU 0 is in use")?.fault(&mut idle, fault);
    done.map_err(|error| error.to_string())?;
    let page = Span::sized(place.start.base(host_page), host_page.pages());
    vm.invalidate(hvas_of(page), Why::Clear).apply(&mut idle).settle();
    Ok(())
}

/// A thread that invalidates.
pub struct Invalidator<'r> {
    pub vm: &'r Machine,
    pub setting: &'r Setting<'r>,
    pub number: u32,
    pub place: Span<Gfn>,
    /// Where each vCPU is.
    pub at: &'r [AtomicU64],
}

impl Invalidator<'_> {
    pub fn invalidate(&self, idle: &mut Idle, nth: u64) {
        self.vm.invalidate(hvas_of(self.range(nth)), Why::Clear).apply(idle).settle();
    }

    /// What it invalidates next.
    fn range(&self, nth: u64) -> Span<Gfn> {
        let Work { over, range, .. } = self.setting.work;
        let (place, nth) = match over {
            Over::Elsewhere | Over::Near => (self.place.start, nth),
            Over::Same => {
                let vcpu = self.number as usize % self.at.len();
                // ORDER(at): Relaxed: it publishes nothing.
                let gfn = Gfn(self.at[vcpu].load(Relaxed));
                (gfn.base(Level::M2), self.setting.lot(u64::from(self.number) << 32 | nth))
            }
        };
        Span::sized(place + nth % (TABLE / range) * range, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::Policy;
    use crate::benches::invalidate::tests::work;
    use crate::benches::machine::{builder, with_one_slot};
    use crate::benches::tests::setting;
    use crate::host::SimHost;

    #[test]
    fn every_place_is_apart_from_the_others_and_from_every_vcpu() {
        for over in [Over::Elsewhere, Over::Near] {
            for host_page in [Level::K4, Level::M2, Level::G1] {
                let work = Work { host_page, over, ..work(3) };
                let layout = Layout::new(&Setting { vcpus: 3, work, ..setting(Policy::None) });
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
                if over == Over::Elsewhere {
                    assert!(giga(layout.place(0).start) > giga(Gfn(all[2].end.0 - 1)));
                }
            }
        }
    }

    #[test]
    fn an_invalidator_goes_round_its_place_or_follows_its_vcpu() {
        for (over, range) in [(Over::Elsewhere, 1), (Over::Near, 64), (Over::Same, 1), (Over::Same, 64)] {
            let setting = &Setting { work: Work { over, range, ..work(3) }, ..setting(Policy::None) };
            let layout = Layout::new(setting);
            let vm = &with_one_slot(builder(SimHost::new(8, &setting.work), setting, Policy::None.lock()), 8)
                .unwrap();
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
}
