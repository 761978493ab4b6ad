//! The five patch series that slat answers: the figures that they report, beside ours.
//!
//! Each file has one series' own table as constants, and sets ours beside it: measured here, where this machine is large
//! enough, and simulated, where it is not. A [`Verdict`] judges one figure of a series'. What is not
//! reproduced is shown like the rest.

pub mod answer;
mod change_pte;
mod mglru_aging;
mod numa_protection;
mod scalable_memslots;
mod tdp_mmu;

use crate::report::data::Data;
use answer::Answer;

/// All five, in order.
pub fn answers(data: &Data) -> Vec<Answer> {
    [
        mglru_aging::answer,
        scalable_memslots::answer,
        numa_protection::answer,
        tdp_mmu::answer,
        change_pte::answer,
    ]
    .map(|answer| answer(data))
    .into()
}
