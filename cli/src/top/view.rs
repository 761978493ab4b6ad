//! The options of a view, and why it has ended.

use std::time::Duration;

/// The options of a view.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "top"), allow(dead_code, reason = "lines cannot be told to come more often"))]
pub(super) struct Wanted {
    /// The interval between samples, until a key changes it.
    pub(super) every: Duration,
    /// Number of samples; `None` for all.
    pub(super) most: Option<u64>,
    /// Negative control: panic after the first screen.
    pub(super) sabotaged: bool,
}

/// Why a view has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The run has ended.
    Run,
    /// The connection to the run was lost.
    Lost,
    /// The wanted number of samples was shown, or the user quit.
    Enough,
    /// A signal arrived.
    Interrupted,
}
