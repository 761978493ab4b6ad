//! Parts of scenarios for real threads: samples in interleaved rounds, the report, guests with memory.

pub mod arithmetic;
pub mod bench_report;
pub mod compare_results;
pub mod flag_values;
pub mod guest_memory;
pub mod harness;
pub mod latencies;
pub mod leaf_tables;
pub mod machine_info;
pub mod mapped_slot;
pub mod samples;
pub mod software_vcpu;
pub mod table_pool;
pub mod traces;
