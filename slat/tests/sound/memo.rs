//! What a vCPU remembers of its last fault is never believed longer than it is true.
