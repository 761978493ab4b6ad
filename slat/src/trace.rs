//! What happens in a VM, one event at a time, as it happens: for tracers, and for tests that count.
//!
//! [`Host::observe`](crate::Host::observe) is told each event. A host that does not override it pays for nothing: the calls are
//! compiled into the VM's own code for that host, and vanish there. Each counter of [`Stats`](crate::Stats) is the sum of some
//! events, but for the waits for a baseline policy's lock, which have none:
//!
//! | counter | sum of |
//! |---|---|
//! | `mapped_faults`, `permission_faults`, `spurious_faults`, `mmio_faults` | [`Fault`](TraceEvent::Fault), by result |
//! | `retries_by`, `asked_again` | [`Retry`](TraceEvent::Retry), by cause |
//! | `splits`, `recovered` | [`Split`](TraceEvent::Split), [`Recovered`](TraceEvent::Recovered), by level |
//! | `flushes_by` | [`Flush`](TraceEvent::Flush), by cause |
//! | `tables_reclaimed` | `subtrees` of [`Reclaimed`](TraceEvent::Reclaimed) |
//! | `leaves` | leaves that faults mapped, less those of [`Zap`](TraceEvent::Zap) and [`TablesFreed`](TraceEvent::TablesFreed); a split takes one and brings 512 smaller ones; a recovery brings one |
//!
//! ```
//! use slat::{table::formats::Ept4, trace::{FaultResult, TraceEvent}, *};
//! use std::sync::Mutex;
//!
//! /// A host that keeps what it is told.
//! #[derive(Default)]
//! struct Told(Mutex<Vec<TraceEvent>>);
//! unsafe impl TableMemory for Told {}
//! impl Host for Told {
//!     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
//!         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
//!     }
//!     fn observe(&self, event: TraceEvent) {
//!         self.0.lock().unwrap().push(event);
//!     }
//! }
//!
//! let mut idle = Idle::take().unwrap();
//! let vm = Vm::<Ept4, _>::builder(Told::default()).build()?;
//! let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30));
//! vm.slots().commit(&mut idle, |tx| tx.create(ram))?;
//! vm.vcpu(VcpuId(0)).unwrap().fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
//! vm.invalidate(ram.hvas(), Why::Migrate).apply(&mut idle).settle();
//!
//! let told = vm.host().0.lock().unwrap();
//! let result = FaultResult::Mapped(Level::K4);
//! assert_eq!(told[0], TraceEvent::Fault { vcpu: VcpuId(0), gfn: Gfn(5), access: Access::Write, result });
//! assert!(matches!(told[1], TraceEvent::Zap { leaves: 1, cause: Cause::Change(Why::Migrate), .. }));
//! assert!(matches!(told[2], TraceEvent::Flush { pages: 1, .. }));
//! assert_eq!(told[0].to_string(), "fault: vcpu=0 gfn=0x5 access=write result=mapped-4k");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::addr::{Gfn, Level, Span};
pub use crate::sync::tally::RetryCause;
use crate::table::format::Access;
use crate::why::Cause;
use alloc::sync::Arc;
use core::fmt;

/// A vCPU's number in its VM, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VcpuId(pub u32);

/// How a fault was dealt with: [`Done`](crate::Done), or an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultResult {
    /// A leaf of this level was installed.
    Mapped(Level),
    /// A permission was given back, in place.
    Fixed,
    /// Nothing was wrong any more.
    Spurious,
    /// The access is a device's.
    Mmio,
    /// Nothing was done: a dirty ring is full, a page is pending, or the VMM has to provide it, to convert it, or to emulate the store.
    Deferred,
    /// An error: no page, or no memory for tables.
    Failed,
}

impl FaultResult {
    /// Its name: the size of what was mapped, or a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mapped(Level::K4) => "mapped-4k",
            Self::Mapped(Level::M2) => "mapped-2m",
            Self::Mapped(_) => "mapped-1g",
            Self::Fixed => "fixed",
            Self::Spurious => "spurious",
            Self::Mmio => "mmio",
            Self::Deferred => "deferred",
            Self::Failed => "failed",
        }
    }
}

