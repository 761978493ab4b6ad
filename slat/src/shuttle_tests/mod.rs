mod faults;
mod guest;
mod host;
mod memory;
mod run;
mod world;

pub(crate) use memory::{GIVEN_BACK, looked};
