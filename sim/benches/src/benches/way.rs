//! A way round many places that is one vCPU's own, so that vCPUs do not meet in the same places one after the other.

use super::Setting;

/// It begins somewhere, and goes on by leaps of one length, which leads to every place.
pub struct Way {
    at: u64,
    leap: u64,
    places: u64,
}

impl Way {
    /// That of vCPU `number` round so many places, at least one: drawn by lot.
    pub fn new(setting: &Setting<'_>, number: u32, places: u64) -> Self {
        let lot = |nth| setting.lot(2 * u64::from(number) + nth);
        let leaps = (0..places).map(|more| (lot(0) + more) % places + 1);
        let leap = leaps.into_iter().find(|&leap| divisor(leap, places) == 1);
        Self { at: lot(1) % places, leap: leap.unwrap_or(1), places }
    }

    /// Goes on to the next place.
    pub fn go_on(&mut self) -> u64 {
        self.at = (self.at + self.leap) % self.places;
        self.at
    }
}

/// The greatest that both have in common.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::Policy;
    use crate::benches::tests::setting;

    #[test]
    fn every_way_leads_to_every_place() {
        for places in [1, 2, 30, 64, 235, 470] {
            for number in 0..9 {
                let mut way = Way::new(&setting(Policy::None), number, places);
                let mut seen: Vec<u64> = (0..places).map(|_| way.go_on()).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..places), "vCPU {number} of {places} places");
            }
        }
    }
}
