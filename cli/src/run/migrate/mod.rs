//! `--migrate-to`, `--migrate-from`: the guest goes from one process to another while it runs.
//!
//! ```text
//! slat run --migrate-to A                       slat run --migrate-from A, with the same traces
//! vCPUs run ──▶ log ──▶ rounds of pages ──────▶ memory
//!          └──▶ where each vCPU is ───────────▶ vCPUs recall the trace as far as that
//! halt ──▶ the last round, Go ────────────────▶ vCPUs go on
//! ```
//! `slat-migrate` sends memory. The **positions** of the vCPUs belong to the guest, too: how many batches of its
//! trace a vCPU has replayed, and where the trace's regions lie. They are sent as pages of a range behind guest
//! memory, so they are checked and sent again like all pages. The receiver reads the same traces. From them it
//! computes what each byte of memory must be ([`Replay::recall`](slat_vcpu::guest::Replay::recall)). It does so while
//! rounds arrive, so that little is left to recall when the guest stands still.
//!
//! | file | idea |
//! |---|---|
//! | `args` | what is typed |
//! | `address` | a TCP or Unix socket as it is typed |
//! | `gate` | vCPUs that can be halted between two batches of their traces |
//! | `state` | the positions as bytes |
//! | `send` | the process that the guest leaves |
//! | `arrive` | the receiving process |
//! | `recall` | its vCPUs there, until they go on; the comparison in the end |

mod address;
mod args;
mod arrive;
mod gate;
mod recall;
mod send;
mod state;

pub use address::Address;
pub use args::Migrate;
pub use arrive::{Arrivals, Arrived, arrive};
pub use gate::{Gate, Turn};
pub use recall::{Recalled, compare, recall};
pub use send::{Sent, send};
pub use state::Position;

/// The direction of a migration.
#[derive(Clone, Copy, Default)]
pub struct Moves<'r> {
    /// The guest leaves.
    pub gate: Option<&'r Gate>,
    /// The guest arrives.
    pub arrivals: Option<&'r Arrivals>,
}
