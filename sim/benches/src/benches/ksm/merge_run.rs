//! A machine whose pages are merged, once: its scanner, and what must be true afterwards.

use super::reading_guest::Round;
use crate::benches::crew::Crew;
use crate::benches::machine::{Machine, builder, gfns, idle, with_one_slot};
use crate::benches::program::{Cpu, Seen};
use crate::benches::way::Way;
use crate::benches::{Check, Policy, Setting};
use crate::host::{SimHost, first_page, hva_of, hvas_of};
use crate::world::{self, Job, Told};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use slat::{Access, Event, Gfn, HostPage, Idle, MmuLock, Pfn, SecondaryMmu, Span, Why};

/// Pages in one change where there are many: as many as slat's own scanner takes.
const BATCH: u64 = 64;
/// Accesses to a page in a row.
const ACCESSES: u64 = 32;
/// Frames that pages come to share, and the first of them.
const STABLE: u64 = 8;
const FIRST_STABLE: Pfn = Pfn(1 << 32);

/// Pages that guests use, no more than a TLB holds, and of them, the ones that are merged.
#[derive(Clone, Copy)]
struct Size {
    used: u64,
    merged: u64,
}

impl Size {
    /// So that a run of few vCPUs does not consist of its beginning, and one of many, each of which every merge flushes twice,
    /// has an end.
    fn of(setting: &Setting<'_>) -> Self {
        let (used, merged) = match setting.vcpus {
            ..=8 => (2048, 2048),
            9..=64 => (512, 128),
            _ => (512, 64),
        };
        Self { used, merged: if setting.quick { BATCH.max(merged / 2) } else { merged } }
    }
}

/// A guest that rests runs this part of the time.
const RUNS: u64 = 5;

/// How much guests run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guests {
    /// All the time.
    Run,
    /// A fifth of it: after each page that they use they are out of the guest for four times as long.
    Rest,
}

/// A machine to run on, once.
pub struct Ground {
    vm: Machine,
    policy: Policy,
    guests: Guests,
    /// Those that are merged come first.
    pub used: u64,
    merged: u64,
    /// Of every page, whether it is merged and its first frame free: in atomics that cost nothing.
    freed: Vec<AtomicBool>,
    /// The scanner has done.
    over: AtomicBool,
    /// Nanoseconds that all guests have rested.
    rested_ns: AtomicU64,
}

/// What a run told.
pub struct Outcome {
    pub told: Told,
    /// Pages merged.
    pub merged: u64,
    pub scan: Scan,
    /// Nanoseconds that guests lost, all together.
    pub lost_ns: u64,
    pub seen: Seen,
    pub flushes: u64,
    pub checks: Vec<Check>,
}

/// Nanoseconds of the scanner.
#[derive(Clone, Copy, Default)]
pub struct Scan {
    /// In notifications, with the change of its own entries.
    pub mmu_ns: u64,
    /// Of all that it does.
    pub ns: u64,
}

impl Ground {
    /// Sabotaged, its flushes are left out.
    pub fn new(setting: &Setting<'_>, guests: Guests, sabotaged: bool) -> Result<Self, String> {
        let Size { used, merged } = Size::of(setting);
        let builder = builder(SimHost::filled(used, &setting.work), setting, MmuLock::None);
        let builder = builder.contexts(setting.policy != Policy::Ignored);
        let builder = if sabotaged { builder.sabotage_flushes() } else { builder };
        let freed = (0..used).map(|_| AtomicBool::new(false)).collect();
        let (vm, over) = (with_one_slot(builder, used)?, AtomicBool::new(false));
        let rested_ns = AtomicU64::new(0);
        Ok(Self { vm, policy: setting.policy, guests, used, merged, freed, over, rested_ns })
    }

    /// Whether the scanner has done.
    pub fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Whether no vCPU may use the first frame of a page any more.
    pub fn is_freed(&self, gfn: Gfn) -> bool {
        self.freed[gfn.0 as usize].load(Relaxed)
    }

    /// Runs it.
    pub fn run(&self, setting: &Setting<'_>) -> Result<Outcome, String> {
        let way = |number| Way::new(setting, number, self.used);
        let mut crew = Crew::warm(&self.vm, setting, ACCESSES, |number| Round::new(self, way(number)))?;
        let mut scan = Ok(Scan::default());
        let rest_ns = (RUNS - 1) * ACCESSES * setting.work.guest_ns;
        let mut jobs = crew.jobs(|idle, cpu, round| self.vcpu(idle, cpu, round, rest_ns));
        jobs.push(Job::new("scanner", || {
            scan = self.scan();
            self.over.store(true, Relaxed);
        }));
        let told = world::run(setting.costs, jobs);
        let seen = crew.seen()?;
        Ok(Outcome {
            merged: self.merged,
            scan: scan?,
            lost_ns: crew.lost_ns(&told, &seen).saturating_sub(self.rested_ns.load(Relaxed)),
            flushes: self.vm.stats().flushes.paid,
            checks: self.checks(&seen)?,
            seen,
            told,
        })
    }

    /// What a vCPU's thread does: its guest goes round until the scanner has done, and then once more.
    fn vcpu(
        &self,
        idle: &mut Idle,
        cpu: &mut Cpu<'_>,
        round: &mut Round<'_>,
        rest_ns: u64,
    ) -> Result<(), String> {
        round.until_over = true;
        while !self.is_over() {
            round.left = if self.guests == Guests::Rest { 1 } else { u64::MAX };
            cpu.run(idle, round)?;
            if self.guests == Guests::Rest {
                let began = world::now();
                world::rest(rest_ns);
                self.rested_ns.fetch_add(world::now() - began, Relaxed);
            }
        }
        (round.until_over, round.left) = (false, self.used);
        cpu.run(idle, round)
    }

