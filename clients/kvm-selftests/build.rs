//! Links the Unicorn that `run` has built in the folder `UNICORN`.

fn main() {
    println!("cargo:rerun-if-env-changed=UNICORN");
    if let Ok(folder) = std::env::var("UNICORN") {
        println!("cargo:rustc-link-search=native={folder}");
    }
    println!("cargo:rustc-link-lib=static=unicorn");
    println!("cargo:rustc-link-lib=m");
}