/// Something that has happened in a VM. See the [module's page](crate::trace).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A fault has ended, or one page of a prefault.
    Fault {
        /// Whose.
        vcpu: VcpuId,
        /// The frame that was accessed.
        gfn: Gfn,
        /// How.
        access: Access,
        /// What came of it.
        result: FaultResult,
    },
    /// An attempt at a fault is made again; or, with [`RetryCause::Asked`], the host is asked again for the same fault.
    Retry {
        /// Whose.
        vcpu: VcpuId,
        /// The frame that is accessed.
        gfn: Gfn,
        /// Why.
        cause: RetryCause,
    },
    /// Leaves of one level were taken out of the tables. Their flush is owed.
    Zap {
        /// The frames that they mapped, or a span around these.
        gfns: Span<Gfn>,
        /// Their level.
        level: Level,
        /// How many.
        leaves: u64,
        /// What for.
        cause: Cause,
    },
    /// A leaf became a table of smaller ones, in place.
    Split {
        /// A frame that it maps.
        gfn: Gfn,
        /// The level that it had.
        level: Level,
    },
    /// A table became one leaf, in place.
    Recovered {
        /// The first frame that it maps.
        gfn: Gfn,
        /// The leaf's level.
        level: Level,
    },
    /// A flush was paid: no vCPU has a translation any more that the edits took away.
    Flush {
        /// A span around the frames that lost something.
        gfns: Span<Gfn>,
        /// What the edits were for.
        cause: Cause,
        /// How many edits.
        edits: u64,
        /// 4 KiB pages that they covered.
        pages: u64,
    },
    /// A grace period has ended: no thread is in a table that was unhooked before.
    GracePeriod,
    /// Tables that had their grace period were taken apart, and held so many leaves of this level, which are counted off now.
    TablesFreed {
        /// The leaves' level.
        level: Level,
        /// How many.
        leaves: u64,
    },
    /// Cold tables were taken back, since the budget for tables is used up. Their flush was an event before.
    Reclaimed {
        /// How many, each with what was below it.
        subtrees: u64,
    },
}

impl TraceEvent {
    /// Its kind, in one word.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Fault { .. } => "fault",
            Self::Retry { .. } => "retry",
            Self::Zap { .. } => "zap",
            Self::Split { .. } => "split",
            Self::Recovered { .. } => "recovered",
            Self::Flush { .. } => "flush",
            Self::GracePeriod => "grace-period",
            Self::TablesFreed { .. } => "tables-freed",
            Self::Reclaimed { .. } => "reclaimed",
        }
    }
}

/// Its name, and its values by name: `fault: vcpu=0 gfn=0x5 access=write result=mapped-4k`.
impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name())?;
        match self {
            Self::Fault { vcpu, gfn, access, result } => {
                let (access, result) = (access.name(), result.name());
                write!(f, " vcpu={} gfn={:#x} access={access} result={result}", vcpu.0, gfn.0)
            }
            Self::Retry { vcpu, gfn, cause } => {
                write!(f, " vcpu={} gfn={:#x} cause={}", vcpu.0, gfn.0, cause.name())
            }
            Self::Zap { gfns, level, leaves, cause } => {
                let (first, end, cause) = (gfns.start.0, gfns.end.0, cause.name());
                write!(f, " gfns={first:#x}..{end:#x} level={level:?} leaves={leaves} cause={cause}")
            }
            Self::Split { gfn, level } | Self::Recovered { gfn, level } => {
                write!(f, " gfn={:#x} level={level:?}", gfn.0)
            }
            Self::Flush { gfns, cause, edits, pages } => {
                let (first, end, cause) = (gfns.start.0, gfns.end.0, cause.name());
                write!(f, " gfns={first:#x}..{end:#x} edits={edits} pages={pages} cause={cause}")
            }
            Self::GracePeriod => Ok(()),
            Self::TablesFreed { level, leaves } => write!(f, " level={level:?} leaves={leaves}"),
            Self::Reclaimed { subtrees } => write!(f, " subtrees={subtrees}"),
        }
    }
}

/// Is told events by a host that has it as a type parameter, such as `slat-mm`'s `HostView`. `()` is free. What holds for
/// [`Host::observe`](crate::Host::observe) holds here.
pub trait Observer: Send + Sync {
    /// This has just happened.
    fn observe(&self, event: TraceEvent);
}

impl Observer for () {
    #[inline(always)]
    fn observe(&self, _: TraceEvent) {}
}

/// Where it is said at run time whether there is an observer.
impl<O: Observer> Observer for Option<O> {
    #[inline]
    fn observe(&self, event: TraceEvent) {
        if let Some(observer) = self {
            observer.observe(event);
        }
    }
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    #[inline]
    fn observe(&self, event: TraceEvent) {
        (**self).observe(event);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
