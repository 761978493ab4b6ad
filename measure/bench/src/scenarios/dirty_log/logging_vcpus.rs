//! vCPUs that go over their parts of memory together, once for each pass, and what is done with the log between passes.
//!
//! Between passes no vCPU runs, so that none disturbs what the test does with the log. The vCPUs keep their TLBs from pass to
//! pass: a store through an entry that a missing flush has left would go unnoticed, and a check finds it. The guest's memory is
//! not there: loads read ones, stores are lost.

use super::logged_vm::{Entrant, LoggedVm, Pages, Pass, Sweep, Verdict, Way, Zap, set_log};
use crate::scenarios::threads_prelude::*;
use slat::Harvest;
use slat_vcpu::Window;
use std::ops::Range;

/// The vCPUs of a VM, numbered from 0, each with its part of memory; the log of their memslots.
pub struct Vcpus<'vm> {
    vm: &'vm LoggedVm,
    entrant: Entrant,
    /// One behind the other, from frame 0 on.
    slots: Vec<Slot>,
    cpus: Vec<VcpuInPart<'vm>>,
    /// The frames that rings and harvests have reported since the last pass began: a bit each.
    bits: Vec<u64>,
}

/// A vCPU and its part of memory.
struct VcpuInPart<'vm> {
    cpu: Cpu<'vm, Ept4, Pages>,
    part: Span<Gfn>,
    /// Times that it left the guest because its ring was full.
    rings_full: u64,
}

impl<'vm> Vcpus<'vm> {
    /// So many vCPUs that share out the slots; an exit from the guest takes each so long.
    pub fn new(
        vm: &'vm LoggedVm,
        entrant: Entrant,
        slots: Vec<Slot>,
        (vcpus, exit): (u32, Duration),
    ) -> Result<Self> {
        let gfns = Span::new(Gfn(0), slots.last().map_or(Gfn(0), |slot| slot.gfns.end));
        let cpu = |(number, part)| {
            // SAFETY: no frame is in it.
            let nothing = unsafe { Window::new(NonNull::dangling(), 0) };
            let cpu = Cpu::new(vcpu(vm, number)?, nothing).untimed().with_exits_of(exit);
            Ok(VcpuInPart { cpu, part, rings_full: 0 })
        };
        let cpus = (0..).zip(parts(gfns, vcpus)).map(cpu).collect::<Result<_>>()?;
        Ok(Self { vm, entrant, slots, cpus, bits: vec![0; (gfns.len() / 64) as usize] })
    }

    /// One pass of all vCPUs, each on a thread: from when they began until the last was done.
    pub fn pass(&mut self, pass: Pass) -> Result<Duration> {
        self.bits.fill(0);
        let (vm, mut left) = (self.vm, self.bits.as_mut_slice());
        // The reports of a ring are in its vCPU's part, which begins with a word.
        let vcpus = self.cpus.iter_mut().map(|vcpu| {
            let words = (vcpu.part.len() / 64) as usize;
            (vcpu, left.split_off_mut(..words).expect("parts cover all bits"))
        });
        let work = |idle: &mut Idle, number, (vcpu, bits): (&mut VcpuInPart<'_>, &mut [u64])| {
            let VcpuInPart { cpu, part, rings_full } = vcpu;
            let mut sweep = Sweep { pages: *part, pass };
            run_until_stopped(cpu, idle, &mut sweep, |idle| {
                report(vm.harvest_ring(idle, VcpuId(number))?, part.start, bits);
                *rings_full += 1;
                Ok(())
            })
        };
        let (stats, _) = each_vcpu(&Costs::SERVER, vcpus, work, None)?;
        Ok(Duration::from_nanos(stats.wall_ns))
    }

    /// Switches the log on, slot by slot, as a VMM does it.
    pub fn enable(&mut self) -> Result<()> {
        let idle = &mut idle()?;
        for slot in &self.slots {
            self.zap(self.entrant.zap_to_enable, slot, idle);
            set_log(self.vm, idle, slot, true)?;
            if self.entrant.way == Way::Before && self.vm.host().level == Level::K4 {
                self.vm.memory().write_protect(idle, slot.gfns).settle();
            }
        }
        Ok(())
    }

