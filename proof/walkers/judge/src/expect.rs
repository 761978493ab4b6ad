//! The expected result of a walk of raw words: the answer of a look-up, and the bits that it sets.

use crate::machine_trait::{Answer, FaultWhy};
use crate::tables::Step;
use alloc::vec::Vec;
use slat::table::Word;
use slat::{Access, Format, Gpa, PAGE_SIZE, Perms};

/// Returns the answer of a walk along `path` for an access at `gpa`.
pub(crate) fn answer<F: Format>(path: &[Step], gpa: Gpa, access: Access) -> Answer {
    let fault = |why, level, allowed| Answer::Fault { why, level, gpa: Some(gpa), allowed };
    let Some(last) = path.last() else {
        // Beyond the range of the tables; each architecture reports another level.
        return fault(FaultWhy::Absent, None, None);
    };
    if !F::is_present(last.word) {
        return fault(FaultWhy::Absent, Some(last.level), Some(Perms::NONE));
    }
    if last.level > F::MAX_LEAF {
        return fault(FaultWhy::Misconfigured, Some(last.level), None);
    }
    let leaf = F::read_leaf(last.word);
    if !leaf.perms.allows(access) {
        return fault(FaultWhy::Permission, Some(last.level), Some(leaf.perms));
    }
    let address = leaf.pfn.address() + (gpa.0 & (last.level.bytes() - 1));
    Answer::Through { value: if access == Access::Fetch { page(address) } else { address } }
}

/// Returns the allowed words of `path` after the walk: the old word with the bits that the walker sets.
///
/// Manuals allow walkers to set Accessed in links above the faulting entry, and nowhere else.
pub(crate) fn words_after<F: Format>(path: &[Step], access: Access, through: bool) -> Vec<[Word; 2]> {
    let last = path.last().map(|step| step.level);
    let after = path.iter().map(|step| {
        let is_last = Some(step.level) == last;
        let bits = match (is_last, through) {
            (false, _) => F::touch_link(step.level),
            (true, true) => F::touch(access),
            (true, false) => 0,
        };
        let touched = Word(step.word.0 | bits);
        if through { [touched; 2] } else { [touched, step.word] }
    });
    after.collect()
}

/// Returns whether an answer is the expected one, in the parts that the walker reports.
pub(crate) fn agree(expected: Answer, answer: Answer, access: Access) -> bool {
    match (expected, answer) {
        (Answer::Through { value: expected }, Answer::Through { value }) => {
            expected == if access == Access::Fetch { page(value) } else { value }
        }
        (
            Answer::Fault { why, level, gpa, allowed },
            Answer::Fault { why: said, level: said_level, gpa: said_gpa, allowed: said_allowed },
        ) => {
            let same_gpa = |gpa: Gpa, said: Gpa| said == gpa || said == gpa.gfn().gpa();
            (said == FaultWhy::Unsaid || said == why)
                && unless_both(level, said_level, |level, said| level == said)
                && unless_both(gpa, said_gpa, same_gpa)
                && unless_both(allowed, said_allowed, |allowed, said| allowed == said)
        }
        _ => false,
    }
}

fn unless_both<T>(expected: Option<T>, said: Option<T>, same: impl Fn(T, T) -> bool) -> bool {
    expected.zip(said).is_none_or(|(expected, said)| same(expected, said))
}

fn page(address: u64) -> u64 {
    address & !(PAGE_SIZE - 1)
}
