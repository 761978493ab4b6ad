//! The rules of memslots, asked from every side; and their promises to readers, kept under fire.
//!
//! ```text
//!   requests ──▶ oracle      the rules, as plainly as they can be written
//!          ├───▶ slat        must answer and look as the oracle does
//!          └───▶ /dev/kvm    must answer as the oracle does: it is whose rules they are
//! ```
//! The oracle shares no code with the others. A subject that disagrees with it is named with the seed and the step,
//! and a walk is a function of its seed.
//!
//! | file | idea |
//! |---|---|
//! | [`oracle`], [`requests`], [`walk`] | the rules; requests worth making; a walk of them |
//! | [`subject`] | slat, compared step by step with everything that can be asked of it |
//! | [`kvm`] | the kernel, where there is one |
//! | [`transactions`] | many operations at once: all, or nothing |
//! | [`readers`], [`vcpus`] | what others see while a writer is at work |
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

/// Counts a thread out of those still at work; where it panics, too, so that the others end and the test fails.
struct Leaving<'w>(&'w AtomicU64);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
