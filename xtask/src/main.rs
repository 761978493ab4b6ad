//! House chores.
fn main() {}