    /// In one change.
    fn batch(&self) -> u64 {
        if self.policy == Policy::HeededBatched { BATCH } else { 1 }
    }

    /// Merges all pages.
    fn scan(&self) -> Result<Scan, String> {
        let mut idle = idle()?;
        let (mut scan, began) = (Scan::default(), world::now());
        // Twice: a page, and the one that it is compared with.
        let read = |pages| gfns(pages).for_each(|_| (0..2).for_each(|_| world::read_page()));
        for first in (0..self.merged).step_by(self.batch() as usize) {
            let pages = Span::sized(Gfn(first), self.batch());
            read(pages);
            scan.mmu_ns += self.tell(&mut idle, pages, Why::WriteProtect, read_only)?;
            read(pages);
            scan.mmu_ns += self.tell(&mut idle, pages, Why::ChangePte, stable)?;
            gfns(pages).for_each(|gfn| self.freed[gfn.0 as usize].store(true, Relaxed));
        }
        Ok(Scan { ns: world::now() - began, ..scan })
    }

    /// Makes each of `pages` what `to` says, and tells the VM: how many nanoseconds it took.
    fn tell(
        &self,
        idle: &mut Idle,
        pages: Span<Gfn>,
        why: Why,
        to: fn(Gfn) -> HostPage,
    ) -> Result<u64, String> {
        let began = world::now();
        let told = self.vm.around(idle, Event::new(hvas_of(pages), why), &mut |idle, told| {
            for gfn in gfns(pages) {
                self.vm.host().set(hva_of(gfn), Some(to(gfn)));
                told.changed(idle, hvas_of(Span::sized(gfn, 1)), Some(to(gfn)));
            }
        });
        told.map(|()| world::now() - began).map_err(|again| again.to_string())
    }

    /// What must be true after a run in which guests have seen this.
    fn checks(&self, seen: &Seen) -> Result<Vec<Check>, String> {
        let (flushes, faults) = (self.vm.stats().flushes.paid, seen.faults());
        let changes = 2 * self.merged / self.batch();
        let (owed, fault) = if self.policy == Policy::Ignored {
            // The second finds nothing to unmap where no guest has faulted since the first.
            (changes / 2..=changes, faults >= self.merged)
        } else {
            (changes..=changes, faults == 0)
        };
        let mut checks = seen.checks().to_vec();
        checks.extend([
            Check::all("every page is merged in the end, and mapped so", self.mapped_merged()?, self.merged),
            Check {
                name: "a flush for each change that takes something away",
                ok: owed.contains(&flushes),
                detail: format!("{flushes} of {changes}"),
            },
            Check {
                name: "guests fault where pages are unmapped, and nowhere else",
                ok: fault,
                detail: format!("{faults} faults"),
            },
        ]);
        Ok(checks)
    }

    /// Pages that are mapped as merged ones are.
    fn mapped_merged(&self) -> Result<u64, String> {
        let mut idle = idle()?;
        let mut leaf = |gfn| self.vm.translate(&mut idle, gfn).map(|found| found.leaf);
        let merged = |gfn: Gfn| {
            leaf(gfn).is_some_and(|leaf| leaf.pfn == stable(gfn).pfn && !leaf.perms.allows(Access::Write))
        };
        Ok((0..self.merged).map(Gfn).map(merged).filter(|&merged| merged).count() as u64)
    }
}

/// A page that waits to be compared.
fn read_only(gfn: Gfn) -> HostPage {
    HostPage { writable: false, ..first_page(gfn) }
}

/// The same when it is merged.
pub fn stable(gfn: Gfn) -> HostPage {
    HostPage { pfn: FIRST_STABLE + gfn.0 % STABLE, ..read_only(gfn) }
}

#[cfg(test)]
mod tests {
    use super::super::KsmPerf;
    use super::*;
    use crate::benches::Bench as _;
    use crate::benches::program::{Program as _, Use};
    use crate::benches::tests::{failing, setting};

    /// Negative control: the guests' last round is after all merges.
    #[test]
    fn a_flush_that_is_left_out_is_noticed() {
        for &policy in KsmPerf.policies() {
            for guests in [Guests::Run, Guests::Rest] {
                let ground = Ground::new(&setting(policy), guests, true).unwrap();
                let checks = ground.run(&setting(policy)).unwrap().checks;
                let name = "no guest used a frame after it had been taken away";
                assert!(failing(&checks).contains(&name), "{}, {guests:?}", policy.name());
            }
        }
    }

    /// Negative controls of the other checks.
    #[test]
    fn whatever_is_not_as_it_should_be_is_noticed() {
        let names = [
            "every page is merged in the end, and mapped so",
            "a flush for each change that takes something away",
            "guests fault where pages are unmapped, and nowhere else",
        ];
        for (policy, mapped) in [(Policy::Ignored, 0), (Policy::Heeded, 1), (Policy::HeededBatched, 1)] {
            let ground = Ground::new(&setting(policy), Guests::Run, false).unwrap();
            let found = failing(&ground.checks(&Seen { mapped, ..Seen::default() }).unwrap());
            assert_eq!(found, names, "{}: nothing was merged", policy.name());
            let round = Round::new(&ground, Way::new(&setting(policy), 0, 1));
            let frames = [first_page(Gfn(0)).pfn, stable(Gfn(0)).pfn, first_page(Gfn(1)).pfn];
            let judge = || frames.map(|pfn| round.judge(Gfn(0), pfn));
            assert_eq!(judge(), [Use::Right, Use::Right, Use::Foreign]);
            ground.freed[0].store(true, Relaxed);
            assert_eq!(judge(), [Use::Stale, Use::Right, Use::Foreign]);
        }
    }
}
