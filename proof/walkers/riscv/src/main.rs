//! The judge in machine mode, on QEMU's `virt`: G-stage tables, by the hypervisor extension's own loads and stores.
//!
//! | file | contents |
//! |---|---|
//! | `board` | entry, serial line, end |
//! | `guest_access` | HLV, HSV, HLVX: a guest's accesses, without a guest |
//! | `g_stage` | the G-stage as the judge's machine; QEMU's faults, by name |
#![no_std]
#![no_main]

mod board;
mod g_stage;
mod guest_access;

use alloc::vec::Vec;
use g_stage::{GStage, UPPER_HALF};
use linked_list_allocator::LockedHeap;
use slat::table::formats::{Sv39x4, Sv39x4NoAd, Sv48x4, Sv57x4};
use slat::{Format, Idle, PAGE_SHIFT};
use slat_judge::{LOOKUPS, Machine, SEED, Verdict, conclude, everything, judge};

extern crate alloc;

#[global_allocator]
static HEAP: LockedHeap = LockedHeap::empty();

/// The entry point of Rust: [`board`] calls it by this name, once, on the only hart that runs.
#[unsafe(no_mangle)]
extern "C" fn enter() -> ! {
    guest_access::prepare();
    // SAFETY: memory of the heap's alone, which is empty.
    unsafe { HEAP.lock().init(board::HEAP.start as *mut u8, board::HEAP.end - board::HEAP.start) };
    // SAFETY: one hart, and no other token.
    let mut idle = unsafe { Idle::assume() };
    let mut verdicts = Vec::new();
    judge_mode::<Sv39x4>(8, &mut idle, &mut verdicts);
    judge_mode::<Sv39x4NoAd>(8, &mut idle, &mut verdicts);
    judge_mode::<Sv48x4>(9, &mut idle, &mut verdicts);
    judge_mode::<Sv57x4>(10, &mut idle, &mut verdicts);
    board::end(conclude(&mut GStage::new::<Sv39x4>(8, u64::BITS), &verdicts))
}

/// Judges a format with this mode number in `hgatp`.
fn judge_mode<F: Format>(number: u64, idle: &mut Idle, verdicts: &mut Vec<Verdict>) {
    let mut machine = GStage::new::<F>(number, u64::BITS);
    if !machine.is_there() {
        let name = machine.name();
        return machine.log(format_args!("SKIP {} {name}: the hart does not have it", F::NAME));
    }
    verdicts.extend(everything::<F, _>(&mut machine, idle));
    if verdicts.iter().any(|verdict| verdict.quirks.contains_key(UPPER_HALF)) {
        // QEMU's own faults there show nothing, so as many look-ups are made in the lower half.
        let mut lower = GStage::new::<F>(number, F::FRAME_BITS + PAGE_SHIFT - 1);
        verdicts.push(judge::<F, _>(&mut lower, idle, SEED, LOOKUPS));
    }
}
