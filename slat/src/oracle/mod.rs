//! The oracle: an executable specification that runs beside a VM, and reports who broke the contract.
//!
//! The feature `oracle` compiles it in; [`Builder::checked`](crate::Builder::checked) switches it on. It keeps a *ghost
//! state*: what the host said of each page and until which change, the open changes, table pages, and logged stores. It
//! compares each call of the host, and each step of the engine, with that state. A broken rule is a [`Violation`]: by
//! default a panic, at the call that broke it.
//!
//! ```
//! use slat::{oracle::{Checks, Rule}, table::formats::Npt4, *};
//! use std::sync::{Arc, Mutex, atomic::{AtomicU64, Ordering::Relaxed}};
//!
//! /// A host with one page, whose frame may change.
//! struct One(AtomicU64);
//! impl Host for One {
//!     fn resolve(&self, _: &mut Idle, _: Hva, _: Access) -> Result<HostPage, HostError> {
//!         Ok(HostPage { pfn: Pfn(self.0.load(Relaxed)), ..HostPage::PLAIN })
//!     }
//! }
//!
//! let seen = Arc::new(Mutex::new(Vec::new()));
//! let checks = Checks::default().report({
//!     let seen = seen.clone();
//!     move |violation| seen.lock().unwrap().push(violation.rule)
//! });
//! let mut idle = Idle::take().unwrap();
//! let vm = Vm::<Npt4, _>::builder(One(7.into())).checked_with(checks).build()?;
//! vm.memory().commit(&mut idle, |tx| tx.create(Slot::new(SlotId(0), Gfn(0), 1, Hva(1 << 30))))?;
//! let mut vcpu = vm.vcpu(VcpuId(0)).unwrap();
//! let load = Fault { gpa: Gpa(0), access: Access::Read };
//! vcpu.fault(&mut idle, load)?;
//! vm.host().0.store(8, Relaxed); // without a change: the guest still uses frame 7
//! vm.zap_all(&mut idle)?;
//! vcpu.fault(&mut idle, load)?;
//! assert_eq!(*seen.lock().unwrap(), [Rule::Moved]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Exact or silent.** Calls overlap. An answer counts only if no change of its page was open or began while the host
//! was asked; every other answer is neither checked nor remembered. A transaction that takes memslots away makes the
//! oracle forget all pages. So a report is never a matter of timing, and a defect may go unseen.
//!
//! | part | contents |
//! |---|---|
//! | `ghost` | the ghost state, and the rules |
//! | `chunks` | its sparse arrays |
//! | `checks` | settings, and the embedder's handle |
//! | `seam` | the calls: a host between engine and host, and the engine's hooks |
//! | `after` | what an invalidation must have changed in the tables |
//! | `off` | the same hooks in a build without the feature: nothing |
//!
//! The oracle allocates, and takes a short lock in each call of the host: it is for tests, and for a VMM's debug builds.

#[cfg(feature = "oracle")]
mod after;
#[cfg(feature = "oracle")]
mod checks;
#[cfg(feature = "oracle")]
mod chunks;
#[cfg(feature = "oracle")]
mod ghost;
#[cfg(not(feature = "oracle"))]
mod off;
#[cfg(feature = "oracle")]
mod seam;
#[cfg(feature = "oracle")]
mod violation;

#[cfg(not(feature = "oracle"))]
pub(crate) use off::*;
#[cfg(feature = "oracle")]
pub(crate) use {after::edited, seam::*};
#[cfg(feature = "oracle")]
pub use {
    checks::{Checks, Oracle},
    violation::{Rule, Violation},
};
