//! Names the linker script, which is that of every program on this bare metal.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../x86/link.ld");
    println!("cargo:rustc-link-arg-bins=-T{script}");
    println!("cargo:rerun-if-changed={script}");
}
