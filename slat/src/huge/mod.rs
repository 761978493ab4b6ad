//! Huge pages: changing the size of mappings in place.
//!
//! A fault maps the largest page that four parties allow: the host (the size of its own page), the slot (its frames
//! cover the page, are congruent to its host addresses, and are not logged), the format, and the VM's policy. Later the
//! size can change, and the guest keeps the page:
//!
//! | file | operation | cost |
//! |---|---|---|
//! | `split` | replaces a large leaf by a table of smaller ones with the same translations | one CAS; no hole, no flush |
//! | `recover` | replaces a table by the large leaf that the host has there | one flush of the vCPUs in the guest |
//!
//! **Pages that do not execute.** A fetch through a large page can bring some processors down (the erratum "machine
//! check on page size change"). With [`Builder::nx_huge_pages`](crate::Builder::nx_huge_pages) large leaves do not
//! execute. A fetch splits its page down to 4 KiB leaves, which execute. A periodic [`GuestSpace::recover`](crate::GuestSpace::recover)
//! over a range restores the large pages of code that no longer runs.

#[cfg(all(test, not(loom)))]
mod history_tests;
mod recover;
mod split;
