//! The options of a view, and the reasons for its end.

use std::time::Duration;

/// The options of a view.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "top"), allow(dead_code, reason = "only the screen changes the interval"))]
pub struct Wanted {
    /// The interval between samples, until a key changes it.
    pub every: Duration,
    /// Number of samples; `None` for all.
    pub most: Option<u64>,
    /// Negative control: panic after the first screen.
    pub sabotaged: bool,
}

/// The reason for the end of a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The run has ended.
    Run,
    /// The connection to the run was lost.
    Lost,
    /// The wanted number of samples was shown, or the user quit.
    Enough,
    /// A signal arrived.
    Interrupted,
}
