//! Events of a VM, reported as they happen: for tracers, and for tests that count.
//!
//! The engine passes each event to [`Host::observe`](crate::Host::observe). A host that does not override it pays
//! nothing: the compiler removes the calls. Each counter of [`Stats`](crate::Stats) is a sum of events, except the
//! waits for a baseline policy's lock, which have no event:
//!
//! | counter | sum of |
//! |---|---|
//! | `mapped_faults`, `permission_faults`, `spurious_faults`, `mmio_faults` | [`Fault`](TraceEvent::Fault), by result |
//! | `retries_by`, `asked_again` | [`Retry`](TraceEvent::Retry), by cause |
//! | `splits`, `recovered` | [`Split`](TraceEvent::Split), [`Recovered`](TraceEvent::Recovered), by level |
//! | `flushes_by` | [`Flush`](TraceEvent::Flush), by cause |
//! | `tables_reclaimed` | `subtrees` of [`Reclaimed`](TraceEvent::Reclaimed) |
//! | `leaves` | leaves that faults mapped, minus those of [`Zap`](TraceEvent::Zap) and [`TablesFreed`](TraceEvent::TablesFreed); a split removes one leaf and adds 512 smaller ones; a recovery adds one |
//!
//! ```
//! use slat::{table::formats::Ept4, trace::{FaultResult, TraceEvent}, *};
//! use std::sync::Mutex;
//!
//! /// A host that records the events.
//! #[derive(Default)]
//! struct Recorder(Mutex<Vec<TraceEvent>>);
//! impl Host for Recorder {
//!     fn resolve(&self, _: &mut Idle, hva: Hva, _: Access) -> Result<HostPage, HostError> {
//!         Ok(HostPage { pfn: Pfn(hva.0 >> 12), ..HostPage::PLAIN })
//!     }
//!     fn observe(&self, event: TraceEvent) {
//!         self.0.lock().unwrap().push(event);
//!     }
//! }
//!
//! let mut idle = Idle::take().unwrap();
//! let vm = Vm::<Ept4, _>::builder(Recorder::default()).build()?;
//! let ram = Slot::new(SlotId(0), Gfn(0), 512, Hva(1 << 30));
//! vm.memory().commit(&mut idle, |tx| tx.create(ram))?;
//! vm.vcpu(VcpuId(0)).unwrap().fault(&mut idle, Fault { gpa: Gpa(0x5000), access: Access::Write })?;
//! vm.change(&mut idle, ram.hvas(), Why::Migrate, |_| { /* the host changes its own table */ });
//!
//! let events = vm.host().0.lock().unwrap();
//! let result = FaultResult::Mapped(Level::K4);
//! assert_eq!(events[0], TraceEvent::Fault { vcpu: VcpuId(0), gfn: Gfn(5), access: Access::Write, result });
//! assert!(matches!(events[1], TraceEvent::Zap { leaves: 1, cause: Cause::Change(Reason::Migrate), .. }));
//! assert!(matches!(events[2], TraceEvent::Flush { pages: 1, .. }));
//! assert_eq!(events[0].to_string(), "fault: vcpu=0 gfn=0x5 access=write result=mapped-4k");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::sync::tally::RetryCause;
use crate::{Access, Cause, Gfn, Level, Span};
use alloc::sync::Arc;
use core::fmt;

/// A vCPU's number in its VM, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VcpuId(pub u32);

/// Result of a fault: a [`Next`](crate::Next), or an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FaultResult {
    /// The fault installed a leaf of this level.
    Mapped(Level),
    /// The fault restored a permission of the leaf in place.
    Fixed,
    /// The entry already allowed the access.
    Spurious,
    /// The access goes to a device.
    Mmio,
    /// The fault changed nothing: a dirty ring is full, a page is pending, or the VMM must provide, convert or emulate.
    Deferred,
    /// The fault failed: no page, or no memory for tables.
    Failed,
}

impl FaultResult {
    /// Returns its name: a word, with the size for a mapping.
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

/// An event in a VM. See the [module's page](crate::trace).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceEvent {
    /// A fault has ended, or one page of a prefault.
    Fault {
        /// The faulting vCPU.
        vcpu: VcpuId,
        /// The accessed frame.
        gfn: Gfn,
        /// Kind of access.
        access: Access,
        /// Result of the fault.
        result: FaultResult,
    },
    /// A fault starts another attempt. With [`RetryCause::Asked`], it asks the host again within the same attempt.
    Retry {
        /// The faulting vCPU.
        vcpu: VcpuId,
        /// The accessed frame.
        gfn: Gfn,
        /// Cause of the retry.
        cause: RetryCause,
    },
    /// Leaves of one level were zapped. Their flush is owed.
    Zap {
        /// The frames that they mapped, or a span around them.
        gfns: Span<Gfn>,
        /// Level of the leaves.
        level: Level,
        /// Number of leaves.
        leaves: u64,
        /// Cause of the edit.
        cause: Cause,
    },
    /// A leaf became a table of smaller leaves, in place.
    Split {
        /// A frame that the leaf maps.
        gfn: Gfn,
        /// Level of the leaf.
        level: Level,
    },
    /// A table became one leaf, in place.
    Recovered {
        /// The first frame that the leaf maps.
        gfn: Gfn,
        /// Level of the leaf.
        level: Level,
    },
    /// A flush was paid: no vCPU has a translation any more that the edits removed.
    Flush {
        /// A span around the frames whose translations the edits removed.
        gfns: Span<Gfn>,
        /// Cause of the edits.
        cause: Cause,
        /// Number of edits. All edits of nested guests' shadows count as one.
        edits: u64,
        /// Number of 4 KiB pages in the edits.
        pages: u64,
    },
    /// A grace period has ended: no thread is in a table that was unhooked before it.
    GracePeriod,
    /// Dead tables were collected. They held leaves of this level, which are now subtracted from the count.
    TablesFreed {
        /// Level of the leaves.
        level: Level,
        /// Number of leaves.
        leaves: u64,
    },
    /// Cold tables were reclaimed, because the budget for tables is used up. Their flush was an earlier event.
    Reclaimed {
        /// Number of subtrees.
        subtrees: u64,
    },
}

impl TraceEvent {
    /// Returns its kind, as one word.
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

/// The event's name, and its values by name: `fault: vcpu=0 gfn=0x5 access=write result=mapped-4k`.
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

/// A receiver of events, for hosts that take one as a type parameter, such as `slat-mm`'s `HostView`. `()` costs
/// nothing. The rules of [`Host::observe`](crate::Host::observe) apply.
pub trait Observer: Send + Sync {
    /// Receives an event that has just happened.
    fn observe(&self, event: TraceEvent);
}

impl Observer for () {
    #[inline(always)]
    fn observe(&self, _: TraceEvent) {}
}

/// An observer that is chosen at run time.
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
