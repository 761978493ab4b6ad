//! The command `slat`.
fn main() {}
