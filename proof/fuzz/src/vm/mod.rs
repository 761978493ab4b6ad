//! `vm`: operations on a whole VM against plain maps.
//!
//! | file | contents |
//! |---|---|
//! | `plain_host` | the host: a map from pages to frames, which changes |
//! | `tables`, `model` | the expected mappings, counts and logs |
//! | `tlb` | a TLB that drops only flushed translations |
//! | `step` | draws the steps |
//! | `vm_and_model` | runs each step on both, and compares the answers |
//! | `compare` | every leaf with its permissions and its A bit, every dirty page, every count, every translation that a vCPU still holds |
//!
//! One thread does everything, so all comparisons are exact.

mod compare;
mod model;
pub(crate) mod plain_host;
mod step;
mod tables;
mod tlb;
mod vm_and_model;

use crate::Input;
use model::Rules;
use plain_host::PlainHost;
use slat::baselines::Baseline;
use slat::table::formats::{Ept4, Ept4NoAd, Ept5, Npt4, Pae};
use slat::{DirtyLog, Format, Idle, Level, Splitting, Track, Vm};
use step::{Step, new_slot};
use vm_and_model::Machine;

/// Most steps of one input; the rest is ignored.
const STEPS: usize = 64;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(5) {
        0 => with::<Ept4>(input),
        1 => with::<Ept4NoAd>(input),
        2 => with::<Npt4>(input),
        3 => with::<Pae>(input),
        _ => with::<Ept5>(input),
    }
}

fn with<F: Format>(mut input: Input<'_>) {
    let largest = input.pick(&[Level::M2, Level::G1, Level::K4]);
    let plain_host = PlainHost::new(largest, input.below(4) == 3);
    let (nx_huge_pages, contexts, eager) = (input.below(4) == 3, input.below(4) != 3, input.below(4) != 3);
    let (initially_set, by_bits) = (input.below(4) == 3, input.flag());
    let max_page = input.pick(&[Level::G1, Level::G1, Level::M2, Level::K4]);

    let splitting = if eager { Splitting::Eager } else { Splitting::Lazy };
    let track = if by_bits { Track::DirtyBits } else { Track::Writes };
    let log = DirtyLog::bitmap().track(track).splitting(splitting);
    let log = if initially_set { log.initially_set() } else { log };
    let vm = Vm::<F, _>::builder(plain_host)
        .vcpus(2)
        .address_spaces(2)
        .max_page(max_page)
        .nx_huge_pages(nx_huge_pages)
        .baseline(Baseline::NONE.contexts(contexts))
        .dirty_log(log)
        .build()
        .unwrap();
    let rules = Rules {
        frame_bits: F::FRAME_BITS,
        levels: F::ROOT_LEVEL,
        largest: max_page.min(F::MAX_LEAF),
        nx_huge_pages,
        contexts,
        walkers_set_bits: F::HARDWARE_AD,
        by_bits: by_bits && F::HARDWARE_AD,
        eager,
        initially_set,
    };
    let idle = Idle::take().expect("one VM of this kind at a time on a thread");
    let mut machine = Machine::new(idle, &vm, rules);
    let loud = std::env::var_os("SLAT_FUZZ_STEPS").is_some();
    let take = |machine: &mut Machine<'_, F>, step: &Step| {
        if loud {
            eprintln!("{} {step:x?}", F::NAME);
        }
        machine.take(step);
        machine.compare();
    };
    // Little happens without memory.
    for (space, id) in [(0, 0), (0, 1), (1, 0)] {
        take(&mut machine, &Step::Create { space, slot: new_slot(&mut input, id, 1 << F::FRAME_BITS) });
    }
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        let step = Step::next(&mut input, &machine.spaces);
        take(&mut machine, &step);
    }
}
