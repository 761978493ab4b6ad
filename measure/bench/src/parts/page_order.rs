//! The order in which one vCPU visits all pages, over and over. Each vCPU has another one, so that they do not follow each
//! other from page to page.

use crate::parts::setting::Setting;

/// A start and a stride that has no divisor in common with the number of pages: so it visits each page.
pub struct PageOrder {
    at: u64,
    leap: u64,
    places: u64,
}

impl PageOrder {
    /// The order of vCPU `number` over `places` pages, at least one. Start and stride are random, by the setting's seed.
    pub fn new(setting: &Setting<'_>, number: u32, places: u64) -> Self {
        let lot = |nth| setting.lot(2 * u64::from(number) + nth);
        let leaps = (0..places).map(|more| (lot(0) + more) % places + 1);
        let leap = leaps.into_iter().find(|&leap| divisor(leap, places) == 1);
        Self { at: lot(1) % places, leap: leap.unwrap_or(1), places }
    }

    /// The next page.
    pub fn go_on(&mut self) -> u64 {
        self.at = (self.at + self.leap) % self.places;
        self.at
    }
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::setting::NONE;

    use crate::parts::test_settings::setting;

    #[test]
    fn an_order_visits_each_page_once() {
        for places in [1, 2, 30, 64, 235, 470] {
            for number in 0..9 {
                let mut order = PageOrder::new(&setting(NONE), number, places);
                let mut seen: Vec<u64> = (0..places).map(|_| order.go_on()).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..places), "vCPU {number} of {places} places");
            }
        }
    }
}
