//! Random schedules in which rows leave their sequence: sequences join, share prompts, stop and are preempted,
//! snapshots are taken, used and released, and rows go to a file and return. Every row of logits and every token has
//! the bits of naive recomputation, and afterwards the cache has all its room again.
use std::ops::{AddAssign, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use xtrain::decode::{
    CacheShape, Completion, Engine, EngineOptions, KvKind, KvMemory, KvPrefix, LayerOffload, OffloadStore,
    Preemption, PrefixCaching, PrefixIdentity, Request, SnapshotId,
};
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::{gpus, times};
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::decode::{Oracle, options, windowed};
use crate::rng::CaseRng;

const SEED: u64 = 41;

/// What the schedules did.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Done {
    pub(crate) rows: usize,
    events: usize,
    snapshots: usize,
    snapshot_rows: u64,
    files: usize,
    prefix_rows: u64,
    stopped: usize,
    preemptions: u64,
    offloaded: u64,
    restored: u64,
    /// Of `restored`, those of an int8 cache.
    restored_int8: u64,
    forks: u64,
    /// Rows over a cache of sinks and a window.
    sinks: usize,
    /// Rows over a cache that offloads layers.
    layers_offloaded: usize,
}

impl AddAssign for Done {
    fn add_assign(&mut self, other: Done) {
        let Done { rows, events, snapshots, snapshot_rows, files, prefix_rows, stopped, .. } = other;
        let Done { preemptions, offloaded, restored, restored_int8, forks, sinks, layers_offloaded, .. } =
            other;
        self.rows += rows;
        self.events += events;
        self.snapshots += snapshots;
        self.snapshot_rows += snapshot_rows;
        self.files += files;
        self.prefix_rows += prefix_rows;
        self.stopped += stopped;
        self.preemptions += preemptions;
        self.offloaded += offloaded;
        self.restored += restored;
        self.restored_int8 += restored_int8;
        self.forks += forks;
        self.sinks += sinks;
        self.layers_offloaded += layers_offloaded;
    }
}

/// A model of two layers, or of five for caches that offload layers.
fn model(compute: Dtype, n_layers: usize, device: &Device) -> Model {
    let cfg = windowed(48);
    let windows = (0..n_layers).map(|layer| cfg.windows[layer % 2]).collect();
    Model::init(&Config { n_layers, windows, ..cfg }, compute, device, SEED).unwrap()
}

/// Prompts of which most begin with a part of an earlier one, and the sizes of their groups.
fn requests(rng: &mut CaseRng, case: u64) -> (Vec<Request>, Vec<usize>) {
    let (mut requests, mut groups): (Vec<Request>, Vec<usize>) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let mut prompt = match requests.len() {
            0 => Vec::new(),
            n => {
                let earlier = &requests[rng.below(n)].prompt;
                earlier[..rng.below(earlier.len() + 1)].to_vec()
            }
        };
        prompt.extend((0..rng.between(1, 12)).map(|_| rng.below(37) as u32));
        prompt.truncate(34);
        let (g, new, temperature) = (rng.choose(&[1, 1, 1, 2, 3]), rng.between(1, 9), rng.below(2) as f32);
        for _ in 0..g {
            let id = requests.len() as u64;
            requests.push(Request { id, ..Request::sampled(&prompt, new, temperature, case) });
        }
        groups.push(g);
    }
    (requests, groups)
}

