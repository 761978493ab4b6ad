//! The held frame.

use super::pages::NONE;

/// State of the held frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HeldState {
    /// An invalidation has taken it back; or the host was never asked for it.
    #[default]
    Taken,
    /// The host is being asked.
    Asking,
    /// It may be used.
    Valid,
}

/// The held frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Held {
    pub(crate) state: HeldState,
    /// The guest frame and the host page, as published; or [`NONE`].
    pub(crate) gfn: u8,
    pub(crate) hva: u8,
    /// The host's frame, and whether it may be written.
    pub(crate) pfn: u8,
    pub(crate) write: bool,
    /// A use has begun, and has this frame.
    pub(crate) inside: bool,
    pub(crate) using: Option<u8>,
    /// vCPUs hand it to hardware.
    pub(crate) hardware: bool,
}

impl Default for Held {
    fn default() -> Self {
        let state = HeldState::Taken;
        Self {
            state,
            gfn: NONE,
            hva: NONE,
            pfn: 0,
            write: false,
            inside: false,
            using: None,
            hardware: false,
        }
    }
}

impl Held {
    /// Returns the frame, if it may be used.
    pub(crate) fn current(&self) -> Option<u8> {
        (self.state == HeldState::Valid).then_some(self.pfn)
    }
}
