//! Mistakes that a build with the feature `mistakes` can make, to show that the checks find them.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "none is made in a plain build")]
pub enum Mistake {
    /// The TLB ignores a harvest's flush.
    FlushLeftOut,
    /// A store uses a translation that a load has cached.
    LoadAllowsStore,
    /// The VMM does not log its own stores.
    StoreUnmarked,
    /// A harvest commits a page without copying it.
    PageSkipped,
    /// An instruction that runs again finds the register that its first attempt has changed.
    RegisterKept,
}

/// All mistakes.
#[cfg(feature = "mistakes")]
pub const ALL: [Mistake; 5] = {
    use Mistake::{FlushLeftOut, LoadAllowsStore, PageSkipped, RegisterKept, StoreUnmarked};
    [FlushLeftOut, LoadAllowsStore, StoreUnmarked, PageSkipped, RegisterKept]
};

#[cfg(feature = "mistakes")]
static MADE: std::sync::Mutex<Option<Mistake>> = std::sync::Mutex::new(None);

/// Makes this mistake from now on, or none.
#[cfg(feature = "mistakes")]
pub fn make(mistake: Option<Mistake>) {
    *MADE.lock().unwrap() = mistake;
}

/// Whether this build makes the mistake now.
#[cfg(feature = "mistakes")]
pub fn is_made(mistake: Mistake) -> bool {
    *MADE.lock().unwrap() == Some(mistake)
}

/// Whether the mistake of this name is on: never in a plain build.
macro_rules! mistake {
    ($name:ident) => {{
        #[cfg(feature = "mistakes")]
        let made = $crate::mistakes::is_made($crate::mistakes::Mistake::$name);
        #[cfg(not(feature = "mistakes"))]
        let made = false;
        made
    }};
}
