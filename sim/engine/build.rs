//! Chooses `slat::sync::prim`'s primitives: virtual time.

fn main() {
    println!("cargo::rustc-cfg=virtual_time");
    println!("cargo::rerun-if-changed=build.rs");
}
