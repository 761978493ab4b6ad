//! What is beside the vCPUs: the threads that invalidate, each in 2 MiB of its own or where a vCPU is; and the host.

use super::super::arithmetic::Arithmetic;
use super::super::harness::Line;
use super::lap::{Beside, MOST_TIME, Machine, Setting, TABLE, fault, hva};
use slat::table::formats::Npt4;
use slat::{Access, Gfn, Host, HostError, HostPage, Hva, Idle, Level, Span, TableMemory, Vcpu, VcpuId, Why};
use std::hint::spin_loop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The place of the first invalidator: 128 TiB.
const ELSEWHERE: Gfn = Gfn(1 << 35);
/// Leaf tables from one invalidator's place to the next one's, so that no two have their links in one cache line.
const APART: u64 = 8;

/// The place of an invalidator.
pub fn elsewhere(number: u32) -> Span<Gfn> {
    Span::sized(ELSEWHERE + u64::from(number) * APART * TABLE, TABLE)
}

/// [`Arithmetic`] with pages of one size behind the vCPUs' memory, and of 4 KiB elsewhere. A host that sleeps answers only
/// where it may; it waits awake, since a sleep of microseconds would last tens of them.
pub struct Pages {
    pub level: Level,
    pub sleeps_ns: u64,
}

// SAFETY: each call is passed on to a host that keeps the contract.
unsafe impl TableMemory for Pages {
    fn alloc_chunk(&self) -> Option<NonNull<u8>> {
        Arithmetic.alloc_chunk()
    }

    unsafe fn free_chunk(&self, chunk: NonNull<u8>) {
        // SAFETY: the caller's promise is the same.
        unsafe { Arithmetic.free_chunk(chunk) };
    }
}

impl Host for Pages {
    #[inline]
    fn lookup(&self, hva: Hva, access: Access) -> Option<HostPage> {
        let vcpus = hva < self::hva(ELSEWHERE);
        let page = Arithmetic.lookup(hva, access)?;
        let level = if vcpus { self.level } else { Level::K4 };
        (self.sleeps_ns == 0 || !vcpus).then_some(HostPage { level, ..page })
    }

    fn resolve(&self, idle: &mut Idle, hva: Hva, access: Access) -> Result<HostPage, HostError> {
        wait(self.sleeps_ns);
        let page = Arithmetic.resolve(idle, hva, access)?;
        Ok(HostPage { level: self.level, ..page })
    }
}

/// Waits awake.
fn wait(ns: u64) {
    let began = Instant::now();
    while ns > 0 && began.elapsed() < Duration::from_nanos(ns) {
        spin_loop();
    }
}

/// As a host does that takes `gfns` away and changes nothing.
fn invalidate(vm: &Machine, idle: &mut Idle, gfns: Span<Gfn>) {
    vm.invalidate(Span::new(hva(gfns.start), hva(gfns.end)), Why::Clear).apply(idle).settle();
}

/// A thread that invalidates.
pub struct Invalidator<'vm> {
    vm: &'vm Machine,
    beside: Beside,
    setting: &'vm Setting,
    number: u32,
    vcpu: Vcpu<'vm, Npt4, Pages>,
    idle: Idle,
    random: fastrand::Rng,
}

/// What it has done.
#[derive(Clone, Copy)]
pub struct Made {
    /// Nanoseconds for each invalidation, with its pause, and with the faults that bring its pages back where some do.
    pub ns: f64,
    /// Pages that it must have taken.
    pub due: Option<u64>,
}

impl<'vm> Invalidator<'vm> {
    pub fn new(vm: &'vm Machine, beside: Beside, setting: &'vm Setting, number: u32) -> Self {
        let vcpu = vm.vcpu(VcpuId(setting.vcpus + number)).expect("each vCPU has one thread");
        let idle = Idle::take().expect("a thread of its own");
        let random = fastrand::Rng::with_seed(1 + u64::from(number));
        Self { vm, beside, setting, number, vcpu, idle, random }
    }

