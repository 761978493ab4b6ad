//! The three modes of a walk, as types: what a walk may do is decided when it is opened.
//!
//! | mode | may | may not |
//! |---|---|---|
//! | [`Lockless`] | load; clear Accessed; give a recorded permission back by CAS | unlink, free, owe a flush |
//! | [`Shared`] | the above; CAS leaves; link children; freeze; unhook into a debt | assume that it is alone |
//! | [`Exclusive`] | the above, alone under a baseline policy | assume that it is alone under `MmuLock::None`, where it is another `Shared` |

/// Loads, and edits that only give back. Takes no lock under any policy.
#[derive(Debug)]
pub struct Lockless;
/// Edits by compare-and-swap, beside others that do the same.
#[derive(Debug)]
pub struct Shared;
/// Edits that a baseline policy makes alone: its write side. Under `MmuLock::None` nothing stops the world, and the same
/// code edits beside others.
#[derive(Debug)]
pub struct Exclusive;

/// What a mode asks of the baseline policies' lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Neither,
    Read,
    Write,
}

/// One of the three modes. No type outside this crate is one: it cannot name what `SIDE` is.
pub trait Mode {
    #[doc(hidden)]
    #[allow(private_interfaces)]
    const SIDE: Side;
}

#[allow(private_interfaces)]
impl Mode for Lockless {
    const SIDE: Side = Side::Neither;
}
#[allow(private_interfaces)]
impl Mode for Shared {
    const SIDE: Side = Side::Read;
}
#[allow(private_interfaces)]
impl Mode for Exclusive {
    const SIDE: Side = Side::Write;
}

/// The modes that may change what is mapped.
pub trait Edits: Mode {}
impl Edits for Shared {}
impl Edits for Exclusive {}
