//! Splitting the vocabulary into chunks changes no bit and bounds the memory.
use super::*;
use crate::operands::{Samples, Target};
use crate::testing::{arbitrary, compare_bits, simds};
use crate::{Device, ops};

/// A loss of two samples. In most cases one sample is longer than a chunk of rows, and the vocabulary has more than
/// two chunks of 512.
struct Case {
    lengths: [usize; 2],
    out: usize,
    width: usize,
    dtype: Dtype,
    top_k: Option<usize>,
    top_p: f32,
    min_p: f32,
}

/// Values of the rows, `dx` and `dhead`. The SIMD CPU holds at most `max_logits` logits at a time.
fn computed(case: &Case, device: &Device, max_logits: usize) -> Result<[Vec<f32>; 3]> {
    let (n, v, c) = (case.lengths.iter().sum::<usize>(), case.out, case.width);
    let x = Tensor::new(device, &[n, c], arbitrary(n * c, 1))?.cast(case.dtype)?;
    let head = Weight::new(&Tensor::new(device, &[v, c], arbitrary(v * c, 2))?, case.dtype)?;
    let target = |i: usize| {
        let weight = [1.0, -0.75, 0.3][i % 3];
        let bonus = [0.0, 0.01][i / 7 % 2];
        (i % 5 != 3).then_some(Target { id: (i * 97 % v) as u32, weight, bonus })
    };
    let targets: Vec<Option<Target>> = (0..n).map(target).collect();
    let samples = Samples::of_lengths(case.lengths);
    let rows = LossRows {
        temperature: 0.8,
        top_k: case.top_k,
        top_p: case.top_p,
        min_p: case.min_p,
        ..LossRows::new(&targets, &samples)
    };
    let mut dhead = Tensor::zeros(device, &[v, c], Dtype::F32).unwrap();
    let (values, dx) = match device.as_cpu() {
        Some(cpu) => {
            let (known, dx) =
                LossPass { cpu, x: &x, head: &head, rows: &rows, max_logits }.gradients(&mut dhead)?;
            (values_of(known), dx)
        }
        None => ops::cross_entropy_backward(&x, &head, &rows, &mut 0.0, &mut dhead)?,
    };
    let values = values.into_iter().flatten().flat_map(|v| [v.lse, v.log_prob, v.entropy]);
    Ok([values.collect(), dx.data()?.to_vec(), dhead.data()?.to_vec()])
}

fn cases() -> Vec<Case> {
    let case = |lengths, out, width, dtype, top_k| Case {
        lengths,
        out,
        width,
        dtype,
        top_k,
        top_p: 1.0,
        min_p: 0.0,
    };
    vec![
        case([300, 5], 1300, 9, Dtype::F32, None),
        case([300, 5], 1300, 9, Dtype::BF16, None),
        case([7, 262], 1025, 8, Dtype::F32, Some(20)),
        case([1, 2], 3000, 5, Dtype::BF16, Some(2999)),
        Case { top_p: 0.9, ..case([3, 259], 1300, 9, Dtype::F32, None) },
        Case { top_p: 0.5, min_p: 0.2, ..case([5, 2], 1025, 8, Dtype::BF16, Some(700)) },
        Case { min_p: 0.1, ..case([2, 3], 1537, 9, Dtype::F32, None) },
    ]
}

/// Compares chunks of 512 columns with the whole vocabulary, for every case on every device.
fn chunks_against_whole() -> std::result::Result<usize, String> {
    let mut compared = 0;
    for case in cases() {
        let rows = case.lengths.iter().sum::<usize>();
        let reference = computed(&case, &Device::reference(), 0).map_err(|e| e.to_string())?;
        for simd in simds() {
            let device = Device::cpu_with(2, simd);
            let whole = computed(&case, &device, 256 * case.out).map_err(|e| e.to_string())?;
            let chunks = computed(&case, &device, 512 * rows.min(256)).map_err(|e| e.to_string())?;
            for ((got, want), what) in whole.iter().zip(&reference).zip(["values", "dx", "dhead"]) {
                compare_bits(got, want).map_err(|e| format!("gate reference: {what} on {simd}: {e}"))?;
                compared += want.len();
            }
            for ((got, want), what) in chunks.iter().zip(&whole).zip(["values", "dx", "dhead"]) {
                compare_bits(got, want).map_err(|e| format!("gate vocabulary: {what} on {simd}: {e}"))?;
                compared += want.len();
            }
        }
    }
    Ok(compared)
}

#[test]
fn chunks_of_the_vocabulary_change_no_bit() {
    let n = chunks_against_whole().unwrap_or_else(|e| panic!("{e}"));
    println!("vocabulary: {n} values, 0 differing bits");
}

#[cfg(feature = "faults")]
#[test]
fn a_vocabulary_chunk_that_restarts_the_sum_is_detected() {
    let seen = crate::faults::with(crate::faults::Fault::VocabChunkSubtotal, chunks_against_whole);
    assert!(seen.is_err_and(|e| e.contains("dx on")));
}

