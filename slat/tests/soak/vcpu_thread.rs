//! The guest: a vCPU that loads, stores and fetches all over its memory, through caches that keep entries until a
//! flush.

use crate::chaos;
use crate::hazards::{self, caught};
use crate::host::{Primary, some_page};
use crate::nested::{self, Both};
use crate::progress::Share;
use crate::random::Random;
use crate::slot_places::{ALIASES, frame_of};
use crate::vm_under_test::{World, Wrong, count};
use crate::walker::{Missing, walk};
use slat::*;
use std::sync::atomic::Ordering::Relaxed;

/// Accesses in one stay in the guest, unless there is a fault.
const STAY: u64 = 1000;
/// Maximum number of accesses that a kicked vCPU makes before it answers: its entries stay stale for long if a flush
/// does not wait.
const LATEST: u64 = 64;
/// Frames used lately, for reuse.
const RECENT: usize = 64;
/// Maximum number of pages pre-faulted at once.
const AHEAD: u64 = 600;

/// The next accesses of the guest's program.
struct Program {
    random: Random,
    recent: [Gfn; RECENT],
    /// One access in this many goes to a new frame.
    restless: u64,
}

impl Program {
    fn next<F: Format>(&mut self, world: &World<F>, space: SpaceId) -> (Gfn, Access) {
        let random = &mut self.random;
        let place = random.below(RECENT as u64) as usize;
        if random.one_in(self.restless) {
            self.recent[place] = frame_of(&world.places, space, some_page(random));
        }
        let access = random.pick(&[Access::Read, Access::Read, Access::Write, Access::Write, Access::Fetch]);
        (self.recent[place], access)
    }
}

/// Runs vCPU `id` until every thread has done its share.
pub fn run<F: Format>(world: &World<F>, id: VcpuId) {
    let random = Random::new(world.setting.seed ^ u64::from(id.0 + 1) << 32);
    let program = Program { random, recent: [Gfn(0); RECENT], restless: 4 };
    let (share, idle) = (world.watch.share(id.0 as usize), Idle::take().unwrap());
    let mut thread = VcpuThread { world, share, id, vcpu: None, idle, caches: Both::new(), program };
    hazards::seed(world.setting.seed << 8 | u64::from(id.0));
    while thread.share.next() {
        // A callback that panics ends the step.
        caught(|| thread.step());
    }
}

struct VcpuThread<'w, F: Format> {
    world: &'w World<F>,
    share: Share<'w>,
    id: VcpuId,
    vcpu: Option<Vcpu<'w, F, Primary>>,
    idle: Idle,
    caches: Both,
    program: Program,
}

impl<F: Format> VcpuThread<'_, F> {
    /// An operation outside the guest; then a stay in the guest, up to a fault.
    fn step(&mut self) {
        let Self { world, share, id, idle, caches, program, .. } = self;
        let vcpu = self.vcpu.get_or_insert_with(|| world.vm.vcpu(*id).expect("no thread has it"));
        match program.random.below(512) {
            0..8 => {
                let space = SpaceId(program.random.below(2) as u8);
                assert!(vcpu.switch_to(space));
            }
            8..12 => {
                share.about_to("pre-fault");
                let (first, _) = program.next(world, vcpu.space());
                let ahead = Span::sized(first, program.random.below(AHEAD));
                // If the first frame cannot be mapped, the reason is one of a fault's.
                let _ = vcpu.prefault(idle, ahead, Prefault::OLD);
                count(&world.counts.prefaults);
            }
            12 => {
                // Dropping the vCPU returns its seat and its spare table pages; its cached entries stay valid.
                caches.flush_all();
                return drop(self.vcpu.take());
            }
            13..77 if world.setting.nested => {
                assert!(vcpu.switch_to(ALIASES));
                return nested::stay((world, share), vcpu, idle, caches, &mut program.random);
            }
            77..205 if world.setting.chaos => {
                share.about_to("do what other vCPUs do not");
                return chaos::step(world, vcpu, idle, caches, &mut program.random);
            }
            _ => {}
        }
        share.about_to("run in the guest");
        program.restless = program.random.pick(&[4, 4, 64, u64::MAX]);
        let Some(fault) = stay(world, vcpu, idle, caches, program) else { return };
        share.about_to("fault");
        let (space, gfn) = (vcpu.space(), fault.gpa.gfn());
        let there = world.places.there(space, gfn);
        match vcpu.fault(idle, fault) {
            Ok(Next::Emulate(Emulate::NoMemory | Emulate::ReadOnly)) => {
                if there.is_some() && there == world.places.there(space, gfn) {
                    world.wrong(Wrong::Mmio, || format!("{gfn:?} in {space:?}"));
                }
                std::thread::yield_now();
            }
            Ok(Next::Emulate(Emulate::Tracked)) if space == SpaceId(0) => {
                chaos::emulate(&world.vm, &world.logs, idle, gfn);
            }
            Ok(Next::Leave(Leave::RingFull)) => drop(world.vm.reset_rings(idle)),
            Ok(_) => {}
            Err(FaultError::NoMemory) => {
                count(&world.counts.no_memory);
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs in the guest until a fault, or for a bounded number of accesses.
fn stay<F: Format>(
    world: &World<F>,
    vcpu: &mut Vcpu<'_, F, Primary>,
    idle: &mut Idle,
    caches: &mut Both,
    program: &mut Program,
) -> Option<Fault> {
    let space = vcpu.space();
    let host = world.vm.host();
    let mut guest = vcpu.enter(idle, caches).poll();
    let (mut uses, mut late) = (0, program.random.below(LATEST));
    let fault = loop {
        if guest.kicked() {
            if late == 0 {
                guest.answer(caches);
                late = program.random.below(LATEST);
            } else {
                late -= 1;
            }
        }
        let (gfn, access) = program.next(world, space);
        let found = match caches.l1.find(gfn, access) {
            Some(found) => found,
            None => match walk::<F>(host, guest.root(), &mut caches.l1, (gfn, access)) {
                Ok(found) => {
                    caches.l1.insert(found);
                    found
                }
                Err(Missing::Fault) => break Some(Fault { gpa: gfn.gpa(), access }),
                Err(Missing::Stray) => {
                    world.wrong(Wrong::StrayLink, || format!("on the way to {gfn:?} in {space:?}"));
                    break None;
                }
            },
        };
        world.judge(space, gfn, access, &found);
        #[cfg(feature = "oracle")]
        guest.uses(gfn, found.frame(gfn), access);
        uses += 1;
        if uses == STAY {
            break None;
        }
    };
    drop(guest);
    world.counts.uses.fetch_add(uses, Relaxed);
    // Frames of the other space mean something else: the caches are flushed when the root changes.
    debug_assert!(space == vcpu.space() && space <= ALIASES);
    fault
}
