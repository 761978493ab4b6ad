//! A primary MMU in user space on real memory, for slat
