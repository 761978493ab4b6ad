//! A flush that hardware broadcasts, and the TLBs of the processors that it reaches.

use crate::parts::processor::Tlb;
use crate::parts::setting::Setting;
use crate::world::{Mutex, compute, elapsed, now, pause};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use slat::{Gfn, Span, Translations as _};
use std::sync::TryLockError;

/// Nanoseconds that a processor takes to forget.
const EACH_NS: f64 = 100.0;

/// How far a broadcast reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// There is none.
    None,
    /// Every other processor. A host that believes that these are all makes a mistake.
    Some {
        /// Whether the host believes that the broadcast reached all.
        believed: bool,
    },
    /// All processors.
    All,
}

/// The TLBs of all processors, which a broadcast reaches. A step of a vCPU holds its processor's: no broadcast is complete
/// before the walk that is under way.
#[derive(Debug)]
pub struct Processors {
    tlbs: Box<[std::sync::Mutex<Tlb>]>,
    /// The processors that a broadcast reaches.
    pub reach: Reach,
    /// One broadcast at a time.
    bus: Mutex<()>,
    ns: u64,
    /// Broadcasts so far.
    pub done: AtomicU64,
    /// Nanoseconds that broadcasts took on threads beyond `ns` each.
    pub stand_in_ns: AtomicU64,
}

impl Processors {
    /// The TLBs of a machine with so many vCPUs.
    pub fn new(setting: &Setting<'_>, reach: Reach) -> Self {
        let is_far = setting.vcpus > setting.costs.cpus_per_socket;
        let away = if is_far { setting.costs.far } else { setting.costs.near };
        Self {
            tlbs: (0..setting.vcpus).map(|_| std::sync::Mutex::new(Tlb::new())).collect(),
            reach,
            bus: Mutex::new(()),
            ns: (2.0 * away + EACH_NS) as u64,
            done: AtomicU64::new(0),
            stand_in_ns: AtomicU64::new(0),
        }
    }

    /// With the TLB of one processor.
    pub fn step<T>(&self, processor: usize, work: impl FnOnce(&mut Tlb) -> T) -> T {
        loop {
            match self.tlbs[processor].try_lock() {
                Ok(mut tlb) => return work(&mut tlb),
                Err(TryLockError::Poisoned(tlb)) => return work(&mut tlb.into_inner()),
                Err(TryLockError::WouldBlock) => pause(),
            }
        }
    }

    /// The answer of [`Host::broadcast_flush`](slat::Host::broadcast_flush).
    pub fn broadcast(&self, gfns: Span<Gfn>) -> bool {
        if self.reach == Reach::None {
            return false;
        }
        let began = now();
        let bus = self.bus.lock();
        compute(self.ns);
        for processor in 0..self.tlbs.len() {
            let reached = self.reach == Reach::All || processor % 2 == 1;
            if reached {
                self.step(processor, |tlb| tlb.flush(gfns));
            }
        }
        drop(bus);
        self.done.fetch_add(1, Relaxed);
        if cfg!(not(virtual_time)) {
            // ORDER(stand-in): nothing pairs with it: the stores to other processors' TLBs are a part of what the broadcast took.
            core::sync::atomic::fence(SeqCst);
            // And what the two looks at the clock take.
            let took = 2 * (now() - began) - elapsed(began);
            self.stand_in_ns.fetch_add(took.saturating_sub(self.ns), Relaxed);
        }
        matches!(self.reach, Reach::All | Reach::Some { believed: true })
    }
}
