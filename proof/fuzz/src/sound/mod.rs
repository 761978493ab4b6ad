//! `sound`: a program of safe code that tries to break the engine.
//!
//! It passes extreme arguments, leaks every guard and debt, panics in every callback, calls the engine again from
//! [`Host::resolve`](slat::Host::resolve), gives vCPU numbers back and takes them again, moves vCPUs between
//! processors, and uses hints, vCPUs and the token of one thread with two VMs.
//!
//! | file | contents |
//! |---|---|
//! | `panicking_host` | a host that panics, and calls back, on request |
//! | `cpus` | processors, which drop translations only when the engine flushes |
//! | `step` | the steps, and their arguments |
//! | `world` | runs each step, and skips calls that wait forever because of a leaked guard |
//! | `slots` | runs the steps about memslots and dirty logs |
//!
//! It asserts these properties. There is no panic but the requested ones, and no endless wait (libFuzzer's limit for
//! one input, 20 s). After each step every leaf maps the page that the host has there now, through an existing memslot.
//! A vCPU that has entered the guest finds no older translation on its processor. And a hint answers as a search does.
//!
//! One thread does everything. It leaves out calls that wait forever by contract: a fault in a range that it
//! invalidates itself, a flush while a leaked guard says that a vCPU is in the guest, a grace period beside a leaked
//! section.

mod cpus;
mod panicking_host;
mod slots;
mod step;
mod world;

use crate::Input;
use panicking_host::{Crafty, Fuse, Injected};
use slat::baselines::{Baseline, MmuLock};
use slat::table::formats::{Ept4, Ept4NoAd, Npt4, Pae};
use slat::{DirtyLog, Format, Hva, Idle, Level, RingSize, Span, Track, Vm};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use step::{Step, TWO};
use world::World;

/// Most steps of one input; the rest is ignored.
const STEPS: usize = 64;
/// Number of steps of this process; each calls the engine at least once.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Number of steps between two reports.
const SAYS: u64 = 1 << 17;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => with::<Ept4>(input),
        1 => with::<Ept4NoAd>(input),
        2 => with::<Npt4>(input),
        _ => with::<Pae>(input),
    }
}

fn with<F: Format>(mut input: Input<'_>) {
    let fuse = Arc::new(Fuse::default());
    let mut idle = Idle::take().expect("one world at a time on a thread");
    extremes::<F>(&mut input, &fuse, &mut idle);
    let vms = [0; TWO].map(|_| Arc::new(a_vm::<F>(&mut input, &fuse)));
    for vm in &vms {
        vm.host().meet(&vms);
    }
    let mut world = World::new(&vms, &fuse, idle, input.flag());
    for vm in 0..TWO {
        world.furnish(vm, &mut input);
    }
    let loud = std::env::var_os("SLAT_FUZZ_STEPS").is_some();
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        let step = Step::next(&mut input, 1 << F::FRAME_BITS);
        if loud {
            eprintln!("{} {step:x?}", F::NAME);
        }
        world.prepare(&step);
        let panicked = survives(&fuse, step.fuse, || world.take(&step.what));
        if loud && panicked {
            eprintln!("  panicked on purpose");
        }
        world.check();
        let taken = TAKEN.fetch_add(1, Relaxed) + 1;
        if taken.is_multiple_of(SAYS) {
            eprintln!("CALLS {taken}");
        }
    }
}

/// Does `work`, in which callback number `fuse` panics. Returns whether it did. Passes on any other panic.
fn survives(fuse: &Fuse, after: u32, work: impl FnOnce()) -> bool {
    fuse.light(after);
    let end = catch_unwind(AssertUnwindSafe(work));
    fuse.light(0);
    match end {
        Ok(()) => false,
        Err(payload) if payload.is::<Injected>() => true,
        Err(payload) => resume_unwind(payload),
    }
}

/// Makes a usable VM.
fn a_vm<F: Format>(input: &mut Input<'_>, fuse: &Arc<Fuse>) -> Vm<F, Crafty<F>> {
    let largest = input.pick(&[Level::K4, Level::M2, Level::G1]);
    let host = Crafty::new(largest, input.below(3) == 2, fuse.clone());
    let log = match input.below(4) {
        0 => DirtyLog::bitmap().track(Track::DirtyBits),
        1 => DirtyLog::ring(RingSize::new(4096).expect("the smallest ring")),
        2 => DirtyLog::bitmap().initially_set(),
        _ => DirtyLog::bitmap(),
    };
    let lock = input.pick(&[MmuLock::None, MmuLock::None, MmuLock::ReadWrite, MmuLock::Exclusive]);
    let builder = Vm::<F, _>::builder(host).vcpus(TWO as u32).address_spaces(TWO as u8);
    let budget = input.pick(&[u64::MAX, u64::MAX, 64 << 12, 12 << 12]);
    let baseline = Baseline::NONE.mmu_lock(lock).contexts(input.below(4) != 3);
    let vm = builder.max_page(largest).baseline(baseline).dirty_log(log).table_budget(budget);
    vm.build().expect("there is memory")
}

/// Makes a VM with arguments that no client passes, and uses it once.
fn extremes<F: Format>(input: &mut Input<'_>, fuse: &Arc<Fuse>, idle: &mut Idle) {
    if input.below(4) != 3 {
        return;
    }
    let edge = |input: &mut Input<'_>| input.pick(&[0, 1, 12, 39, 40, 52, 63, 64, 255, u64::MAX]);
    let host = Crafty::<F>::new(Level::M2, false, fuse.clone());
    let builder = Vm::<F, _>::builder(host)
        .vcpus(input.pick(&[0, 1, 2, 300]))
        .address_spaces(edge(input) as u8)
        .max_slots(edge(input) as u32)
        .address_bits(edge(input) as u32)
        .host_addresses(Span::new(Hva(edge(input)), Hva(edge(input))))
        .table_budget(edge(input) << 12);
    let level = Level::new(edge(input) as u8).unwrap_or(Level::M2);
    let Ok(vm) = builder.max_page(level).build() else { return };
    let slot = step::a_slot(input, 0, 1 << F::FRAME_BITS);
    let created = vm.memory().commit(idle, |tx| tx.create(slot)).is_ok();
    if let Some(mut vcpu) = vm.vcpu(slat::VcpuId(edge(input) as u32)) {
        let fault = slat::Fault { gpa: slot.gfns.start.gpa(), access: slat::Access::Write };
        let _ = vcpu.fault(idle, fault);
    }
    assert_eq!(vm.memory().len(), usize::from(created));
    let _ = vm.zap_all(idle);
}
