//! The daemon: a keeper that accepts connections and holds the state that must survive, and a worker that does
//! everything else.
//!
//! The keeper starts the worker, and restarts it whenever it ends. It gives the worker each connection, and keeps a
//! descriptor of it. The worker reads a VMM's handshake and leaves it in its socket, so a kept connection is a kept
//! userfaultfd. The keeper also has the guest's journal, before the first event is read. The worker has a copy of the
//! keeper's state, and starts another keeper if that one is killed.

mod ageing;
mod channel;
mod control;
mod health;
mod http;
mod keeper;
mod keeper_state;
mod limits;
mod metrics;
mod monitor;
mod opening;
mod outbox;
mod peer;
mod request;
mod sockets;
mod worker;

pub(crate) use channel::{Channel, Keep, Take};
pub(crate) use opening::at;

pub use ageing::Ageing;
pub use control::Guests;
pub use keeper::{Event, Keeper};
pub use limits::Limit;
#[doc(hidden)]
pub use limits::most_of_one_process;
#[doc(hidden)]
pub use metrics::{Family, Kind};
pub use monitor::{Moment, Monitor, Serving, WaitingGuest};
pub use request::{Listed, ListedSocket, Listen, Request, Session, ask, checkpoint, daemons, list};
pub use sockets::accept_one;
pub use worker::{FindTemplate, Worker, WorkerError};
