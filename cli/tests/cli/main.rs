//! Tests of the command `slat` from the outside.

mod common;
mod migrate;
mod nested;
mod plan;
mod rough;
mod run;
mod sibling;
mod swap;
mod trace;
// Most of these tests need the screen.
#[cfg(feature = "top")]
mod top;