fn engine_options(rng: &mut CaseRng, longest: usize) -> EngineOptions {
    let page = rng.choose(&[1, 3, 8, 16]);
    let kv = match rng.below(9) {
        0 => KvKind::Growing,
        1 => KvKind::Contiguous,
        8 => KvKind::Sinks { sinks: rng.below(5), window: rng.between(1, 24) },
        2 | 3 => KvKind::Int8 { page },
        _ => KvKind::Paged { page },
    };
    let tight = kv.page().is_some() && !rng.one_in(4);
    EngineOptions {
        preemption: rng.choose(&[
            Preemption::Recompute,
            Preemption::Offload,
            Preemption::Offload,
            Preemption::Auto,
        ]),
        prefix_caching: if rng.one_in(2) { PrefixCaching::On } else { PrefixCaching::Off },
        prefill_chunk: rng.one_in(2).then(|| rng.between(1, 20)),
        watermark: [Some(0), Some(0), None][longest % 3],
        kv_capacity: tight.then(|| longest + page + rng.below(longest + 8)),
        ..options(kv, rng.between(1, 5))
    }
}

/// Host memory, a file, or room for a few rows only.
fn store(rng: &mut CaseRng, dir: &Path) -> OffloadStore {
    match rng.below(3) {
        0 => OffloadStore::default(),
        1 => OffloadStore::in_directory(dir, 1 << 20).unwrap(),
        _ => OffloadStore::in_memory(rng.below(4000)),
    }
}

/// Memory for two or three of the five layers of a cache.
fn layers(rng: &mut CaseRng, dir: &Path, model: &Model, options: &EngineOptions) -> KvMemory {
    let slots = options.kv.allocated_slots(options.room(model.config())) as usize;
    let layer = slots * CacheShape::of(model).stored_as(options.kv.dtype()).bytes_per_token() / 5;
    let (checksums, limit) = (5 * 16 * slots.div_ceil(64), 1 << 20);
    let resident = rng.between(2, 3) * layer + checksums;
    KvMemory::offloading(match rng.one_in(3) {
        true => LayerOffload::in_directory(dir, resident, limit).unwrap(),
        false => LayerOffload::in_memory(resident, limit),
    })
}

/// One schedule.
struct Schedule<'a> {
    oracle: &'a Oracle,
    model: &'a Model,
    kv: KvKind,
    engine: Engine<'a>,
    groups: std::vec::IntoIter<usize>,
    submitted: usize,
    snapshots: Vec<SnapshotId>,
    stopped: Vec<usize>,
    rng: CaseRng,
    done: Done,
    file: PathBuf,
}

