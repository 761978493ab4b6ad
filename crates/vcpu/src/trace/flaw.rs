//! Reasons why a line is not a record, and the check of the access in a record.

use super::{Access, Kind};

/// Bytes by which a line is judged. Lackey's longest record has 25; a line of ftrace or perf has about 150.
pub(super) const LONGEST: usize = 512;

/// The error in a garbled record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// The address is missing, or has more than 16 digits.
    #[error("the address is not 1 to 16 hexadecimal digits")]
    Address,
    /// The access extends beyond [`Access::LIMIT`].
    #[error("the access reaches beyond 2^57")]
    Reach,
    /// No comma follows the address.
    #[error("no comma after the address")]
    Comma,
    /// The size is missing.
    #[error("no decimal size after the comma")]
    Size,
    /// The size is zero.
    #[error("the size is 0")]
    Empty,
    /// The size is above [`Access::MAX_SIZE`].
    #[error("the size is above 4096")]
    Large,
    /// Text follows the size.
    #[error("text after the size")]
    Tail,
    /// A `kvm_page_fault` without a readable address and error code.
    #[error("kvm_page_fault without `address` and `error_code`, each a hexadecimal number")]
    PageFault,
}

/// Why [`record`](super::line::record) finds no record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoRecord {
    /// The line does not begin like a record.
    Other,
    /// The line begins like a record, and is garbled.
    Garbled(Flaw),
}

/// Makes an access of at most [`Access::MAX_SIZE`] bytes.
pub(super) fn access(kind: Kind, addr: u64, size: u64) -> Result<Access, Flaw> {
    match size {
        0 => Err(Flaw::Empty),
        _ if size > u64::from(Access::MAX_SIZE) => Err(Flaw::Large),
        _ if addr > Access::LIMIT - size => Err(Flaw::Reach),
        _ => Ok(Access { addr, size: size as u16, kind }),
    }
}
