//! `Map` and `Format`: every table that a walk reaches belongs to the map.
