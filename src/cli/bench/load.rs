//! `xtrain bench load`.
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

use super::args::LoadArgs;
use super::bench_model::{self, BenchModel};
use super::temp_checkpoint::{self, TempCheckpoint};
use crate::cli::common::Common;
use crate::cli::interrupt::Interrupt;
use crate::cli::{CliError, loaded, out};
use crate::model::Model;
use crate::model::checkpoint::{RealFs, newest_described};
use crate::report::{Resident, Spread, Table, units};

/// Block size of the plain read, in bytes.
const BLOCK: usize = 1 << 20;

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    model: BenchModel,
    files: usize,
    file_bytes: u64,
    /// Size of the weights in the compute dtype, or quantized as they are in memory.
    weight_bytes: u64,
    read_ms: Spread,
    open_ms: Spread,
    /// `None`: without `--masters`, opening includes packing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pack_ms: Option<Spread>,
    /// Peak memory minus the memory in use before. `None`: not available on this system.
    peak_bytes: Option<Peak>,
    samples: Vec<Sample>,
}

/// Peak resident memory of the first sample, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
struct Peak {
    opened: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    packed: Option<u64>,
}

/// One sample, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Sample {
    read: f64,
    open: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pack: Option<f64>,
}

pub(super) fn run(args: &LoadArgs) -> Result<(), CliError> {
    if let Some(out) = &args.make {
        return temp_checkpoint::write(out, &args.shared);
    }
    let report = match &args.model {
        Some(model) => {
            let path = loaded::find(model)?;
            measure(&path, args, &args.shared.common, path.display().to_string(), None)?
        }
        None => {
            let config = args.shared.config()?;
            let interrupt = Interrupt::install()?;
            let checkpoint = TempCheckpoint::new(&interrupt)?;
            let common = Common { dtype: Some(config.train.dtype), ..args.shared.common.clone() };
            measure(&checkpoint.path, args, &common, bench_model::name(&config), Some(&interrupt))?
        }
    };
    if args.shared.json { out::print_json(&report) } else { out::print(report.text()) }
}

