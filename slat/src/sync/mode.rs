//! The three modes of a walk, as types: the mode is fixed when the walk is opened.
//!
//! | mode | may | may not |
//! |---|---|---|
//! | [`Lockless`] | load; clear Accessed; give a recorded permission back by CAS | unlink, free, owe a flush |
//! | [`Shared`] | the above; CAS leaves; link children; freeze; unhook into a debt | assume that it is alone |
//! | [`Exclusive`] | the above, alone under a baseline policy | assume that it is alone without one, where it is another `Shared` |

/// Loads, and edits that only restore permissions. Takes no lock under any policy.
#[derive(Debug)]
pub struct Lockless;
/// Edits by compare-and-swap, beside other walks that do the same.
#[derive(Debug)]
pub struct Shared;
/// Edits that a baseline policy serialises: its write side. Without one it excludes no other walk, and the same code
/// edits beside others.
#[derive(Debug)]
pub struct Exclusive;

/// The side of a baseline policy's lock that a mode takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Neither,
    Read,
    Write,
}

/// One of the three modes. Sealed: no type outside this crate can name `SIDE`'s type.
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

/// The modes that may change mappings.
pub trait Edits: Mode {}
impl Edits for Shared {}
impl Edits for Exclusive {}
