//! The guest: it stores one word to each of its pages, and looks at the word beside it, which the handler that
//! brought the page in has left there.

use slat::{Fault, Format, Gfn, Host, Span};
use slat_vcpu::cpu::{Core, Program, Step};

/// Where the giver's word lies in a page; the guest's own lies at its beginning.
pub const GIVEN_AT: u64 = 8;

/// What the guest stores.
pub fn stored(gfn: Gfn) -> u64 {
    gfn.0 << 8 | 1
}

/// What handlers leave in a page.
pub fn given(gfn: Gfn) -> u64 {
    gfn.0 << 8 | 2
}

/// See the module's header. Stops after the last page.
#[derive(Debug)]
pub struct Touch {
    pages: Span<Gfn>,
    /// Whether pages come with the giver's word, or with zeroes.
    filled: bool,
    /// Words that were not what they had to be.
    pub wrong: u64,
}

impl Touch {
    /// The guest of `pages`.
    pub fn new(pages: Span<Gfn>, filled: bool) -> Self {
        Self { pages, filled, wrong: 0 }
    }
}

impl Program for Touch {
    fn step(&mut self, core: &mut Core<'_, impl Format, impl Host>) -> Result<Step, Fault> {
        let gfn = self.pages.start;
        if self.pages.is_empty() {
            return Ok(Step::Stop);
        }
        core.store(gfn.gpa(), &stored(gfn).to_le_bytes())?;
        let mut word = [0; 8];
        core.load(gfn.gpa() + GIVEN_AT, &mut word)?;
        let expected = if self.filled { given(gfn) } else { 0 };
        self.wrong += u64::from(u64::from_le_bytes(word) != expected);
        self.pages.start = gfn + 1;
        Ok(Step::Next)
    }
}
