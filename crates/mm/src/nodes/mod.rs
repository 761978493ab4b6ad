//! NUMA nodes: the node of a thread, and the free frames of each node.
//!
//! | file | contents |
//! |---|---|
//! | `node` | nodes, and the node that a thread declares |
//! | `pool` | the free frames of a node |
//! | `zones` | the parts of a node's frames, each under its own lock |

mod node;
mod pool;
mod zones;

pub use node::Node;
pub use pool::ListStats;

pub(crate) use node::real_nodes;
pub(crate) use pool::NodeFrames;
