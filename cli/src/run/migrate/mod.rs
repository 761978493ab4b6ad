//! `--migrate-to`, `--migrate-from`: a live migration of the guest from one process to another.
//!
//! ```text
//! slat run --migrate-to A                       slat run --migrate-from A, with the same traces
//! vCPUs run ──▶ log ──▶ rounds of pages ──────▶ memory
//!          └──▶ each vCPU's position ─────────▶ vCPUs recall the trace up to that position
//! halt ──▶ the last round, Go ────────────────▶ vCPUs continue
//! ```
//! `slat-migrate` sends memory. The **position** of each vCPU is part of the guest, too: the number of
//! replayed batches of its trace, and the places of the trace's regions. Positions are sent as pages of a range behind
//! guest memory, so they are checked and sent again like all pages. The receiver reads the same traces. From them it
//! computes what each byte of memory must be ([`Replay::recall`](slat_vcpu::guest::Replay::recall)). It does so while
//! rounds arrive, which shortens the downtime.
//!
//! | file | contents |
//! |---|---|
//! | `gate` | vCPUs that can be halted between two batches of their traces |
//! | `state` | the positions as bytes |
//! | `send` | the process that the guest leaves |
//! | `arrive` | the receiving process |
//! | `recall` | the receiver's vCPUs until they continue, and the comparison at the end |

mod arrive;
mod gate;
mod recall;
mod send;
mod state;

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
