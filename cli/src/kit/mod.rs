//! The kit of the command, which slat-bench and the clients share: the crate's root re-exports it.
//!
//! | file | contents |
//! |---|---|
//! | `flags` | rules that all command lines follow, and the check of them |
//! | `size` | parsers for sizes and times |
//! | `error` | errors: one line, and the exit status |
//! | `allocator` | the global allocator, which ends the process where memory is refused |
//! | `interrupt` | signals that end the command |
//! | `temporary` | files that are removed at the end |
//! | `bar` | progress on standard error |
//! | `thread` | starting, stopping and joining threads |
//! | `migration` | timeouts and errors of a migration |
//! | `date` | the date of a stored result |

pub mod allocator;
pub mod bar;
pub mod date;
pub mod error;
pub mod flags;
pub mod interrupt;
pub mod migration;
pub mod size;
pub mod temporary;
pub mod thread;
