//! What a host or a caller says is checked once, with one error, before anything changes.
