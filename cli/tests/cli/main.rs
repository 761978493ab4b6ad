//! The command `slat` as its users meet it.

mod common;
mod measure;
mod plan;
mod rough;
mod run;
mod swap;
mod trace;
// Most of it needs the screen.
#[cfg(feature = "top")]
mod top;
