//! Operations and initial states, in short.

use crate::scenario::Scenario;
pub use crate::state::Why::{ChangePte, Clear, Leaked, Park, Protect, Track, Unmap};
use crate::state::{Op, Range, Span, Why};

pub const fn read(gfn: u8) -> Op {
    Op::Access { gfn, write: false, sleeps: false, large: false }
}

pub const fn write(gfn: u8) -> Op {
    Op::Access { gfn, write: true, sleeps: false, large: false }
}

/// A load whose fault asks a host that sleeps.
pub const fn slow(gfn: u8) -> Op {
    Op::Access { gfn, write: false, sleeps: true, large: false }
}

/// A store whose fault asks a host that sleeps, and that lets the page be written.
pub const fn slow_store(gfn: u8) -> Op {
    Op::Access { gfn, write: true, sleeps: true, large: false }
}

pub const fn large(gfn: u8, sleeps: bool) -> Op {
    Op::Access { gfn, write: false, sleeps, large: true }
}

pub const fn gfns(why: Why, start: u8, end: u8) -> Op {
    Op::Invalidate { range: Range::Gfns(Span::new(start, end)), why, yields: false }
}

pub const fn hvas(why: Why, start: u8, end: u8) -> Op {
    Op::Invalidate { range: Range::Hvas(Span::new(start, end)), why, yields: false }
}

pub const fn commit(start: u8, end: u8, hva: u8) -> Op {
    Op::Commit { gfns: Span::new(start, end), hva }
}

/// The name of an initial state, and how a scenario begins in it.
pub type Start = (&'static str, fn(Scenario) -> Scenario);

/// The initial states for two invalidations and a fault.
pub fn initial_states() -> Vec<Start> {
    vec![
        ("nothing", |s| s),
        ("an empty table", Scenario::empty),
        ("small leaves", |s| s.small(true, true)),
        ("read-only leaves", |s| s.small(false, false)),
        ("a large leaf", |s| s.large(true)),
        ("a large leaf, no page at hand", |s| s.large(true).pageless()),
    ]
}
