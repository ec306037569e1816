//! `xtrain bench guard`.
mod args;
mod committed;
mod cpu_model;
mod reference_loop;
mod workloads;

use serde::Serialize;

use self::workloads::Workload;
use crate::cli::{CliError, Exit, out};
use crate::report::Table;
use crate::tensor::{Device, Simd};

pub(in crate::cli) use args::GuardArgs;

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Report {
    /// The processor and the instruction set: the key of the committed ratios.
    cpu: String,
    /// Least time of the reference loop.
    reference_ms: f64,
    rounds: usize,
    tolerance: f64,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    workload: &'static str,
    /// Least time.
    ms: f64,
    /// Least time, divided by that of the reference loop.
    ratio: f64,
    /// The committed ratio. `None`: this processor has none.
    committed: Option<f64>,
}

pub(super) fn run(args: &GuardArgs) -> Result<(), CliError> {
    let simd = Simd::detect();
    let device = Device::cpu_with(1, simd);
    let mut workloads = workloads::all(&device)?;
    let mut least = vec![f64::INFINITY; workloads.len()];
    let mut reference_ms = f64::INFINITY;
    for _ in 0..args.rounds.get() {
        for (workload, least) in workloads.iter_mut().zip(&mut least) {
            reference_ms = reference_ms.min(reference_loop::measure());
            *least = least.min(workload.measure()?);
        }
    }
    let cpu = format!("{}, {simd}", cpu_model::name());
    let row = |(workload, ms): (&Workload<'_>, f64)| Row {
        workload: workload.name,
        ms,
        ratio: ms / reference_ms,
        committed: committed::ratio(&cpu, workload.name),
    };
    let rows = workloads.iter().zip(least).map(row).collect();
    let report = Report { rows, cpu, reference_ms, rounds: args.rounds.get(), tolerance: args.tolerance };
    let text = if args.json { out::json(&report) } else { report.text() };
    out::print_verdict(text, report.conclude())
}

impl Row {
    /// Time divided by the committed time; above 1 is slower.
    fn change(&self) -> Option<f64> {
        Some(self.ratio / self.committed?)
    }
}

impl Report {
    fn text(&self) -> String {
        let mut table = Table::new(&["workload"], &["least ms", "ratio", "committed", "change"]);
        let number = |x: Option<f64>| x.map_or("-".to_string(), |x| format!("{x:.3}"));
        for row in &self.rows {
            let change = row.change().map_or("-".to_string(), |x| format!("{:+.0} %", 100.0 * (x - 1.0)));
            let cells = [format!("{:.3}", row.ms), number(Some(row.ratio)), number(row.committed), change];
            table.row([row.workload.to_string()].into_iter().chain(cells));
        }
        let Report { cpu, reference_ms, rounds, .. } = self;
        let note = match self.rows.iter().any(|row| row.committed.is_some()) {
            true => String::new(),
            false => format!("\nnote: no ratios are committed for {cpu:?}; add those of --json\n"),
        };
        let head = format!("{cpu}, 1 thread, {rounds} rounds; reference loop {reference_ms:.3} ms\n\n");
        format!("{head}{}{note}", table.render())
    }

    /// Fails with [`Exit::Difference`] if a workload takes more than its committed time and the tolerance.
    fn conclude(&self) -> Result<(), CliError> {
        let slower = |row: &&Row| row.change().is_some_and(|change| change > 1.0 + self.tolerance);
        let names: Vec<&str> = self.rows.iter().filter(slower).map(|row| row.workload).collect();
        if names.is_empty() {
            return Ok(());
        }
        let limit = 100.0 * self.tolerance;
        let message = format_args!("more than {limit:.0} % slower than committed: {}", names.join(", "));
        Err(CliError::new(Exit::Difference, message).hint("repeat with more --rounds on an idle machine"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ratio: f64, committed: Option<f64>) -> Report {
        let row = Row { workload: "decode, batch 1, f32", ms: 2.0 * ratio, ratio, committed };
        Report { cpu: "x".into(), reference_ms: 2.0, rounds: 3, tolerance: 0.15, rows: vec![row] }
    }

    #[test]
    fn a_workload_that_became_slower_is_named() {
        assert!(report(1.14, Some(1.0)).conclude().is_ok());
        assert!(report(0.5, Some(1.0)).conclude().is_ok());
        let error = report(1.16, Some(1.0)).conclude().unwrap_err().to_string();
        assert!(error.contains("more than 15 % slower") && error.contains("decode, batch 1, f32"), "{error}");
    }

    #[test]
    fn a_processor_without_committed_ratios_is_named_and_passes() {
        assert!(report(9.0, None).conclude().is_ok());
        assert!(report(9.0, None).text().contains("no ratios are committed for \"x\""));
        assert!(report(1.2, Some(1.0)).text().contains("+20 %"), "{}", report(1.2, Some(1.0)).text());
    }
}
