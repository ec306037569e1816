//! `xtrain bench`: benchmarks, as tables or JSON.
mod args;
mod arrivals;
mod bench_model;
mod cache_columns;
mod cache_kinds;
mod cache_kinds_args;
mod cache_text;
mod decode;
mod estimate;
mod gpu_counters;
mod gpu_spec;
mod guard;
mod ideal;
mod kv;
mod latency;
mod linear;
mod load;
mod scale;
mod scale_args;
mod shared;
mod temp_checkpoint;
mod trace;
mod trace_args;
mod train;
mod workload;

use std::sync::Arc;

use super::CliError;
use super::launch::require_single;
use crate::model::comm::Communicator;

pub(super) use args::BenchCommand;

pub(super) fn run(command: &BenchCommand, comm: &Arc<dyn Communicator>) -> Result<(), CliError> {
    if !matches!(command, BenchCommand::Scale(_)) {
        require_single(&**comm)?;
    }
    match command {
        BenchCommand::Train(args) => train::run(args),
        BenchCommand::Decode(args) => decode::run(args),
        BenchCommand::Kv(args) => kv::run(args),
        BenchCommand::CacheKinds(args) => cache_kinds::run(args),
        BenchCommand::Linear(args) => linear::run(args),
        BenchCommand::Load(args) => load::run(args),
        BenchCommand::Trace(args) => trace::run(args),
        BenchCommand::Guard(args) => guard::run(args),
        BenchCommand::Scale(args) => scale::run(args, comm),
    }
}
