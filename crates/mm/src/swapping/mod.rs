//! Swapping: a page's way out of an address space to [`crate::swap`], and back in.
//!
//! | file | contents |
//! |---|---|
//! | `swap_out` | a page leaves: its entry gets the number of its copy |
//! | `swap_in` | an access needs the page: its contents come back from the copy |
//! | `neighbours` | the pages that are read together with it |

mod neighbours;
mod swap_in;
mod swap_out;

pub(crate) use swap_out::{Leaving, SwappedOut};