fn measure(
    path: &Path,
    args: &LoadArgs,
    common: &Common,
    name: String,
    interrupt: Option<&Interrupt>,
) -> Result<Report, CliError> {
    let files = weight_files(path)?;
    let file_bytes = read(&files)?;
    let (mut samples, mut peak, mut description, mut weight_bytes) = (Vec::new(), None, None, 0);
    for _ in 0..args.repeats.get() {
        interrupt.map_or(Ok(()), temp_checkpoint::check_signal)?;
        let (_, read) = timed(|| read(&files))?;
        let before = Resident::measure();
        let (loaded, open) = timed(|| match args.masters {
            true => loaded::open_with_master_weights(path, common),
            false => loaded::open(path, common),
        })?;
        let opened = Resident::measure();
        let pack = args.masters.then(|| timed(|| pack(&loaded.model))).transpose()?.map(|((), ms)| ms);
        samples.push(Sample { read, open, pack });
        let packed = pack.and_then(|_| Resident::measure());
        peak = peak.or_else(|| {
            let before = before?.now;
            let over = |after: Resident| after.peak.saturating_sub(before);
            Some(Peak { opened: over(opened?), packed: packed.map(over) })
        });
        weight_bytes = loaded.model.params.compute_bytes() as u64;
        description.get_or_insert_with(|| BenchModel::new(name.clone(), &loaded.model));
    }
    let spread = |of: fn(&Sample) -> f64| Spread::of(samples.iter().map(of)).expect("at least one sample");
    Ok(Report {
        model: description.expect("at least one sample"),
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

/// The result of `work` and its time in milliseconds.
fn timed<T>(work: impl FnOnce() -> Result<T, CliError>) -> Result<(T, f64), CliError> {
    let clock = Instant::now();
    let done = work()?;
    Ok((done, clock.elapsed().as_secs_f64() * 1e3))
}

/// The weight files, and the files of the optimizer state, which opening verifies too.
fn weight_files(model: &Path) -> Result<Vec<PathBuf>, CliError> {
    if model.is_file() {
        return Ok(vec![model.to_path_buf()]);
    }
    let dir = match model.join("checkpoints").is_dir() {
        true => newest_described(&RealFs, model)?.path,
        false => model.to_path_buf(),
    };
    let single = dir.join("model.safetensors");
    let mut files = match single.is_file() {
        true => vec![single],
        false => safetensors_files(&dir, "-of-")?,
    };
    let trainer = dir.join("trainer");
    if trainer.is_dir() {
        files.extend(safetensors_files(&trainer, "")?);
    }
    Ok(files)
}

/// The safetensors files of a directory whose names contain `part`.
fn safetensors_files(dir: &Path, part: &str) -> Result<Vec<PathBuf>, CliError> {
    let entries = std::fs::read_dir(dir).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let files = entries.map_err(|error| CliError::io(dir, &error))?.into_iter().map(|entry| entry.path());
    let is_part = |file: &PathBuf| {
        file.extension().is_some_and(|e| e == "safetensors")
            && file.file_name().is_some_and(|name| name.to_string_lossy().contains(part))
    };
    Ok(files.filter(is_part).collect())
}

/// Reads all bytes of `files` and discards them. Returns their number.
fn read(files: &[PathBuf]) -> Result<u64, CliError> {
    let read = |path: &PathBuf| {
        let file = File::open(path);
        let read =
            file.and_then(|file| io::copy(&mut BufReader::with_capacity(BLOCK, file), &mut io::sink()));
        read.map_err(|error| CliError::io(path, &error))
    };
    files.iter().map(read).sum()
}

/// Packs every matrix that is an operand of a product.
fn pack(model: &Model) -> Result<(), CliError> {
    let table = (!model.config().tie_embeddings).then(|| model.params.embed.name());
    for param in model.params.iter() {
        if param.shape().len() == 2 && Some(param.name()) != table {
            param.packed()?;
        }
    }
    Ok(())
}

impl Report {
    fn text(&self) -> String {
        let times = [("read files", &self.read_ms), ("open model", &self.open_ms)].into_iter();
        let pack = self.pack_ms.iter().map(|pack| ("pack matrices", pack));
        let times = Table::of_spreads("ms", 1, times.chain(pack));
        let (files, bytes) = (units::many(self.files as u64, "file"), units::bytes(self.file_bytes));
        let title = self.model.title();
        format!("{title}weights in {files}, {bytes}\n\n{}\n{}", times.render(), self.memory())
    }

    fn memory(&self) -> String {
        let Some(peak) = self.peak_bytes else { return "peak memory: not available on this system\n".into() };
        let mut table = Table::new(&["peak memory"], &["size", "x weights"]);
        let times = |bytes: u64| format!("{:.2}", bytes as f64 / self.weight_bytes as f64);
        let rows = [("weights as products read them", self.weight_bytes), ("open", peak.opened)];
        for (name, bytes) in rows.into_iter().chain(peak.packed.map(|bytes| ("open and pack", bytes))) {
            table.row([name.to_string(), units::bytes(bytes), times(bytes)]);
        }
        table.render()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: LoadArgs,
    }

    #[test]
    fn quantized_weights_have_their_size_in_memory() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gguf/qwen3_tied.Q8_0.gguf");
        let weight_bytes = |flags: &[&str]| {
            let line = ["load", "--repeats", "1"].iter().chain(flags);
            let args = Line::try_parse_from(line).unwrap().args;
            measure(&file, &args, &args.shared.common, String::new(), None).unwrap().weight_bytes
        };
        // 384 weights of norms; blocks of 32 weights take 36 bytes
        assert_eq!(weight_bytes(&[]), (119_168 - 384) / 32 * 36 + 4 * 384);
        assert_eq!(weight_bytes(&["--masters"]), 4 * 119_168);
        assert_eq!(weight_bytes(&["--dtype", "bf16"]), 2 * 119_168);
    }

    #[test]
    fn a_file_is_its_own_weight_file() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert_eq!(weight_files(&file).unwrap(), [file]);
    }
}