impl Schedule<'_> {
    /// Twenty random events, then steps until all sequences have finished.
    fn run(mut self) -> Result<Done, String> {
        let room = self.engine.cache().map(|cache| cache.available());
        for _ in 0..20 {
            self.done.events += 1;
            match self.rng.below(10) {
                0 | 1 => self.submit(),
                2 => self.snapshot(),
                3 => self.release(),
                4 if self.rng.one_in(3) => self.stop(),
                5 => self.through_file()?,
                _ => self.step()?,
            }
        }
        while self.submitted < self.oracle.requests.len() {
            self.submit();
        }
        while !self.engine.is_idle() {
            self.step()?;
        }
        self.compare()?;
        while !self.snapshots.is_empty() {
            self.release();
        }
        let cache = self.engine.cache().ok_or("no cache")?;
        let (usage, left) = (cache.usage(), Some(cache.available()));
        if usage.positions > 0 || left != room {
            return Err(format!("the cache had room for {room:?} positions and has {left:?}: {usage:?}"));
        }
        let store = self.engine.offload_store();
        if store.used() > 0 || store.error().is_some() {
            return Err(format!("{} bytes in the offload store, error {:?}", store.used(), store.error()));
        }
        let counters = self.engine.counters();
        self.done.snapshot_rows = counters.snapshot_rows;
        self.done.prefix_rows = counters.prefix_cache_hits;
        self.done.preemptions = counters.preemptions;
        self.done.offloaded = counters.offloaded_rows;
        self.done.restored = counters.restored_rows;
        self.done.forks = counters.forks;
        Ok(self.done)
    }

    fn submit(&mut self) {
        let Some(g) = self.groups.next() else { return };
        self.engine.submit_group(self.oracle.requests[self.submitted].clone(), g).unwrap();
        self.submitted += g;
    }

    /// A snapshot of a random sequence that is running and has rows, if there is one.
    fn snapshot(&mut self) {
        let (n, first) = (self.submitted, self.rng.below(self.submitted.max(1)));
        let snapshot = (0..n).find_map(|s| self.engine.snapshot((first + s) % n).ok());
        self.snapshots.extend(snapshot);
        self.done.snapshots += usize::from(snapshot.is_some());
    }

    fn release(&mut self) {
        if !self.snapshots.is_empty() {
            let snapshot = self.snapshots.swap_remove(self.rng.below(self.snapshots.len()));
            assert!(self.engine.release_snapshot(snapshot));
        }
    }

    fn stop(&mut self) {
        if self.submitted > 0 {
            let index = self.rng.below(self.submitted);
            if self.engine.stop(index) {
                self.stopped.push(index);
                self.done.stopped += 1;
            }
        }
    }

    /// The rows of a snapshot are saved, loaded, and kept for later prompts.
    fn through_file(&mut self) -> Result<(), String> {
        let Some(&snapshot) = self.snapshots.last() else { return Ok(()) };
        if !self.kv.is_exact() {
            return match self.engine.read_snapshot(snapshot) {
                Err(error) if error.to_string().contains("expected a cache in the compute dtype") => Ok(()),
                other => Err(format!("a snapshot of an int8 cache was read: {other:?}")),
            };
        }
        let prefix = self.engine.read_snapshot(snapshot).map_err(|e| e.to_string())?;
        let identity = PrefixIdentity::of(self.model, "sha256:0");
        prefix.save(&self.file, &identity).map_err(|e| e.to_string())?;
        let prefix = KvPrefix::load(&self.file, self.model, &identity).map_err(|e| e.to_string())?;
        self.done.files += usize::from(self.engine.insert_prefix(&prefix).is_ok_and(|kept| kept > 0));
        Ok(())
    }

    /// A step. If the snapshots leave no room for a single sequence, they are released.
    fn step(&mut self) -> Result<(), String> {
        match self.oracle.step(&mut self.engine) {
            Err(error) if error.contains("KV cache full") && !self.snapshots.is_empty() => {
                while !self.snapshots.is_empty() {
                    self.release();
                }
                Ok(())
            }
            rows => {
                self.done.rows += rows?;
                Ok(())
            }
        }
    }

    /// Compares the completions. Those of stopped sequences are beginnings of the oracle's.
    fn compare(&mut self) -> Result<(), String> {
        let mut got = self.engine.take_finished();
        got.sort_by_key(|completion| completion.index);
        if got.len() != self.oracle.requests.len() {
            return Err(format!("{} completions of {}", got.len(), self.oracle.requests.len()));
        }
        for (got, want) in got.iter().zip(&self.oracle.completions) {
            if !self.stopped.contains(&got.index) {
                crate::decode::same(got, want)?;
                continue;
            }
            let n = got.tokens.len();
            let (tokens, logprobs) = (want.tokens[..n].to_vec(), want.logprobs[..n].to_vec());
            let processed_logprobs = want.processed_logprobs[..n].to_vec();
            let finish_reason = got.finish_reason;
            crate::decode::same(
                got,
                &Completion { tokens, logprobs, processed_logprobs, finish_reason, ..want.clone() },
            )?;
        }
        Ok(())
    }
}