    pub fn run(mut self, line: &Line, at: &[AtomicU64], running: &AtomicUsize) -> Made {
        if self.beside == Beside::Holes {
            self.bring_back();
            invalidate(self.vm, &mut self.idle, elsewhere(self.number));
        }
        line.cross();
        let start = Instant::now();
        let mut made = 0;
        loop {
            let gfns = self.next(made, at);
            invalidate(self.vm, &mut self.idle, gfns);
            made += 1;
            // A vCPU may be in one fault for as long as this goes on.
            if running.load(Relaxed) == 0 || made.is_multiple_of(64) && start.elapsed() > 2 * MOST_TIME {
                break;
            }
            wait(self.setting.pause_ns);
        }
        let due = match self.beside {
            Beside::Mapped => Some(made * self.setting.range),
            Beside::Holes => Some(TABLE),
            Beside::None | Beside::Same2M => None,
        };
        Made { ns: start.elapsed().as_nanos() as f64 / made as f64, due }
    }

    fn next(&mut self, made: u64, at: &[AtomicU64]) -> Span<Gfn> {
        let range = self.setting.range;
        let ranges = TABLE / range;
        if self.beside == Beside::Same2M {
            let vcpu = self.number as usize % at.len();
            return Span::sized(Gfn(at[vcpu].load(Relaxed) + self.random.u64(..ranges) * range), range);
        }
        if self.beside == Beside::Mapped && made.is_multiple_of(ranges) {
            self.bring_back();
        }
        Span::sized(elsewhere(self.number).start + made % ranges * range, range)
    }

    fn bring_back(&mut self) {
        let place = elsewhere(self.number);
        for gfn in place.start.0..place.end.0 {
            // Counted by the engine: a page that did not come back is one too few that was taken.
            let _ = fault(&mut self.vcpu, &mut self.idle, Gfn(gfn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slat::{Slot, SlotId, Vm};

    #[test]
    fn the_invalidator_goes_where_it_should() {
        let mut idle = Idle::take().unwrap();
        let host = Pages { level: Level::K4, sleeps_ns: 0 };
        let vm = Vm::<Npt4, _>::builder(host).vcpus(3).build().unwrap();
        let place = elsewhere(1);
        let slot = Slot::new(SlotId(1), place.start, TABLE, hva(place.start));
        vm.slots().commit(&mut idle, |tx| tx.create(slot)).unwrap();
        drop(idle);
        let at = [0, 5 * TABLE].map(AtomicU64::new);
        for (beside, range) in [Beside::Mapped, Beside::Holes, Beside::Same2M]
            .into_iter()
            .flat_map(|beside| [(beside, 1), (beside, 8)])
        {
            let setting = Setting {
                pages: 8 * TABLE,
                vcpus: 1,
                invalidators: 2,
                pause_ns: 0,
                range,
                level: Level::K4,
                host_sleeps_ns: 0,
            };
            let mut invalidator = Invalidator::new(&vm, beside, &setting, 1);
            let all = TABLE / range;
            let mut spans: Vec<_> = (0..all).map(|made| invalidator.next(made, &at)).collect();
            let whole = if beside == Beside::Same2M { Span::sized(Gfn(5 * TABLE), TABLE) } else { place };
            assert!(spans.iter().all(|span| span.len() == range && whole.covers(span)));
            spans.sort_unstable_by_key(|span| span.start);
            spans.dedup();
            assert!(spans.len() as u64 > all / 3, "not always the same");
            assert_eq!(vm.stats().leaves[0], if beside == Beside::Mapped { TABLE } else { 0 });
            invalidate(&vm, &mut invalidator.idle, place);
        }
    }

    #[test]
    fn a_host_that_sleeps_answers_only_where_it_may_and_has_small_pages_elsewhere() {
        let mut idle = Idle::take().unwrap();
        let host = |sleeps_ns| Pages { level: Level::M2, sleeps_ns };
        let [here, there] = [hva(Gfn(7)), hva(elsewhere(0).start)];
        let level = |page: HostPage| page.level;
        let look = |sleeps_ns, hva| host(sleeps_ns).lookup(hva, Access::Write).map(level);
        assert_eq!([look(0, here), look(0, there)], [Some(Level::M2), Some(Level::K4)]);
        assert_eq!([look(9, here), look(9, there)], [None, Some(Level::K4)]);
        assert_eq!(host(9).resolve(&mut idle, here, Access::Write).map(level), Ok(Level::M2));
    }
}
