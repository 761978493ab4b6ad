//! `slat-bench`: what `slat bench`, `slat sim`, `slat calibrate` and `slat report` run.

use slat_cli::allocator::OrEnd;

#[global_allocator]
static MEMORY: OrEnd = OrEnd;

fn main() -> std::process::ExitCode {
    slat_bench::main()
}
