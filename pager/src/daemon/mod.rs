//! The daemon: a keeper that accepts connections and holds what must not be lost, and a worker that does everything else.
//!
//! The keeper starts the worker, and starts it again whenever it ends. It gives the worker each connection, and keeps it. A VMM's
//! handshake is looked at and never taken out of its socket, so a connection that is kept is a userfaultfd that is kept. The other
//! thing to keep is the guest's journal. The keeper gets it before the first event is read. The worker holds what the keeper has, and
//! starts another keeper if that is killed.

mod ageing;
mod channel;
mod control;
mod keeper;
mod keeper_state;
mod monitor;
mod worker;

pub(crate) use channel::{Channel, Keep, Take};
pub(crate) use worker::at;

pub use ageing::Ageing;
pub use control::{Answer, Guests, Request, checkpoint};
pub use keeper::{Event, Keeper, accept_one};
pub use monitor::{Moment, Monitor, Serving};
pub use worker::{Worker, WorkerError};
