//! `enabled` and `min_ttl_ms`: settings for all address spaces at once.
//!
//! | bit of `enabled` | effect |
//! |---|---|
//! | 0x0001 | the LRU itself; always on |
//! | 0x0002 | aging scans the Accessed bits of pages |
//! | 0x0004 | the kernel's Accessed bits of non-leaf entries; never on here |
//! | 0x0008 | aging asks secondary MMUs too (the MGLRU aging series) |
//!
//! Unsupported bits are ignored, as in the kernel; reading shows which bits are on.

use super::command::shown;
use super::{LruGen, LruGenError};
use crate::lru::LruSettings;
use std::time::Duration;

const CORE: u32 = 1;
const WALK_PAGES: u32 = 2;
const WALK_SECONDARY: u32 = 8;

impl LruGen {
    /// Returns the bits that are on in every address space, as the kernel prints them: `0x000b`. Without
    /// address spaces, the default.
    pub fn read_enabled(&self) -> String {
        let mut mask = CORE | WALK_PAGES | WALK_SECONDARY;
        self.each(|settings| {
            mask &= if settings.walk_pages { !0 } else { !WALK_PAGES };
            mask &= if settings.walk_secondary { !0 } else { !WALK_SECONDARY };
            false
        });
        format!("{mask:#06x}\n")
    }

    /// Sets the bits from a mask (decimal, octal or hexadecimal as in C), or all bits from `y`.
    ///
    /// # Errors
    /// [`LruGenError::CoreIsOn`] for `n` or a mask without the core bit.
    pub fn write_enabled(&self, text: &str) -> Result<(), LruGenError> {
        let text = text.trim();
        let mask = match text.as_bytes() {
            [b'y' | b'Y', ..] => !0,
            [b'n' | b'N', ..] => 0,
            _ => mask(text).ok_or_else(|| LruGenError::Garbage(shown(text)))?,
        };
        if mask & CORE == 0 {
            return Err(LruGenError::CoreIsOn);
        }
        self.each(|settings| {
            settings.walk_pages = mask & WALK_PAGES != 0;
            settings.walk_secondary = mask & WALK_SECONDARY != 0;
            true
        });
        Ok(())
    }

    /// Returns the longest `min_ttl` of all address spaces, in milliseconds.
    pub fn read_min_ttl_ms(&self) -> String {
        let mut most = Duration::ZERO;
        self.each(|settings| {
            most = most.max(settings.min_ttl);
            false
        });
        format!("{}\n", most.as_millis())
    }

    /// Sets `min_ttl` of all address spaces, in milliseconds; 0 turns it off.
    pub fn write_min_ttl_ms(&self, text: &str) -> Result<(), LruGenError> {
        let text = text.trim();
        let ms = mask(text).ok_or_else(|| LruGenError::Garbage(shown(text)))?;
        self.each(|settings| {
            settings.min_ttl = Duration::from_millis(ms.into());
            true
        });
        Ok(())
    }

    /// Visits the settings of every LRU, and stores them if the visitor returns true.
    fn each(&self, mut visit: impl FnMut(&mut LruSettings) -> bool) {
        for space in self.spaces.read().iter().filter_map(|entry| entry.space.upgrade()) {
            if let Some(lru) = space.lru() {
                let mut settings = lru.settings();
                if visit(&mut settings) {
                    lru.set(settings);
                }
            }
        }
    }
}

/// Parses a 32-bit number as C writes it.
fn mask(text: &str) -> Option<u32> {
    let lower = text.to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if lower.len() > 1 && lower.starts_with('0') => (&lower[1..], 8),
        None => (lower.as_str(), 10),
    };
    // The standard parser accepts a sign; the kernel's unsigned parser does not accept a minus.
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, radix).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddressSpace, Arena};

    #[test]
    fn switches_and_times_are_set_everywhere() {
        let arena = Arena::builder().limit(16 << 20).build().unwrap();
        let spaces =
            [0, 1].map(|_| AddressSpace::builder(&arena).lru(LruSettings::default()).build().unwrap());
        let plain = AddressSpace::builder(&arena).build().unwrap();
        let lru_gen = LruGen::new();
        for space in spaces.iter().chain([&plain]) {
            lru_gen.add("", space);
        }
        assert_eq!(
            (lru_gen.read_enabled().as_str(), lru_gen.read_min_ttl_ms().as_str()),
            ("0x000b\n", "0\n")
        );
        for (written, shown) in [
            ("0x0003", "0x0003\n"),
            ("1", "0x0001\n"),
            ("y\n", "0x000b\n"),
            ("011", "0x0009\n"),
            ("15", "0x000b\n"),
        ] {
            lru_gen.write_enabled(written).unwrap();
            assert_eq!(lru_gen.read_enabled(), shown, "{written}");
        }
        lru_gen.write_min_ttl_ms("1000\n").unwrap();
        assert!(spaces.iter().all(|space| space.lru().unwrap().settings().min_ttl == Duration::from_secs(1)));
        spaces[0].lru().unwrap().set_walk_secondary(false);
        assert_eq!(lru_gen.read_enabled(), "0x0003\n", "on is what is on everywhere");
        for (bad, errno) in [
            ("", libc::EINVAL),
            ("0xg", libc::EINVAL),
            ("-1", libc::EINVAL),
            ("+1", libc::EINVAL),
            ("n", libc::EOPNOTSUPP),
            ("0x000a", libc::EOPNOTSUPP),
        ] {
            assert_eq!(lru_gen.write_enabled(bad).unwrap_err().errno(), errno, "{bad:?}");
        }
        assert_eq!(lru_gen.write_min_ttl_ms("soon").unwrap_err().errno(), libc::EINVAL);
    }
}
