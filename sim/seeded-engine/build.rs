//! Chooses `slat::sync::prim`'s primitives, virtual time; and lets mistakes and failures be made (`slat::seeded`,
//! `slat::inject`).

fn main() {
    println!("cargo::rustc-cfg=virtual_time");
    println!("cargo::rustc-cfg=seeded");
    println!("cargo::rerun-if-changed=build.rs");
}
