//! How much the tests explore. `SLAT_THOROUGH=1` asks for what the nightly tier runs.

/// The first amount with `SLAT_THOROUGH=1`, else the second.
pub fn thorough<T>(night: T, push: T) -> T {
    if std::env::var_os("SLAT_THOROUGH").is_some() { night } else { push }
}
