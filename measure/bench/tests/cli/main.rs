//! `slat bench`, `sim`, `calibrate` and `report` as their users meet them.

mod bad_input;
mod bench_rows;
mod common;
mod compare;
mod migrate;
mod report;
mod rough;
mod sim;
#[path = "../../../../slat/tests/engine/common/thorough.rs"]
mod thorough;
