//! `xtrain bench load`.
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use super::LoadArgs;
use super::made::{self, Made};
use super::resident::{Resident, resident};
use super::subject::{self, BenchModel};
use crate::cli::common::Common;
use crate::cli::interrupt::Interrupt;
use crate::cli::{CliError, loaded, out};
use crate::config::RunConfig;
use crate::model::Model;
use crate::model::checkpoint::{RealFs, newest_described};
use crate::report::{Column, Spread, Table, units};

/// Bytes that a plain read takes at a time.
const PIECE: usize = 1 << 20;

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    subject: BenchModel,
    files: usize,
    file_bytes: u64,
    /// Of the weights in compute type.
    weight_bytes: u64,
    read_ms: Spread,
    open_ms: Spread,
    /// With `--masters`: without, opening is packing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pack_ms: Option<Spread>,
    /// Over what the process had before; none where the system does not say.
    peak_bytes: Option<Peak>,
    samples: Vec<Sample>,
}

/// The most resident memory of the first sample, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Peak {
    opened: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    packed: Option<u64>,
}

/// Milliseconds of one sample.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sample {
    read: f64,
    open: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pack: Option<f64>,
}

pub(super) fn run(args: &LoadArgs) -> Result<(), CliError> {
    if let Some(out) = &args.make {
        return super::made::write(out, &args.shared);
    }
    let Some(model) = &args.model else {
        let config = RunConfig::load(&args.shared.layers.layers())?;
        let interrupt = Interrupt::install()?;
        let made = Made::new(&interrupt)?;
        let dtype = args.shared.common.dtype.unwrap_or(config.train.dtype);
        let common = Common { dtype: Some(dtype), ..args.shared.common.clone() };
        let report = measure(&made.path, (args, &common), subject::name(&config), Some(&interrupt))?;
        return print(args, report);
    };
    let path = loaded::find(model)?;
    let name = path.display().to_string();
    print(args, measure(&path, (args, &args.shared.common), name, None)?)
}

fn print(args: &LoadArgs, report: Report) -> Result<(), CliError> {
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

fn measure(
    path: &Path,
    (args, common): (&LoadArgs, &Common),
    name: String,
    interrupt: Option<&Interrupt>,
) -> Result<Report, CliError> {
    let files = files(path)?;
    let file_bytes = read(&files)?;
    let (mut samples, mut peak, mut subject, mut weight_bytes) = (Vec::new(), None, None, 0);
    for _ in 0..args.repeats.get() {
        interrupt.map_or(Ok(()), made::stopped)?;
        let (_, read) = timed(|| read(&files))?;
        let before = resident();
        let (loaded, open) = timed(|| match args.masters {
            true => loaded::open_whole(path, common),
            false => loaded::open(path, common),
        })?;
        let opened = resident();
        let pack = args.masters.then(|| timed(|| packed(&loaded.model))).transpose()?.map(|((), ms)| ms);
        samples.push(Sample { read, open, pack });
        let packed = pack.and_then(|_| resident());
        peak = peak.or_else(|| Peak::of(before?, opened?, packed));
        weight_bytes = (loaded.model.config().n_params() * loaded.model.compute().bytes()) as u64;
        subject.get_or_insert_with(|| BenchModel::new(name.clone(), &loaded.model));
    }
    let spread = |of: fn(&Sample) -> f64| Spread::of(samples.iter().map(of)).expect("at least one sample");
    Ok(Report {
        subject: subject.expect("at least one sample"),
        files: files.len(),
        file_bytes,
        weight_bytes,
        read_ms: spread(|sample| sample.read),
        open_ms: spread(|sample| sample.open),
        pack_ms: Spread::of(samples.iter().filter_map(|sample| sample.pack)),
        peak_bytes: peak,
        samples,
    })
}

/// What `work` returns, and its milliseconds.
fn timed<T>(work: impl FnOnce() -> Result<T, CliError>) -> Result<(T, f64), CliError> {
    let clock = Instant::now();
    let done = work()?;
    Ok((done, clock.elapsed().as_secs_f64() * 1e3))
}

/// The files that hold the weights, and those of a trainer's state, which opening verifies too.
fn files(model: &Path) -> Result<Vec<PathBuf>, CliError> {
    if model.is_file() {
        return Ok(vec![model.to_path_buf()]);
    }
    let dir = match model.join("checkpoints").is_dir() {
        true => newest_described(&RealFs, model)?.0,
        false => model.to_path_buf(),
    };
    let single = dir.join("model.safetensors");
    let mut files = match single.is_file() {
        true => vec![single],
        false => tensors(&dir, "-of-")?,
    };
    let trainer = dir.join("trainer");
    if trainer.is_dir() {
        files.extend(tensors(&trainer, "")?);
    }
    Ok(files)
}

/// The safetensors files of a directory whose names hold `part`.
fn tensors(dir: &Path, part: &str) -> Result<Vec<PathBuf>, CliError> {
    let io = |error| CliError::io(dir, &error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        files.push(entry.map_err(io)?.path());
    }
    files.retain(|file| {
        file.extension().is_some_and(|e| e == "safetensors")
            && file.file_name().is_some_and(|name| name.to_string_lossy().contains(part))
    });
    Ok(files)
}

/// Reads every byte of `files` and keeps none of them; how many there are.
fn read(files: &[PathBuf]) -> Result<u64, CliError> {
    let (mut piece, mut bytes) = (vec![0; PIECE], 0);
    for path in files {
        let io = |error| CliError::io(path, &error);
        let mut file = std::fs::File::open(path).map_err(io)?;
        loop {
            match file.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => bytes += n as u64,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(io(error)),
            }
        }
    }
    Ok(bytes)
}

