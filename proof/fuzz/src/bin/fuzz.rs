//! libFuzzer's entry point: one program for all targets; `SLAT_FUZZ_TARGET` names the target. `cargo xtask fuzz` builds
//! it, with the coverage that guides libFuzzer, and runs it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slat_fuzz::Target;
use std::sync::OnceLock;

fuzz_target!(|bytes: &[u8]| {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("SLAT_FUZZ_TARGET").unwrap_or_default();
        Target::named(&name).unwrap_or_else(|| panic!("SLAT_FUZZ_TARGET={name}: there is no such target"))
    });
    (target.run)(bytes);
});
