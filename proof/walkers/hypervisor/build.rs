//! Passes the linker script of all x86 programs to the linker.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../x86/link.ld");
    println!("cargo:rustc-link-arg-bins=-T{script}");
    println!("cargo:rerun-if-changed={script}");
}
