//! The judge on x86-64.
#![no_std]
#![no_main]

extern crate alloc;

mod guest;
mod machine;
mod pair;

use alloc::vec::Vec;
use machine::Walker;
use slat::table::formats::{Ept4, Ept4NoAd, Ept5, Npt4, Npt5, Pae};
use slat::{Format, Idle};
use slat_judge::{Verdict, conclude, judge};
use slat_walker_x86::boot::Boot;
use slat_walker_x86::cpu::{self, Vendor};
use slat_walker_x86::exit::{self, exit};
use slat_walker_x86::guest::Processor;
use slat_walker_x86::svm::Svm;
use slat_walker_x86::vmx::Vmx;
use slat_walker_x86::{entry, paging, println};

entry!(main);

fn walk<'a, P: Processor, F: Format>(mut w: Walker<'a, P, F>, idle: &mut Idle, v: &mut Vec<Verdict>) -> Walker<'a, P, F> {
    v.push(judge::<F, _>(&mut w, idle, 1, 2000));
    w
}

fn main(_: Boot) -> ! {
    let mut v = Vec::new();
    let mut idle = unsafe { Idle::assume() };
    let i = &mut idle;
    println!("{:?} {} bits", cpu::vendor(), cpu::physical_bits());
    let ok = match cpu::vendor() {
        Vendor::Amd => {
            let w = walk(Walker::<Svm, Npt4>::new(&[]), i, &mut v);
            v.extend(pair::judge(slat_judge::Machine::ram(&w), 3000));
            let w = walk(w.of::<Pae>(), i, &mut v);
            let mut w = walk(w.of::<Npt4>(), i, &mut v);
            if paging::has_five_levels() {
                w = walk(w.of::<Npt5>(), i, &mut v).of::<Npt4>();
            }
            conclude(&mut w, &v)
        }
        _ => {
            let mut w = walk(Walker::<Vmx, Ept4>::new(&[]), i, &mut v);
            println!("{:?}", w.processor.features());
            if w.processor.features().five_levels {
                w = walk(w.of::<Ept5>(), i, &mut v).of();
            }
            w = walk(w.of::<Ept4NoAd>(), i, &mut v).of();
            conclude(&mut w, &v)
        }
    };
    exit(if ok { exit::Verdict::Passed } else { exit::Verdict::Failed })
}
