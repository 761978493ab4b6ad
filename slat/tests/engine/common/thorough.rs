//! The amount that tests explore. `SLAT_THOROUGH=1` asks for the nightly tier.

/// Returns the first amount with `SLAT_THOROUGH=1`, otherwise the second.
pub fn thorough<T>(night: T, push: T) -> T {
    if std::env::var_os("SLAT_THOROUGH").is_some() { night } else { push }
}
