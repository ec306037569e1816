//! Learning rates, and the shards and exchanges of a step.
use xtrain::model::{Config, Decay, Model, Schedule, exchange_groups, shard_samples};
use xtrain::tensor::{Device, Dtype};

use crate::{Record, list, row};

const DECAYS: [Decay; 6] =
    [Decay::Constant, Decay::Linear, Decay::Cosine, Decay::Wsd, Decay::WsdCosine, Decay::WsdSqrt];

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    // [warm-up, steps, decay steps]
    for [warmup_steps, steps, decay_steps] in
        [[0, 9, 3], [3, 10, 4], [4, 10, 8], [10, 10, 3], [12, 10, 20], [1, 1, 1], [0, 0, 0]]
    {
        out.section(format!(
            "warm-up {warmup_steps}, steps {steps}, decay steps {decay_steps}: rates of 14 steps"
        ));
        for decay in DECAYS {
            for (warmup_start_lr, min_lr) in [(0.0, 0.0), (0.25, 0.125)] {
                let schedule =
                    Schedule { decay, warmup_start_lr, lr: 1.0, min_lr, warmup_steps, steps, decay_steps };
                let rates = list((0..14).map(|step| schedule.rate(step)));
                out.line(row(format!("{decay} {warmup_start_lr} {min_lr}"), 22, rates));
            }
        }
    }
    out.section("samples of each shard");
    for (samples, shards) in [(0, 3), (1, 3), (2, 3), (7, 3), (8, 4), (9, 4), (5, 1), (6, 7)] {
        let ranges = list((0..shards).map(|shard| shard_samples(samples, shards, shard)));
        out.line(row(format!("{samples} samples, {shards} shards"), 22, ranges));
    }
    out.section("elements of the groups of parameters that are exchanged together");
    for (name, n_layers, dim) in [("small", 3, 32), ("large", 5, 256)] {
        let config = Config { n_layers, dim, ffn_dim: 2 * dim, ..Config::tiny() };
        let model = Model::init(&config, Dtype::F32, &Device::cpu(), 0).unwrap();
        for processes in [1, 2, 3, 8, 64] {
            let groups = list(exchange_groups(&model.params, processes));
            out.line(row(format!("{name}, {processes} processes"), 22, groups));
        }
    }
    out
}
