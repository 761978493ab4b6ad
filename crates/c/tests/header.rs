//! cbindgen makes `slat.h` from the sources. `SLAT_BLESS=1 cargo test -p slat-c --test header` writes it.

use std::{env, fs, path::Path};

#[test]
fn the_header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let files = [
        "types",
        "callbacks",
        "status",
        "thread",
        "vm",
        "slots",
        "vcpu",
        "populate",
        "pending",
        "change",
        "harvest",
        "rings",
        "space_memory",
        "tracking",
        "hold",
        "bare",
    ];
    let builder = files.iter().fold(cbindgen::Builder::new().with_config(config), |builder, file| {
        builder.with_src(root.join(format!("src/{file}.rs")))
    });
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    let path = root.join("slat.h");
    if env::var_os("SLAT_BLESS").is_some() {
        fs::write(&path, &header).unwrap();
    }
    let kept = fs::read(&path).unwrap_or_default();
    assert!(
        header == kept,
        "slat.h is not that of the sources: SLAT_BLESS=1 cargo test -p slat-c --test header"
    );
}