#[test]
fn a_row_keeps_its_k_largest_logits_the_first_of_equal_ones_and_its_target() {
    crate::testing::check_top_k_of_equal_logits(&Device::cpu());
}

/// Size of the vocabulary of [`visited`].
const VISITED_OUT: usize = 70;

/// The indices and the logits of the rows that the values of a loss visit, with at most `max_logits` logits in memory.
fn visited(max_logits: usize) -> Vec<(usize, Vec<f32>)> {
    let (n, v, c, device) = (230, VISITED_OUT, 9, Device::cpu());
    let x = Tensor::new(&device, &[n, c], arbitrary(n * c, 1)).unwrap();
    let head = Weight::new(&Tensor::new(&device, &[v, c], arbitrary(v * c, 2)).unwrap(), Dtype::F32).unwrap();
    let target =
        |i: usize| (i % 5 != 3).then_some(Target { id: (i * 97 % v) as u32, weight: 1.0, bonus: 0.0 });
    let targets: Vec<Option<Target>> = (0..n).map(target).collect();
    let samples = Samples::of_lengths([n]);
    let rows = LossRows::new(&targets, &samples);
    let cpu = device.as_cpu().unwrap();
    let mut seen = Vec::new();
    let pass = LossPass { cpu, x: &x, head: &head, rows: &rows, max_logits };
    pass.values(|n, z, _| seen.push((n, z.to_vec()))).unwrap();
    seen
}

#[test]
fn each_row_is_visited_with_its_index_in_the_input() {
    let (whole, blocks) = (visited(usize::MAX), visited(100 * VISITED_OUT));
    let with_target: Vec<usize> = (0..230).filter(|i| i % 5 != 3).collect();
    for seen in [&whole, &blocks] {
        assert_eq!(seen.iter().map(|(n, _)| *n).collect::<Vec<_>>(), with_target);
    }
    for ((n, got), (_, want)) in blocks.iter().zip(&whole) {
        compare_bits(got, want).unwrap_or_else(|e| panic!("row {n}: {e}"));
    }
}

#[cfg(feature = "faults")]
#[test]
fn a_row_that_is_visited_with_its_index_in_a_block_is_detected() {
    let test = each_row_is_visited_with_its_index_in_the_input;
    let found =
        crate::faults::with(crate::faults::Fault::RowsVisitedByBlock, || crate::testing::failure(test));
    assert!(found.is_some_and(|text| text.contains("left == right")));
}

/// Peak resident memory of this process in KiB. `None`: the system does not report it.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The growth of the peak, in MiB, during a loss and its gradient over 512 rows and a vocabulary of 50,000. `None`:
/// the system does not report the peak.
fn growth(max_logits: usize) -> Option<u64> {
    let (n, v, c, device) = (512, 50_000, 16, Device::cpu());
    let x = Tensor::new(&device, &[n, c], arbitrary(n * c, 1)).unwrap();
    let head = Weight::new(&Tensor::new(&device, &[v, c], arbitrary(v * c, 2)).unwrap(), Dtype::F32).unwrap();
    let targets: Vec<_> =
        (0..n).map(|i| Some(Target { id: i as u32 * 97, weight: 1.0, bonus: 0.0 })).collect();
    let samples = Samples::of_lengths([n]);
    let rows = LossRows::new(&targets, &samples);
    let mut dhead = Tensor::zeros(&device, &[v, c], Dtype::F32).unwrap();
    dhead.data_mut::<f32>().unwrap().fill(1.0);
    let cpu = device.as_cpu().unwrap();
    super::super::pack::backward_of(cpu, &head).unwrap();
    let before = peak()?;
    let _ = LossPass { cpu, x: &x, head: &head, rows: &rows, max_logits }.gradients(&mut dhead).unwrap();
    Some((peak()? - before) / 1024)
}

#[test]
fn a_vocabulary_of_50_000_takes_40_mib_although_its_logits_are_100_mib() {
    const CHILD: &str = "XTRAIN_TEST_LOGITS";
    const NAME: &str =
        "cpu::loss::tests::a_vocabulary_of_50_000_takes_40_mib_although_its_logits_are_100_mib";
    if let Ok(max_logits) = std::env::var(CHILD) {
        return println!("grown by {:?}", growth(max_logits.parse().unwrap()));
    }
    // 16 MiB of logits, and the same amount recycled for products of other sizes
    for (max_logits, fits) in [(blocks::MIN_LOGITS, true), (512 * 50_000, false)] {
        // in a separate process, because other tests add to the peak
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", NAME, "--nocapture"]).env(CHILD, max_logits.to_string());
        let out = String::from_utf8(child.output().unwrap().stdout).unwrap();
        let Some((_, rest)) = out.split_once("grown by Some(") else {
            return println!("not measured: this system does not report the peak memory of a process");
        };
        let grown: u64 = rest.split(')').next().unwrap().parse().unwrap();
        println!("{max_logits} logits at a time: {grown} MiB");
        assert_eq!(grown <= 40, fits, "{max_logits} logits at a time: {grown} MiB");
    }
}
