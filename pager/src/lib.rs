//! The memory of microVMs, served through Linux's userfaultfd.
//!
//! A VMM restores a guest with empty memory, and sends its userfaultfd to the pager. The pager fills each page from a
//! snapshot template when the guest first touches it.
//!
//! ```
//! use slat_pager::*;
//! use std::sync::Arc;
//! # let folder = std::env::temp_dir().join(format!("slat-pager-doc-{}", std::process::id()));
//!
//! // A template in a store: an image of 1 MiB, in chunks of 64 KiB.
//! let library = Library::new(Folder::open(&folder)?);
//! let image = vec![7; 1 << 20];
//! library.snapshot("seven", &*image, image.len() as u64, 64 << 10)?;
//! assert_eq!(library.verify("seven")?.chunks, 1); // one chunk that occurs 16 times
//!
//! // The regions that a VMM announces are checked against the template.
//! let template = library.open("seven")?;
//! let layout = Layout::new(vec![Region { base: 0x7000_0000, size: 1 << 20, offset: 0 }], template.size())?;
//! # let uffd = match Uffd::new(Features::REMOVE) {
//! #     Ok(uffd) => uffd,
//! #     Err(error) => { println!("skipped: no userfaultfd: {error}"); return Ok(()) }
//! # };
//!
//! // Its faults are served, from a cache that all guests share. `uffd` came from the VMM.
//! let (cache, journal) = (Arc::new(Cache::new(64 << 20)), Journal::new(&layout)?);
//! let guest = Guest::serve(Parts { uffd, layout, template, cache, journal, life: None }, Options::default())?;
//! assert_eq!(guest.stats().filled, 0); // nothing was touched
//! guest.stop();
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The program `slat-pager` does this for many VMMs. A [`Worker`] serves the guests. A [`Keeper`] holds their
//! connections, and restarts the worker if it is killed.
//!
//! # Promises
//!
//! | promise | by |
//! |---|---|
//! | A page has the template's content, or zeros once the guest gave it back, in every race of removal and fill. | one lock around reading events and filling pages; the pager checks the journal under it |
//! | A killed worker loses no removal. | the kernel writes events into the journal, by the same call that takes them |
//! | A killed worker freezes no guest. | the keeper starts another one, which makes waiting threads fault again |
//! | A page has the bytes that were stored. | the hash of each chunk is its name |
//! | A store that does not answer delays only the threads that need it. | the thread that reads a guest's faults does not wait for the store; faults are retried, after longer and longer pauses |
//! | A guest of an overlay has the overlay's bytes where it covers a page, and the base's bytes elsewhere. | all content comes through the template, which knows its pages; the manifest of an overlay protects the base from collection |
//! | A disk between the store and memory makes no byte wrong. | the hash of a chunk is checked when it is read from there, too |
//! | A working set makes no byte wrong. | it says which pages are filled ahead of faults; their content is the template's, after the same check of the journal |
//! | A hostile VMM harms only its own guest. | [`WireError`], [`MigrationError`] and [`LayoutError`]; descriptors are checked; sizes are bounded |
//! | A machine of Cloud Hypervisor ends only when its template is stored. | the answer to its last message comes after the catalog was written |
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `uffd` | the kernel's interface |
//! | `layout` | addresses of a guest's memory |
//! | `wire` | the protocols of VMMs |
//! | `store` | templates, their chunks and their working sets |
//! | `hash` | names of chunks |
//! | `cache` | chunks in the host's memory |
//! | `share` | pages that clones of a template share |
//! | `compute_limit` | a limit for threads that compute ahead of faults |
//! | `journal` | settled pages: those whose content is no longer the template's |
//! | `guest` | faults and their answers |
//! | `machine` | whole machines of Cloud Hypervisor, received and restored |
//! | `latency` | histograms of times |
//! | `daemon` | keeper and worker |
//! | `fuzzing` | entry points for the fuzzer |
//! | `twin` | a process that behaves as a VMM, for tests and the demonstration |
#![deny(missing_docs)]
#![cfg(target_os = "linux")]

mod cache;
mod compute_limit;
#[cfg(feature = "config")]
mod config;
mod daemon;
#[doc(hidden)]
pub mod fuzzing;
mod guest;
mod hash;
mod journal;
mod latency;
mod layout;
mod machine;
mod share;
mod store;
#[doc(hidden)]
pub mod twin;
mod uffd;
mod wire;

pub use cache::{Cache, CacheStats, Source};
#[cfg(feature = "config")]
#[doc(hidden)]
pub use config::flags;
pub use daemon::{
    Ageing, Event, FindTemplate, Guests, Keeper, Limit, Listed, ListedSocket, Listen, Moment, Monitor,
    Request, Serving, Session, WaitingGuest, Worker, WorkerError, accept_one, ask, checkpoint, daemons, list,
};
#[doc(hidden)]
pub use daemon::{Family, Kind, most_of_one_process};
pub use guest::{
    Backing, Guest, GuestStats, Handle, Harvest, HarvestError, Life, Lost, MOST_REPLAYING, OnFailure,
    Options, Parts, Stored, swap_file,
};
pub use journal::{Journal, MOST_READERS};
pub use latency::Latency;
pub use layout::{Layout, LayoutError, MOST_REGIONS, Region};
pub use machine::{Received, Restore, keep_machines, receive_machine, restore_machine, serve_machines};
pub use share::Share;
#[doc(hidden)]
pub use store::{Clock, Trouble};
pub use store::{
    Disk, DiskStats, Entry, Folder, Fsck, Gc, Hash, ImageFile, LeaseStats, Library, MOST_CHUNK, MOST_CONFIG,
    MOST_STATE, Nbd, PATIENCE, Steady, SteadyOptions, Store, StoreError, StoreStats, Template, TemplateLoss,
    TemplateSource, Verified, Version, WorkingSet,
};
#[cfg(feature = "s3")]
pub use store::{Objects, s3};
pub use uffd::{Features, Filled, HUGE_PAGE, PAGE, Refusal, Uffd};
pub use wire::{
    Firecracker, Handshake, MOST_FAULT, MOST_FDS, MOST_HANDSHAKE, MigrationError, Wire, WireError,
};
