//! Bare-metal x86: what the judge and the hypervisor share.
#![no_std]