/// The schedules `cases` with models on `device`, or the first difference from the CPU. A GPU computes in f32.
pub(crate) fn on(device: &Device, cases: Range<u64>) -> Result<Done, String> {
    let half = if matches!(device, Device::Gpu(_)) { Dtype::F32 } else { Dtype::BF16 };
    let of = |device: &Device| {
        [(Dtype::F32, 2), (half, 2), (Dtype::F32, 5), (half, 5)].map(|(compute, n)| model(compute, n, device))
    };
    let (models, oracles) = (of(device), of(&Device::cpu()));
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut all = Done::default();
    for case in cases {
        let mut rng = CaseRng::new(SEED, case);
        let which = usize::from(rng.one_in(4));
        let (requests, groups) = requests(&mut rng, case);
        let longest = requests.iter().map(|r| r.prompt.len() + r.max_new).max().unwrap_or(0);
        let options = engine_options(&mut rng, longest);
        let mut of_layers = CaseRng::new(SEED ^ 8, case);
        let has_pool = options.kv.page().is_some() || options.kv == KvKind::Contiguous;
        let offloads = has_pool && of_layers.one_in(4);
        let which = if offloads { which + 2 } else { which };
        let model = &models[which];
        let memory = match offloads {
            true => layers(&mut of_layers, dir.path(), model, &options),
            false => KvMemory::default(),
        };
        let oracle = Oracle::of(options.kv, &oracles[which], requests);
        let mut engine = Engine::with_memory(model, options, memory).map_err(|e| e.to_string())?;
        engine.offload_to(store(&mut rng, dir.path())).map_err(|e| e.to_string())?;
        let schedule = Schedule {
            oracle: &oracle,
            model,
            kv: options.kv,
            engine,
            groups: groups.into_iter(),
            submitted: 0,
            snapshots: Vec::new(),
            stopped: Vec::new(),
            rng,
            done: Done::default(),
            file: dir.path().join("prefix"),
        };
        // a fault may break the counts of the cache
        let done = catch_unwind(AssertUnwindSafe(|| schedule.run())).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            Err(format!("panicked: {:?}", text.or(panic.downcast_ref::<String>().cloned())))
        });
        let mut done = done.map_err(|e| {
            let layers = if offloads { ", layers offloaded" } else { "" };
            format!("gate held rows, case {case}, seed {SEED}, {options:?}{layers}: {e}")
        })?;
        done.layers_offloaded = if offloads { done.rows } else { 0 };
        done.restored_int8 = if options.kv.is_exact() { 0 } else { done.restored };
        done.sinks = if options.kv.keeps_all() { 0 } else { done.rows };
        all += done;
    }
    Ok(all)
}

/// The first schedules.
#[cfg(feature = "faults")]
pub(crate) fn some() -> Result<usize, String> {
    on(&Device::cpu(), 0..200).map(|done| done.rows)
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn rows_leave_a_gpu_and_return_with_the_bits_of_the_cpu() {
    for device in gpus(&[ThreadSchedule::Priorities(23)]) {
        let done = on(&device, 0..times(12, 100)).unwrap_or_else(|e| panic!("{e}"));
        println!("held rows on {device}: 0 rows differ: {done:?}");
        assert!(done.restored > 0 && done.snapshot_rows > 0 && done.layers_offloaded > 0, "{done:?}");
    }
}

#[test]
fn rows_that_leave_their_sequence_have_the_bits_of_recomputed_ones() {
    let cases = times(1000, 5000);
    let done = on(&Device::cpu(), 0..cases).unwrap_or_else(|e| panic!("{e}"));
    println!("held rows: {cases} schedules, 0 rows differ: {done:?}");
    let cases = cases as usize;
    assert!(done.rows >= 64 * cases && done.events == 20 * cases, "{done:?}");
    assert!(done.snapshots > cases / 4 && done.files > cases / 50 && done.stopped > cases / 50, "{done:?}");
    assert!(done.snapshot_rows > 0 && done.prefix_rows > 0 && done.forks > 0, "{done:?}");
    assert!(done.preemptions > cases as u64 / 20, "{done:?}");
    assert!(done.offloaded > done.restored && done.restored > cases as u64 / 4, "{done:?}");
    assert!(done.restored_int8 > cases as u64 / 20 && done.sinks > 5 * cases, "{done:?}");
    assert!(done.layers_offloaded > 10 * cases, "{done:?}");
}