    /// Switches it off.
    pub fn disable(&self) -> Result<()> {
        let idle = &mut idle()?;
        for slot in &self.slots {
            self.zap(self.entrant.zap_to_disable, slot, idle);
            set_log(self.vm, idle, slot, false)?;
        }
        Ok(())
    }

    fn zap(&self, zap: Zap, slot: &Slot, idle: &mut Idle) {
        let mut invalidate = |gfns, why| {
            drop(self.vm.memory().invalidate(gfns, why).apply(idle).settle());
        };
        match zap {
            Zap::Entries if self.vm.host().level > Level::K4 => invalidate(slot.gfns, Reason::Clear),
            Zap::Nothing | Zap::Entries => {}
            Zap::TableByTable => {
                for first in (slot.gfns.start.0..slot.gfns.end.0).step_by(Level::M2.pages() as usize) {
                    let table = Span::sized(Gfn(first), Level::M2.pages());
                    invalidate(table, Reason::Clear);
                    invalidate(table, Reason::Unmap);
                }
            }
            Zap::AtOnce => invalidate(slot.gfns, Reason::Unmap),
        }
    }

    /// Asks the log what has been written.
    pub fn get(&mut self) -> Result<()> {
        let (vm, idle) = (self.vm, &mut idle()?);
        if let Way::Auto(_) | Way::Ring(_) = self.entrant.way {
            report(vm.memory().harvest_all(idle)?, Gfn(0), &mut self.bits);
            return Ok(());
        }
        for slot in &self.slots {
            if self.entrant.way == Way::Before {
                vm.memory().write_protect(idle, slot.gfns).settle();
            }
            vm.memory().dirty_bits(idle, slot.id, &mut self.bits[words(slot)])?;
        }
        Ok(())
    }

    /// Tracks the pages that `get` reported again, unless `get` has done so.
    pub fn clear(&self) -> Result<()> {
        if let Way::Before | Way::Manual(_) = self.entrant.way {
            let idle = &mut idle()?;
            for slot in &self.slots {
                self.vm.memory().clear_dirty(idle, slot.id, 0, slot.gfns.len(), &self.bits[words(slot)])?;
            }
        }
        Ok(())
    }

    /// Clears the bits of all pages.
    pub fn clear_all(&mut self) -> Result<()> {
        self.bits.fill(u64::MAX);
        self.clear()
    }

    /// Compares what has been reported since `pass` began with the pages that it stored to.
    pub fn compare(&self, pass: Pass) -> Verdict {
        pass.compare(&self.bits)
    }

    /// Times that a vCPU left the guest because its ring was full.
    pub fn rings_full(&self) -> u64 {
        self.cpus.iter().map(|vcpu| vcpu.rings_full).sum()
    }
}

/// Adds what a harvest reports to `bits`, the first of which is that of frame `first`.
fn report(harvest: Harvest<'_, Ept4, Pages>, first: Gfn, bits: &mut [u64]) {
    harvest.words().for_each(|word| bits[((word.first.gfn.0 - first.0) / 64) as usize] |= word.bits);
    harvest.commit();
}

/// Where a slot's bits are.
fn words(slot: &Slot) -> Range<usize> {
    (slot.gfns.start.0 / 64) as usize..(slot.gfns.end.0 / 64) as usize
}

/// So many parts of much the same length, each of whole 2 MiB, and all of `gfns` together.
pub fn parts(gfns: Span<Gfn>, count: u32) -> Vec<Span<Gfn>> {
    let (large, count) = (gfns.len() / Level::M2.pages(), u64::from(count));
    let begin = |nth| gfns.start + large * nth / count * Level::M2.pages();
    (0..count).map(|nth| Span::new(begin(nth), begin(nth + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::dirty_log::logged_vm::memory;

    #[test]
    fn parts_are_whole_and_leave_nothing_out() {
        for count in [1, 2, 3, 7] {
            let parts = parts(memory(7 << 21), count);
            assert!(parts.iter().all(|part| part.len().is_multiple_of(512) && !part.is_empty()));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            let all = parts.iter().copied().reduce(|all, part| all.hull(&part));
            assert_eq!((parts.len() as u32, all), (count, Some(memory(7 << 21))));
        }
    }
}
