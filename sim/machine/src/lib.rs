//! A machine that is not there: what its things cost.

pub mod costs;

pub use costs::Costs;
