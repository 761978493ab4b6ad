//! The rules that the oracle checks, and its reports.

use alloc::string::String;
use core::fmt;

macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident $name:literal: $advice:literal,)*) => {
        /// A rule of the contract between engine and embedder.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Rule { $($(#[$doc])* $rule,)* }

        impl Rule {
            /// All rules.
            pub const ALL: &'static [Self] = &[$(Self::$rule),*];

            /// The rule's name, as reports print it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$rule => $name,)* }
            }

            /// The advice where the rule is broken.
            pub const fn advice(self) -> &'static str {
                match self { $(Self::$rule => $advice,)* }
            }
        }
    };
}

rules! {
    /// The host's answer names another frame, and no change of the page was announced in between.
    Moved "moved without a change":
        "wrap the update of the host's table in Vm::change, with the whole range",
    /// The host has a page no more, and no change of it was announced.
    Removed "removed without a change":
        "wrap the removal in Vm::change with Why::Unmap or Why::Clear",
    /// The host refuses stores that it allowed, and no change was announced.
    WriteWithdrawn "write permission withdrawn without a change":
        "wrap it in Vm::change with Why::Protect or Why::WriteProtect",
    /// The host refuses fetches that it allowed, and no change was announced.
    ExecuteWithdrawn "execute permission withdrawn without a change":
        "report it as a move: Vm::change with Why::Migrate",
    /// The host names another memory type, and no change was announced.
    TypeChanged "memory type changed without a change":
        "report it as a move: Vm::change with Why::Migrate",
    /// A change ended, the host answered the old page once more, and then another one.
    EndedTooEarly "change ended too early":
        "end the change after the update of the host's table: keep the guard, or update in the closure of Vm::change",
    /// A change was dropped before it was applied, and the host's table changed all the same.
    Cancelled "change cancelled":
        "call Invalidation::apply and settle before the host's table changes",
    /// The host's table had changed when the change began.
    ChangedBefore "table changed before the change began":
        "begin the change first: guests use the old page until it is settled",
    /// The host's table changed before the flush of the change was paid.
    ChangedBeforeFlush "table changed before the flush":
        "settle first, then update the host's table",
    /// A page changed in a change that is told page by page, and was not told.
    NotTold "page not told":
        "call Pages::changed for each page that changes, or use Vm::change",
    /// A page was told that is outside of the announced range.
    ToldOutside "page told outside of the range":
        "announce all that changes",
    /// The host answers another page than it told.
    ToldOther "another page than told":
        "tell the page that the host's table has afterwards",
    /// An invalidation was leaked: it never ends.
    NeverEnded "change never ended":
        "drop each Invalidation; do not leak it",
    /// An invalidation left a leaf that it should have edited.
    LeafLeft "leaf left by an invalidation":
        "this is a defect of the engine: report it",
    /// One frame backs two host addresses.
    TwoOwners "frame with two owners":
        "take the frame from its first address by a change, before it is used again; memory that is shared on purpose: Checks::shared_frames",
    /// The host's answer is a page that it has lent for tables.
    TablePage "table page given to the guest":
        "keep lent pages out of the guest's memory until TableMemory::take_back",
    /// The host lends a page for tables that a guest uses.
    LentGuestPage "guest page lent for tables":
        "take the page from the guest by a change first",
    /// The host lends a page for tables twice.
    LentTwice "page lent twice":
        "lend a page again after TableMemory::take_back",
    /// The host lends pages that are not aligned to their size.
    LentMisaligned "lent pages not aligned":
        "align lent pages to their size, both the address and the frame",
    /// The host's address of a lent page is not the page.
    LentElsewhere "wrong address of a table page":
        "TableMemory::at must return the address that lend returned for the frame",
    /// A frame is about to be used again while a guest may use it.
    FreedInUse "frame freed while the guest may use it":
        "free it after the change that took it has been settled",
    /// The host's answer fits no entry of the page table.
    BadFrame "impossible frame":
        "return a frame that the format can hold, congruent to the address modulo the page's size",
    /// The host answers a store with a page that is not writable.
    NotServed "store not served":
        "Host::resolve must return a writable page for a store, or an error",
    /// The guest used a translation after the flush that took it.
    StaleUse "stale translation used":
        "make Translations::flush and flush_all, or broadcast_flush, forget every translation of the frames",
    /// The guest stored through a translation whose write permission is gone.
    StaleWrite "stale write permission used":
        "make Translations::flush forget write permissions, too",
    /// A software vCPU runs on after a kick.
    KickIgnored "kick ignored":
        "poll InGuest::kicked between accesses, then answer or leave",
    /// A vCPU answered a kick late.
    KickLate "kick not delivered":
        "make Host::kick interrupt the processor that runs the vCPU",
    /// The vCPU runs on an old root.
    StaleRoot "root not loaded":
        "load Ready::root into the control block at each entry",
    /// The thread moved to another processor while its vCPU was in the guest.
    MovedInGuest "moved to another processor in the guest":
        "pin the thread from Vcpu::enter until the guard is dropped",
    /// A guard of a vCPU in the guest was leaked.
    GuestLeaked "guard of the guest leaked":
        "drop InGuest: flushes wait for the vCPU until then",
    /// A store to memory that is logged is in no log.
    StoreUnlogged "store in no log":
        "set the Dirty bit in the walk (DirtyLog by D bits), or call mark_dirty after the VMM's own store",
}

/// A rule that was broken: see [`Rule`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// The broken rule.
    pub rule: Rule,
    /// The call that broke it.
    pub call: &'static str,
    /// The observation, with its values.
    pub seen: String,
}

/// The call, the rule, what was seen, and what to do.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, call, seen } = self;
        write!(f, "{call}: {}: {seen}; {}", rule.name(), rule.advice())
    }
}
