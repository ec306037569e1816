//! Gate: every fault that is planted in a kernel (`XT_FAULT` in `kernels/`) is found, by a comparison of bits or by
//! the checked emulator. Without a fault, the same comparisons are run by `gates/gpu.rs` and by the tests of `gpu/`.
#![cfg(xtrain_emu)]
use super::table::TABLE;
use super::{Difference, gpu, tensor_core};
use crate::faults::{self, Fault};
use crate::gpu::attention::tests as attention;
use crate::gpu::int8::tests as int8;
use crate::gpu::linear::tests as linear;
use crate::gpu::loss::tests as loss;
use crate::gpu::pack::tests as pack;
use crate::gpu::sample::tests as sample;
use crate::{Device, ThreadSchedule, testing};

/// The gate that finds a fault.
enum Gate {
    /// The cases of this operation, by the bits of a result.
    Bits(&'static str),
    /// The cases of this operation on the checked emulator, which reports one of these errors.
    Checked(&'static str, &'static [&'static str]),
    /// A comparison of bits that a test runs without the fault.
    Test(fn() -> Result<usize, String>),
}

const RACES: &[&str] = &[
    "read of uninitialized memory",
    "race: read of an unordered write",
    "race: write after an unordered read",
    "race: write after an unordered write",
];

/// Each fault and the gate that finds it.
const CAUGHT: &[(Fault, Gate)] = &[
    (Fault::DecodeChunksMergedInReverse, Gate::Bits("decode_attention")),
    (Fault::BlockCounterNotReset, Gate::Bits("decode_attention")),
    (Fault::KernelInt8CodesTruncated, Gate::Bits("quantize_heads")),
    (Fault::KernelInt8ScaleOfNeighbour, Gate::Bits("int8_attention")),
    (Fault::NextKeyAttended, Gate::Bits("attention")),
    (Fault::LastKeyOfChunkUnmasked, Gate::Test(attention::any_first_row)),
    (Fault::LastRowOfWindowSkipped, Gate::Bits("attention_backward")),
    (Fault::ChunkSumKept, Gate::Bits("linear_backward_input")),
    (Fault::HeadsAtFirstPosition, Gate::Bits("norm_rope")),
    (Fault::LastPairOfChunkNotSummed, Gate::Bits("norm_rope_backward")),
    (Fault::StagedPairsOverwritten, Gate::Checked("norm_rope_backward", RACES)),
    (Fault::KeptUpIsGate, Gate::Bits("swiglu_kept")),
    (Fault::GradientOfRoundedSwiGlu, Gate::Bits("linear_backward_swiglu")),
    (Fault::LastTileOfProductSkipped, Gate::Test(linear::shared_launch::gradients)),
    (Fault::StepBarrierMissing, Gate::Checked("linear", RACES)),
    (Fault::StageNotAwaited, Gate::Checked("linear_backward_input", &["destination of a pending cp.async"])),
    (Fault::TailOfVectorNotCopied, Gate::Test(linear::products)),
    (Fault::TailOfBufferNotCopied, Gate::Bits("scatter_rows")),
    (Fault::TailOfTensorNotUpdated, Gate::Bits("adamw_all")),
    (Fault::SumOfEarlierWarpsLost, Gate::Bits("sample_rows")),
    (Fault::BinsNotReset, Gate::Bits("sample_rows")),
    (Fault::HistogramOfFirstBlock, Gate::Checked("sample_rows", RACES)),
    (Fault::ListOfFirstBlock, Gate::Checked("sample_rows", RACES)),
    (Fault::PickBeforeOtherBlocks, Gate::Checked("sample_rows", RACES)),
    (Fault::GreedyTakesLaterTie, Gate::Bits("sample_rows")),
    (Fault::GreedyBeforeOtherBlocks, Gate::Checked("sample_rows", RACES)),
    (Fault::StepCountedByFirstRow, Gate::Checked("sample_rows", RACES)),
    (Fault::TailOfWeightNotCast, Gate::Test(pack::packed_together)),
    (Fault::ScaleOfFirstNormedRow, Gate::Test(linear::normed_heads)),
    (Fault::ChunkGroupsReversed, Gate::Test(linear::products)),
    (Fault::NewValueNotStored, Gate::Bits("append_attention")),
    (Fault::QueryRowsOfKeyStride, Gate::Bits("write_heads")),
    (Fault::LastLaneNotSummed, Gate::Bits("rms_norm")),
    (Fault::UpBiasNeedsGateBias, Gate::Bits("swiglu")),
    (Fault::ResidualDenormalFlushed, Gate::Test(linear::residual::sums)),
    (Fault::KeptSetForgetsFirstColumn, Gate::Test(loss::given_sets)),
    (Fault::FilterStopsEarly, Gate::Bits("cross_entropy")),
    (Fault::TopPSumOfReciprocal, Gate::Bits("cross_entropy")),
    (Fault::TailOfLoopSkipped, Gate::Bits("rms_norm")),
    (Fault::RowsOfAnIdReversed, Gate::Bits("embedding_backward")),
    (Fault::SharedQueriesOfFirstRow, Gate::Test(attention::shared::over)),
    (Fault::BlockArrivesEarly, Gate::Checked("decode_attention", RACES)),
    (Fault::BlockArrivalRelaxed, Gate::Checked("decode_attention", RACES)),
    (Fault::ChunkSumsNotAwaited, Gate::Checked("linear_backward_bias", RACES)),
    (Fault::LastChunksNotSearched, Gate::Test(sample::large_vocabulary)),
    (Fault::KernelInt8NanSkipped, Gate::Test(int8::not_finite)),
    (Fault::WgmmaStepDiffers, Gate::Test(tensor_core::wgmma_of_images)),
    (Fault::WgmmaStageNotAwaited, Gate::Test(linear::wgmma::checked)),
    (Fault::WgmmaChunkSumKept, Gate::Test(linear::products)),
    (Fault::RowsOfOperandOverlap, Gate::Test(linear::products)),
    (Fault::HalvesOfOperandOverlap, Gate::Test(linear::wgmma_gradients::gradients)),
    (Fault::WgmmaStartsFromZero, Gate::Test(linear::wgmma_gradients::gradients)),
    (Fault::StageOverwritten, Gate::Test(linear::wgmma::checked)),
    (Fault::StageReleasedEarly, Gate::Test(linear::wgmma::checked)),
    (Fault::BarriersNotFenced, Gate::Test(linear::wgmma::checked)),
    (Fault::QuadNotTransposed, Gate::Test(linear::products)),
    (Fault::SiluDivisorNotTested, Gate::Bits("silu_mul")),
    (Fault::SmallChunksSwapped, Gate::Test(linear::products)),
    (Fault::GradientOfLastKeysOnly, Gate::Bits("attention_backward")),
    (Fault::ExpOutOfRange, Gate::Test(attention::edge_values)),
    (Fault::QuotientOutOfRange, Gate::Test(attention::edge_values)),
    (Fault::GradientOfMaskedScores, Gate::Bits("attention_backward")),
    (Fault::WgmmaAssumed, Gate::Test(tensor_core::wgmma_of_images)),
];

/// Runs the cases of an operation with a fault. Returns the difference.
fn difference(fault: Fault, op: &str, device: Device) -> Difference {
    let entry = TABLE.iter().find(|entry| entry.name == op).expect("an operation of the table");
    let missed = |counts| panic!("{fault} was not found by {op} on {device}: {counts}");
    faults::with(fault, || gpu::gate(&(entry.cases)(), &device)).map_or_else(|found| found, missed)
}

/// Runs a gate with its fault. Returns the text of the difference that it finds.
fn found_by(fault: Fault, gate: &Gate) -> String {
    match *gate {
        Gate::Bits(op) => {
            let found = difference(fault, op, testing::emulated(ThreadSchedule::Forward));
            assert!(found.want != "a result", "{fault}: an error instead of other bits: {found}");
            found.to_string()
        }
        Gate::Checked(op, texts) => {
            let found = difference(fault, op, testing::checked(ThreadSchedule::Random(9)));
            assert!(
                texts.iter().any(|text| found.got.contains(text)),
                "{fault}: not one of {texts:?}: {found}"
            );
            found.to_string()
        }
        Gate::Test(gate) => match faults::with(fault, gate) {
            Ok(n) => panic!("{fault} was not found: {n} values are equal"),
            Err(text) => text,
        },
    }
}

#[test]
fn every_fault_of_a_kernel_is_found_by_its_gate() {
    for &fault in Fault::IN_KERNELS {
        let listed = CAUGHT.iter().find(|c| c.0 == fault);
        let what = fault.description();
        let (_, gate) = listed.unwrap_or_else(|| panic!("no gate is listed for the fault {fault} ({what})"));
        let start = std::time::Instant::now();
        let text = found_by(fault, gate);
        println!("{fault}: {text}, {:?}", start.elapsed());
        assert!(text.contains("seed"), "{text}");
    }
}

#[test]
fn a_kernel_of_another_head_size_is_found() {
    for op in ["decode_attention", "append_attention"] {
        println!("{op}: {}", found_by(Fault::KernelOfOtherHeadSize, &Gate::Bits(op)));
    }
}

#[test]
fn rows_that_see_the_new_keys_of_others_must_not_write_them_in_their_attention() {
    let (fault, gate) = (Fault::NewKeysOfOthersUnseen, Gate::Bits("append_attention"));
    println!("{fault}: {}", found_by(fault, &gate));
}
