//! A vCPU's guards may leak or unwind; its number and its CPU may change.
