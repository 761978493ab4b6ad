//! The rules of memslots, asked from every side; and their promises to readers, under load.
//!
//! ```text
//!   requests ──▶ oracle      the rules, as plainly as they can be written
//!          ├───▶ slat        must answer and look as the oracle does
//!          └───▶ /dev/kvm    must answer as the oracle does: the rules are KVM's
//! ```
//! The oracle shares no code with the others. A subject that disagrees with it is named with the seed and the step. A
//! walk is a function of its seed.
//!
//! | file | contents |
//! |---|---|
//! | [`oracle`], [`requests`], [`walk`] | the rules; requests worth testing; a walk of them |
//! | [`subject`] | slat, compared step by step through every query |
//! | [`kvm`] | the kernel, if there is one |
//! | [`transactions`] | many operations at once: all, or nothing |
//! | [`readers`], [`vcpus`] | what other threads see during a writer's work |
//! | [`scale`] | many slots |

mod oracle;
mod readers;
mod requests;
mod scale;
mod subject;
mod transactions;
mod vcpus;
mod walk;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod kvm;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Counts a thread as finished, also if it panics, so that the others end and the test fails.
struct Leaving<'w>(&'w AtomicU64);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
