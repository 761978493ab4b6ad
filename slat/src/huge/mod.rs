//! Huge pages: the same memory in larger and smaller pages, changed in place.
//!
//! A fault maps as large a page as four parties allow: the host (how large its own page is), the slot (its frames cover
//! the page, are congruent to its host addresses, and are not logged), the format, and the VM's policy. Afterwards
//! the size can change without the guest losing the page:
//!
//! | file | what happens | who notices |
//! |---|---|---|
//! | `split` | a large leaf becomes a table of smaller ones with the same translations | no thread: one CAS, no hole, no flush |
//! | `recover` | a table becomes the large leaf that the host has there | vCPUs in the guest, once: one flush |
//!
//! **Pages that do not execute.** Some processors can be brought down by a fetch through a large page (the erratum
//! "machine check on page size change"). With [`Builder::nx_huge_pages`](crate::Builder::nx_huge_pages) large leaves
//! do not execute: a fetch splits its page down to 4 KiB leaves that do, and [`Vm::recover`](crate::Vm::recover) over
//! a range, called now and then, gives code that is no longer run its large pages back.

#[cfg(all(test, not(loom)))]
mod history_tests;
mod recover;
mod split;
