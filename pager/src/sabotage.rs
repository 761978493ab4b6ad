//! Seeded mistakes, which the tests must find.

/// A seeded mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "command", derive(clap::ValueEnum))]
#[doc(hidden)]
pub enum Sabotage {
    /// The pager does not note that a page was removed.
    Remove,
    /// The pager does not check after a read whether the page was removed meanwhile.
    Recheck,
    /// The pager serves the next chunk.
    Chunk,
    /// The pager does not check a chunk's content.
    Checksum,
    /// The pager fills a page again when the VMM asks again.
    Again,
    /// The pager reports a migration as complete before the template is stored.
    Early,
    /// A new daemon begins with an empty journal.
    Journal,
    /// Each thread waits for the store.
    Sleep,
    /// A new keeper does not get the guests.
    Heir,
    /// Keeper and worker wait for room in their channel, the worker with its state locked.
    Lockstep,
    /// A new daemon does not wake threads that wait.
    Wake,
    /// A snapshot under way does not keep a page that is about to be written.
    Capture,
    /// A snapshot under way does not keep removed pages.
    Unread,
    /// Pages of a snapshot that failed are not part of the next one.
    GiveBack,
    /// Filled pages are not protected.
    Track,
    /// A write to a huge page notes only its first 4 KiB.
    Part,
    /// The pager trusts EEXIST for a huge page.
    Exists,
    /// A snapshot omits a present page that a killed pager did not note.
    Unnoted,
    /// Not a mistake of the pager: the kernel leaves pages in the page table, which it may do.
    Mapped,
    /// The kernel leaves pages in the page table, and the pager does not protect a page while it leaves.
    Evict,
    /// If a protection marker makes ZEROPAGE fail, the pager does not copy zeros.
    Mark,
    /// A removed page that was away comes back.
    Ghost,
    /// A new daemon serves the current version of a template.
    Version,
    /// A collection deletes objects of uploads under way.
    Gc,
    /// A collection deletes chunks of a removed template on which earlier uploads rely.
    Retired,
    /// A collection deletes what hosts serve.
    Lease,
    /// An upload that a collection gave up becomes a template.
    GivenUp,
    /// Manifests of the same content have the same name, whichever chunks they list.
    Identity,
    /// A chunk that was deleted has the same name when it is written again.
    Epoch,
}
