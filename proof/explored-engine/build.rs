//! Chooses `slat::sync::prim`'s primitives, virtual time; and lets failures be injected (`slat::inject`).

fn main() {
    println!("cargo::rustc-cfg=virtual_time");
    println!("cargo::rustc-cfg=explored");
    println!("cargo::rerun-if-changed=build.rs");
}
