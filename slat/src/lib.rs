//! slat
