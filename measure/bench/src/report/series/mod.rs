//! The five patch series that slat answers: the figures that they report, beside ours.
//!
//! Each file has one series' own table as constants, and sets ours beside it: measured here, where this machine is large
//! enough, and simulated, where it is not. A [`Verdict`] judges one figure of a series'. A figure
//! that is not reproduced is shown like the rest.

mod change_pte_answer;
mod mglru_aging_answer;
mod numa_protection_answer;
mod scalable_memslots_answer;
pub mod series_answer;
mod tdp_mmu_answer;

use crate::report::report_data::Data;
use crate::report::series::series_answer::Answer;

/// All five, in order.
pub fn answers(data: &Data) -> Vec<Answer> {
    [
        mglru_aging_answer::answer,
        scalable_memslots_answer::answer,
        numa_protection_answer::answer,
        tdp_mmu_answer::answer,
        change_pte_answer::answer,
    ]
    .map(|answer| answer(data))
    .into()
}
