//! Invalidations end, and owe what they must, however their owner ends them.
