//! Swap on its own: what is stored comes back, or an error does.
