//! Mistakes that are made on purpose, to see that the tests find them.

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "command", derive(clap::ValueEnum))]
#[doc(hidden)]
pub enum Sabotage {
    /// That a page was removed is not noted.
    Remove,
    /// A page that was removed while its content was being read is not looked at again.
    Recheck,
    /// The next chunk is served.
    Chunk,
    /// A chunk's content is not checked.
    Checksum,
    /// A page that a VMM asks for again is filled again.
    Again,
    /// A machine's migration is said to be complete before its template is stored.
    Early,
    /// A new daemon begins with an empty journal.
    Journal,
    /// Each thread waits for the store.
    Sleep,
    /// A new keeper is not given the guests.
    Heir,
    /// A new daemon does not wake who waited for the old one.
    Wake,
    /// A page that is about to be written is not kept for the snapshot that is under way.
    Capture,
    /// Pages that are removed are not kept for the snapshot that is under way.
    Unread,
    /// Pages of a snapshot that failed are not part of the next one.
    GiveBack,
    /// Pages that are filled are not protected.
    Track,
    /// Of a huge page that is written, its first 4 KiB alone are noted.
    Part,
    /// What the kernel says of a huge page, that it is there, is believed.
    Exists,
    /// A page that is there, and that a killed pager did not note, is no part of a snapshot.
    Unnoted,
    /// No mistake of the pager: the kernel leaves pages in the page table, which it may do.
    Mapped,
    /// The same, and a page is not protected while it leaves.
    Evict,
    /// Where a mark of protection is in the way of zeros, they are not copied.
    Mark,
    /// A removed page that was away comes back.
    Ghost,
    /// A new daemon serves what its templates are by now.
    Version,
    /// A collection deletes what uploads that are under way have written.
    Gc,
    /// A collection does not keep what uploads rely on that began before its template went.
    Retired,
    /// A collection does not keep what hosts serve.
    Lease,
    /// An upload that a collection gave up becomes a template.
    GivenUp,
    /// Manifests of one content have one name, whichever chunks they list.
    Identity,
    /// A chunk that was deleted has the same name when it is written again.
    Epoch,
}
