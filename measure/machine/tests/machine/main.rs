//! The simulated machine by its public interface: the price of a line, locks, and queues against what theory says of them.

mod lines;
mod locks;
mod queueing;
