//! The benches of this package run in virtual time.

fn main() {
    println!("cargo::rustc-cfg=virtual_time");
}