/// Packs every matrix that a pass multiplies by.
fn packed(model: &Model) -> Result<(), CliError> {
    let table = (!model.config().tie_embeddings).then(|| model.params.embed.name());
    for param in model.params.iter() {
        if param.shape().len() == 2 && Some(param.name()) != table {
            param.packed()?;
        }
    }
    Ok(())
}

impl Peak {
    fn of(before: Resident, opened: Resident, packed: Option<Resident>) -> Option<Peak> {
        let over = |after: Resident| after.most.saturating_sub(before.now);
        Some(Peak { opened: over(opened), packed: packed.map(over) })
    }
}

impl Report {
    fn text(&self) -> String {
        let heads = ["min", "p50", "mean", "p95", "max", "n"].map(Column::numbers);
        let mut times = Table::new([Column::words("ms")].into_iter().chain(heads));
        let rows = [("read the files", &self.read_ms), ("open the model", &self.open_ms)];
        for (what, s) in rows.into_iter().chain(self.pack_ms.iter().map(|pack| ("pack it", pack))) {
            let numbers = [s.min, s.p50, s.mean, s.p95, s.max].map(|ms| format!("{ms:.1}"));
            times.row([what.to_string()].into_iter().chain(numbers).chain([s.n.to_string()]));
        }
        let (files, bytes) = (units::many(self.files as u64, "file"), units::bytes(self.file_bytes));
        let title = self.subject.title();
        format!("{title}{files} of weights, {bytes}\n\n{}\n{}", times.render(), self.memory())
    }

    fn memory(&self) -> String {
        let Some(peak) = self.peak_bytes else { return "peak memory: not measured here\n".into() };
        let heads = ["bytes", "x weights"].map(Column::numbers);
        let mut table = Table::new([Column::words("peak memory")].into_iter().chain(heads));
        let times = |bytes: u64| format!("{:.2}", bytes as f64 / self.weight_bytes as f64);
        let rows = [("weights in compute type", self.weight_bytes), ("open", peak.opened)];
        for (what, bytes) in rows.into_iter().chain(peak.packed.map(|bytes| ("open and packed", bytes))) {
            table.row([what.to_string(), units::bytes(bytes), times(bytes)]);
        }
        table.render()
    }
}
