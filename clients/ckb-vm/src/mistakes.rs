//! Mistakes that a build with the feature `mistakes` can make, so that the checks are seen to find them.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "none is made in a plain build")]
pub enum Mistake {
    /// The TLB keeps what a harvest flushes.
    FlushLeftOut,
    /// A translation that a load brought in serves stores.
    LoadAllowsStore,
    /// The VMM's own stores are not marked in the log.
    StoreUnmarked,
    /// A harvest commits a page that it has not copied.
    PageSkipped,
    /// An instruction that is made again finds its register as its first attempt left it.
    RegisterKept,
}

/// All of them.
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

/// Whether it is made.
#[cfg(feature = "mistakes")]
pub fn is_made(mistake: Mistake) -> bool {
    *MADE.lock().unwrap() == Some(mistake)
}

/// Whether the mistake of this name is made here: never, in a plain build.
macro_rules! mistake {
    ($name:ident) => {{
        #[cfg(feature = "mistakes")]
        let made = $crate::mistakes::is_made($crate::mistakes::Mistake::$name);
        #[cfg(not(feature = "mistakes"))]
        let made = false;
        made
    }};
}
