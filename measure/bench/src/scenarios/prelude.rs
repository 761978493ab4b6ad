//! Names that scenarios use in both worlds: `use crate::scenarios::prelude::*`.

#[cfg(not(virtual_time))]
pub use crate::columns_compared::ColumnFlags;
pub use crate::parts::guest_program::{Program, Seen, Step, Use};
pub use crate::parts::mm_vm::{POISON, host_has, machine};
pub use crate::parts::page_order::PageOrder;
pub use crate::parts::point::{Check, Figure, Point, Tally};
pub use crate::parts::processor::{OfProcessor, Tlb};
pub use crate::parts::published_figures::{Against, figure, ratio};
pub use crate::parts::setting::{Column, MMU_LOCKS, NONE, Over, Setting, Work};
pub use crate::parts::sim_host::{BASE, SimHost, first_page, hva_of, hvas_of, other_page};
#[cfg(test)]
pub use crate::parts::test_settings::{failing, setting};
pub use crate::parts::touch_pages::{Bare, Guest, Touch};
pub use crate::parts::vcpu_parts::Parts;
pub use crate::parts::vcpu_programs::VcpuPrograms;
pub use crate::parts::vm_setup::{
    SimVm, builder, each_vcpu, gfns, idle, right, right_by, sim_vm, vcpu, with_one_slot,
};
#[cfg(not(virtual_time))]
pub use crate::scenario::Measured;
pub use crate::scenario::{ALL_THERE, NO_AGER, Scenario, Simulated};
pub use crate::world::{Costs, Job, RunStats, compute, elapsed, kick, now, pause, rest, run};
pub use core::sync::atomic::AtomicBool;
pub use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
pub use slat::baselines::{Baseline, MmuLock};
pub use slat::table::formats::Ept4;
pub use slat::{
    Access, Builder, Event, Fault, FaultError, Format, Gfn, Host, HostError, HostPage, Hva, Idle, Level,
    Next, PAGE_SHIFT, PAGE_SIZE, Pfn, Prefault, Reason, Resume, SecondaryMmu, Slot, SlotId, Span,
    Translations, Vcpu, VcpuId, Vm, Young,
};
pub use slat_mm::{AddressSpace, Arena, Backing, HostView, MmError, Place, Prot};
pub use slat_series::PatchSeries;
pub use std::sync::Arc;

/// The result of a part: an error is a text.
pub type Result<T, E = String> = core::result::Result<T, E>;
