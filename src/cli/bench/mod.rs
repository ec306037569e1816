//! `xtrain bench`: benchmarks, as tables or JSON.
mod args;
mod arrivals;
mod bench_model;
mod cache_kinds;
mod cache_text;
mod decode;
mod estimate;
mod gpu_counters;
mod ideal;
mod kv;
mod latency;
mod linear;
mod load;
mod shared;
mod temp_checkpoint;
mod trace;
mod trace_args;
mod train;
mod workload;

use super::CliError;

pub(super) use args::BenchCommand;

pub(super) fn run(command: &BenchCommand) -> Result<(), CliError> {
    match command {
        BenchCommand::Train(args) => train::run(args),
        BenchCommand::Decode(args) => decode::run(args),
        BenchCommand::Kv(args) => kv::run(args),
        BenchCommand::CacheKinds(args) => cache_kinds::run(args),
        BenchCommand::Linear(args) => linear::run(args),
        BenchCommand::Load(args) => load::run(args),
        BenchCommand::Trace(args) => trace::run(args),
    }
}
