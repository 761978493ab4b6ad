//! Chooses `slat::sync::prim`'s primitives: virtual time.
//!
//! The engine's source is compiled a second time, by a package whose `[lib] path` it is. A feature of `slat` would be unified
//! into the real benches, which would then run on simulated atomics. The price: the packages of `measure/virtual/` cannot be published.

fn main() {
    println!("cargo::rustc-cfg=virtual_time");
    println!("cargo::rerun-if-changed=build.rs");
}
