//! `nested`: a guest's guest on shadow tables, with a hypervisor whose tables have arbitrary words.
//!
//! L1's memory is a few frames, and any word of them may be an entry of its tables. After each step the target walks
//! those tables for each used frame of L2. It adds each result to the set that each vCPU may use, until that vCPU
//! flushes. So a translation is right if one of those walks gives its frame of L1, and the memslots and the host give
//! that frame's page **now**.
//!
//! | operation | check |
//! |---|---|
//! | an access of L2, with all the faults that it takes | each translation in the TLB then, and each leaf of the shadow |
//! | a refusal | T refuses it, and afterwards the vCPU has no older result of T |
//! | a device, no memory | there is no memslot, or our tables cannot say it |
//! | A and D, stores of L2 | are in the dirty log |
//!
//! One thread does everything, so all comparisons are exact.

mod drawn;
mod ram;
mod world;

use crate::Input;
use drawn::Drawn;
use slat::Format;
use slat::nested::{
    EptFeatures, EptTable, GStageFeatures, GStageTable, L1Format, NptMode, NptTable, Stage2Features,
    Stage2Table,
};
use slat::table::formats::{Arm64L48, Ept4, Npt4, Sv48x4};
use world::{ROOTS, World};

/// Most steps of one input; the rest is ignored.
const STEPS: usize = 96;
/// Runs the target.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let ad = input.below(4) != 3;
    match input.below(4) {
        0 => {
            let features = EptFeatures {
                accessed_dirty: true,
                execute_only: input.flag(),
                large_1g: true,
                ..EptFeatures::of(46)
            };
            let pointer = |root: u64| root << 12 | u64::from(ad) << 6 | 3 << 3 | 6;
            let drawn = Drawn { link: 0x107, leaf: 0x337, large: 1 << 7, some: 0x307, shift: 12 };
            let tables = ROOTS.map(|root| EptTable::new(pointer(root), features).expect("a good pointer"));
            if input.flag() {
                with::<Ept4, _>(input, tables, drawn);
            } else {
                with::<Npt4, _>(input, tables, drawn);
            }
        }
        1 => {
            let mode = NptMode {
                levels: 4,
                nx: input.flag(),
                smep: false,
                pat: 0x0007_0406_0007_0406,
                physical_bits: 46,
                large_1g: true,
            };
            let drawn = Drawn { link: 0x27, leaf: 0x67, large: 1 << 7, some: 0x66 | 1 << 63, shift: 12 };
            let tables = ROOTS.map(|root| NptTable::new(root << 12, mode).expect("a good root"));
            with::<Npt4, _>(input, tables, drawn);
        }
        2 => {
            let control = if ad { 3 << 21 } else { 0 } | 5 << 16 | 2 << 6 | 16;
            let features = Stage2Features { hardware_ad: true, xnx: false, fwb: false };
            let drawn = Drawn {
                link: 3,
                leaf: 1 << 51 | 0x4ff,
                large: 2,
                some: 1 << 51 | 1 << 54 | 0x4c0,
                shift: 12,
            };
            let tables =
                ROOTS.map(|root| Stage2Table::new(root << 12, control, features).expect("a good size"));
            with::<Arm64L48, _>(input, tables, drawn);
        }
        _ => {
            let features = GStageFeatures { adue: ad, pbmte: false, mxr: input.flag() };
            let drawn = Drawn { link: 1, leaf: 0xdf, large: 0, some: 0xce, shift: 10 };
            let tables = ROOTS.map(|root| GStageTable::new(9 << 60 | root, features).expect("a good mode"));
            with::<Sv48x4, _>(input, tables, drawn);
        }
    }
}

fn with<F: Format, T: L1Format>(mut input: Input<'_>, tables: [T; 2], drawn: Drawn) {
    let (vm, idle) = World::<F, T>::machine(&mut input);
    let mut world = World::new(&vm, idle, tables);
    let loud = std::env::var_os("SLAT_FUZZ_STEPS").is_some();
    world.chains(drawn);
    for _ in 0..STEPS {
        if input.is_over() {
            break;
        }
        let step = world.step(&mut input, drawn);
        if loud {
            eprintln!("{} {step}", F::NAME);
        }
        world.look();
    }
}
