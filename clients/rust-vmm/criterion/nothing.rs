//! Nothing: no bench is built.
