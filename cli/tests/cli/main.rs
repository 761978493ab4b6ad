//! The command `slat` as its users meet it.

mod common;
mod migrate;
mod nested;
mod plan;
mod rough;
mod run;
mod sibling;
mod swap;
mod trace;
// Most of it needs the screen.
#[cfg(feature = "top")]
mod top;
