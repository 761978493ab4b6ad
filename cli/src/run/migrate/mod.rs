//! `--migrate-to`, `--migrate-from`: the guest goes from one process to another while it runs.
//!
//! ```text
//! slat run --migrate-to A                       slat run --migrate-from A, with the same traces
//! vCPUs run ──▶ log ──▶ rounds of pages ──────▶ memory
//!          └──▶ where each vCPU is ───────────▶ vCPUs recall the trace as far as that
//! halt ──▶ the last round, Go ────────────────▶ vCPUs go on
//! ```
//! Memory goes by `slat-migrate`. What else belongs to a guest are the **positions** of its vCPUs: how much of its trace each has
//! made, and where the trace's regions lie. They go as pages of a range of their own, behind guest memory, so they are
//! checked, and sent again, like all others. The receiver reads the same traces, and remembers by them what every byte of
//! memory must be ([`Replay::recall`](slat_vcpu::guest::Replay::recall)); it does so while rounds come, so that little is left to
//! recall when the guest stands still.
//!
//! | file | idea |
//! |---|---|
//! | `args` | what is typed |
//! | `address` | a TCP or Unix socket as it is typed |
//! | `gate` | vCPUs that can be halted between two batches of their traces |
//! | `state` | the positions as bytes |
//! | `send` | the process that the guest leaves |
//! | `arrive` | the one that it comes to |
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
pub use recall::{Came, compare, recall};
pub use send::{Sent, send};
pub use state::Position;

/// How the guest of this run moves.
#[derive(Clone, Copy, Default)]
pub struct Moves<'r> {
    /// It leaves.
    pub gate: Option<&'r Gate>,
    /// It comes.
    pub arrivals: Option<&'r Arrivals>,
}
