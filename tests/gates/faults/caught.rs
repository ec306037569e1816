//! The list of planted faults and the gate of each.
use std::time::Duration;

use xtrain::tensor::faults::Fault;
use xtrain::tensor::testing::checked_simds;
use xtrain::tensor::{Device, Dtype};

use super::Gate;
use crate::{
    accumulators, adamw, branches, cli, commands_cache_kinds, commands_choices, commands_constraint,
    commands_early, commands_end_tokens, commands_grpo, commands_lock, commands_overwrite, commands_report,
    commands_resume, commands_rollout, commands_rollout_resume, commands_score, commands_sft,
    commands_situations, commands_top_logprobs, commands_train, commands_validation, commands_verify,
    commands_watch, config_fields, constraints, conversations, corrupt_tokenizers, damaged_files,
    decode_ahead, equal_completions, exact_limits, families, families_small, finite_tails, focused, gguf,
    gguf_pieces, gpu, gpu_peers, gpu_windows, grpo, grpo_counts, held_rows, import_export, kept_sets,
    launch_log, micro_batches, multi_step, non_finite_index, open_for_inference, packing, packs, policy,
    prefix_cache, priorities, processes, quant_halves, quickstart, resume_data, rope_divisors, rope_scaling,
    schedules, sentencepiece, shards, sinks, speculation, stop_text, tape_gradient, turns, weighted_steps,
};
#[cfg(target_os = "linux")]
use crate::{memory_grpo, memory_train, run_lock, syncs};

fn branches() -> focused::Checked {
    branches::over(8).map(|[(values, _), _]| values).map_err(|e| format!("gate branches, seed 91: {}", e.0))
}

/// The faults whose gates record the system calls of Linux, limit the size of files, pause a process, or read its list of
/// open files, its state or its memory.
pub(super) const ON_LINUX: [Fault; 16] = [
    Fault::PreallocationMergesGroups,
    Fault::TrainedRunStartedAgain,
    Fault::RewardProcessesOutlive,
    Fault::StepMemoryKept,
    Fault::KilledRolloutLost,
    Fault::FileSizeLimitEndsProcess,
    Fault::HangupEndsProcess,
    Fault::NohupNotNoticed,
    Fault::UnfinishedOutputKept,
    Fault::WriterGoesOnAfterSignal,
    Fault::WrittenLinesRemoved,
    Fault::FilesNotSynced,
    Fault::RunNamesNotSynced,
    Fault::OutputNameNotSynced,
    Fault::LockOfCopiesKept,
    Fault::EvaluationOfManyRows,
];

/// Each fault and the gate that finds it.
pub(super) const CAUGHT: &[(Fault, Gate)] = &[
    (Fault::DroppedCacheWrite, Gate::Invariance),
    (Fault::PageOffByOne, Gate::Invariance),
    (Fault::SinksRotatedByText, Gate::Invariance),
    (Fault::SinkOverwritten, Gate::Invariance),
    (Fault::SinksWindowOneTooMany, Gate::Invariance),
    (Fault::SinksForkLostRows, Gate::Test(held_rows::some)),
    (Fault::Int8CodesTruncated, Gate::Invariance),
    (Fault::Int8ScaleOfNeighbour, Gate::Invariance),
    (Fault::PositionOffByOne, Gate::Invariance),
    (Fault::PrefixCacheFalseHit, Gate::Test(|| prefix_cache::over(0..60).map(|[rows, ..]| rows as usize))),
    (Fault::RngUsesFirstSequenceId, Gate::Invariance),
    (Fault::SingleRowSumReversed, Gate::Invariance),
    (Fault::MaskOffByOne, Gate::Invariance),
    (Fault::WindowOffByOne, Gate::Invariance),
    (Fault::OnlyFirstPageCompared, Gate::Invariance),
    (Fault::RngIgnoresSequenceId, Gate::Invariance),
    (Fault::FollowerNotSeparated, Gate::Invariance),
    (Fault::ConstraintAfterFilters, Gate::Test(constraints::some)),
    (Fault::ConstraintStale, Gate::Test(constraints::some)),
    (Fault::DraftIgnoresConstraint, Gate::Test(constraints::some)),
    (Fault::EndOfTextAllowedEarly, Gate::Test(constraints::some)),
    (Fault::LogProbIgnoresConstraint, Gate::Test(constraints::some)),
    (Fault::UpdateForgetsConstraint, Gate::Test(grpo::constraint::steps)),
    (Fault::GreedyTieTakesLast, Gate::Focused(focused::ties)),
    (Fault::SamplerF32RunningSum, Gate::Focused(focused::ranges)),
    (Fault::MicroBatchSubtotal, Gate::Splits),
    (Fault::ShardsAddedInSequence, Gate::Test(|| shards::over(1))),
    (Fault::ShardBoundsRoundedUp, Gate::Test(|| shards::over(1))),
    (Fault::LossOfShardsAveraged, Gate::Test(|| shards::over(1))),
    (Fault::SliceUpdatedTwice, Gate::Test(|| shards::over(1))),
    (Fault::StaleWeightsOnOneProcess, Gate::Test(|| shards::over(1))),
    (Fault::SquaresInOrderOfProcesses, Gate::Test(|| shards::over(1))),
    (Fault::EarlierShardsNotSent, Gate::Test(|| shards::over(1))),
    (Fault::NormSummedByProcess, Gate::Test(|| shards::over(1))),
    (Fault::AddedBeforeReceived, Gate::GpuTest(|_| gpu_peers::over(2))),
    (Fault::KernelsBehindTransfer, Gate::GpuTest(|_| gpu_peers::beside(Duration::from_millis(500)))),
    (Fault::WeightsOfNextProcess, Gate::GpuTest(|_| gpu_peers::over(2))),
    (Fault::MomentsOfOneProcessSaved, Gate::Test(processes::over)),
    (Fault::GroupsNumberedByProcess, Gate::Test(grpo::processes::over)),
    (Fault::RewardsShiftedOnOtherProcesses, Gate::Test(grpo::processes::over)),
    (Fault::ValuesOfOtherProcessesLost, Gate::Test(grpo::processes::reused)),
    (Fault::KeptSetsOfProcessesSwapped, Gate::Test(grpo::processes::reused)),
    (Fault::SkippedExamplesNotCounted, Gate::Test(grpo::zero_weights::sharded)),
    (Fault::LogitsOfProcessesNotCompared, Gate::Test(commands_verify::processes)),
    (Fault::StaleIndexList, Gate::Gpu(focused::lists)),
    (Fault::TrainingNotSubmitted, Gate::Gpu(gpu::submissions)),
    (Fault::StaleTensorMap, Gate::Gpu(focused::tensor_maps)),
    (Fault::StaleGraphArguments, Gate::Gpu(focused::graphs)),
    (Fault::StaleStepIndices, Gate::GpuTest(multi_step::over)),
    (Fault::GpuNormWithoutEps, Gate::GpuTest(gpu::many_rows)),
    (Fault::TokensAfterStopKept, Gate::GpuTest(multi_step::over)),
    (Fault::GpuWindowOffByOne, Gate::GpuTest(gpu_windows::over)),
    (Fault::GpuWindowOfAllButOneIgnored, Gate::GpuTest(gpu_windows::over)),
    (Fault::CopyOnWriteSkipped, Gate::Gpu(focused::sharing)),
    (Fault::RecomputeFromWrongInput, Gate::Splits),
    (Fault::PrefetchedPieceReordered, Gate::Test(open_for_inference::long_tables)),
    (Fault::EmbeddingDenormalFlushed, Gate::Test(open_for_inference::denormals)),
    (Fault::TiedEmbeddingSingleAccumulator, Gate::Splits),
    (Fault::CrossDocumentAttention, Gate::Packing),
    (Fault::DocumentBoundariesLost, Gate::Test(|| packing::over(4).map_err(|e| e.0))),
    (Fault::VocabChunkSubtotal, Gate::Focused(focused::vocabulary)),
    (Fault::ResumeLosesOptimizerState, Gate::Resume),
    (Fault::ResumeLosesStep, Gate::Resume),
    (Fault::ResumeLosesRngState, Gate::Resume),
    (Fault::ResumeForgetsBestLoss, Gate::Resume),
    (Fault::ResumeIgnoresRecord, Gate::Test(commands_resume::over)),
    (Fault::ResumeRestartsData, Gate::Test(resume_data::over)),
    (Fault::AdamwPowersStop, Gate::Test(adamw::over)),
    (Fault::WeightedStepTakesMean, Gate::Test(weighted_steps::over)),
    (Fault::MeanOfMicroBatchMeans, Gate::Test(micro_batches::over)),
    #[cfg(target_os = "linux")]
    (
        Fault::WrittenLinesRemoved,
        Gate::Command(commands_overwrite::a_rollout_on_a_full_disk_keeps_its_lines, "c.jsonl.partial"),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::FileSizeLimitEndsProcess,
        Gate::Command(
            commands_overwrite::an_output_that_cannot_be_written_is_named_by_its_path,
            "right: Some(74)",
        ),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::HangupEndsProcess,
        Gate::Command(
            commands_rollout::signals::the_end_of_the_terminal_keeps_the_finished_completions,
            "right: Some(129)",
        ),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::NohupNotNoticed,
        Gate::Command(
            commands_rollout::signals::a_rollout_that_nohup_started_outlives_its_terminal,
            "right: Some(143)",
        ),
    ),
    (
        Fault::StopTextsInOrderOfFile,
        Gate::Command(commands_rollout::fields_of_a_prompt_have_the_effect_of_flags, "a resume differs"),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::WriterGoesOnAfterSignal,
        Gate::Command(commands_overwrite::a_signal_to_an_export_leaves_no_part_of_it, "instant "),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::UnfinishedOutputKept,
        Gate::Command(
            commands_overwrite::a_signal_removes_the_unfinished_token_file,
            "a temporary file is left",
        ),
    ),
    (
        Fault::ParametersOfLineIgnored,
        Gate::Command(commands_rollout::fields_of_a_prompt_have_the_effect_of_flags, "\"max_new\": 3"),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::KilledRolloutLost,
        Gate::Command(
            commands_rollout_resume::the_completions_of_a_killed_rollout_are_kept,
            "there is nothing to continue",
        ),
    ),
    (
        Fault::RefusedCheckpointCounted,
        Gate::Command(
            commands_resume::a_damaged_checkpoint_is_not_one_of_those_that_are_kept,
            "left: [\"step_000002\", \"step_000003\"]",
        ),
    ),
    (
        Fault::KeptTopTokensNotChecked,
        Gate::Command(
            commands_top_logprobs::kept_completions_have_the_requested_number_of_tokens,
            "left: Some(0)",
        ),
    ),
    (
        Fault::ReplayIgnoresTopTokens,
        Gate::Command(
            commands_top_logprobs::the_most_probable_tokens_are_those_of_the_logits,
            "d.jsonl: replay",
        ),
    ),
    (
        Fault::StopTextsOfAllSequences,
        Gate::Command(
            commands_rollout::fields_of_a_prompt_have_the_effect_of_flags,
            "right: (String(\"stop\")",
        ),
    ),
    (
        Fault::CompleteRunStoresChanges,
        Gate::Command(commands_grpo::run::a_complete_run_is_not_changed_by_a_resume, "is complete: "),
    ),
    (
        Fault::DtypeOfRolloutIgnored,
        Gate::Command(commands_cache_kinds::a_replay_in_another_dtype_names_the_dtype, "1 differ"),
    ),
    (
        Fault::LogGapUnreported,
        Gate::Command(commands_resume::a_log_that_ends_before_its_checkpoint_is_reported, "resuming r"),
    ),
    (Fault::YarnAttentionIgnored, Gate::Test(rope_scaling::attention)),
    (
        Fault::LockedImportRemoved,
        Gate::Command(commands_overwrite::the_directory_of_an_import_that_runs_is_not_removed, "is_file"),
    ),
    (
        Fault::ConfigBeforeLock,
        Gate::Command(
            commands_lock::a_resume_without_the_lock_writes_nothing,
            "the configuration was replaced",
        ),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::TrainedRunStartedAgain,
        Gate::Command(
            commands_lock::a_run_that_another_process_has_trained_meanwhile_does_not_start_again,
            "the resume was not refused",
        ),
    ),
    (
        Fault::InputsCheckedLate,
        Gate::Command(
            commands_grpo::errors::inputs_are_checked_before_a_base_model_is_trained,
            "the directory of the run was created",
        ),
    ),
    (Fault::FirstEvaluationUntimed, Gate::Command(commands_grpo::run::a_complete_run, "times of step 1")),
    #[cfg(target_os = "linux")]
    (
        Fault::RewardProcessesOutlive,
        Gate::Command(
            commands_grpo::interruptions::the_second_signal_ends_the_reward_programs,
            "the reward program still runs",
        ),
    ),
    (
        Fault::HeldOutFileMayChange,
        Gate::Command(commands_grpo::interruptions::a_resume_reads_the_same_prompts, "a removed file"),
    ),
    (
        Fault::RoundedNumbersUnnoted,
        Gate::Command(
            import_export::a_number_that_is_no_f32_is_noted_and_part_of_a_position_is_refused,
            "no note",
        ),
    ),
    (
        Fault::SessionBeforeLock,
        Gate::Command(
            commands_grpo::interruptions::a_resume_without_the_lock_leaves_the_session_of_the_other_process,
            "the session",
        ),
    ),
    (
        Fault::KeptCompletionsNotCompared,
        Gate::Command(commands_rollout_resume::a_rollout_of_other_weights_is_not_resumed, "left: Some(0)"),
    ),
    (
        Fault::KeptIdNotChecked,
        Gate::Command(commands_rollout_resume::completions_of_other_ids_are_not_kept, "left: Some(0)"),
    ),
    (
        Fault::ResumedIndexNotMapped,
        Gate::Command(
            commands_rollout_resume::a_resumed_rollout_writes_the_file_of_an_uninterrupted_one,
            "field \"prompt_id\": expected 0, found 1",
        ),
    ),
    (
        Fault::PartOfGroupKept,
        Gate::Command(
            commands_rollout_resume::a_resumed_rollout_writes_the_file_of_an_uninterrupted_one,
            "kept 8 of 12",
        ),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::OlderPartialReplaced,
        Gate::Command(commands_rollout_resume::a_full_disk_leaves_the_kept_completions, "was replaced"),
    ),
    (
        Fault::CompletionsOfFailedStepLost,
        Gate::Command(
            commands_constraint::completions_of_a_failing_step_are_kept,
            "the completions that ended",
        ),
    ),
    (Fault::RopeDivisorsRenamed, Gate::Test(rope_divisors::over)),
    (Fault::KQuantMinimumIgnored, Gate::Test(gguf::k_quants)),
    (Fault::BosNotAdded, Gate::Test(sentencepiece::begins)),
    (Fault::DocumentBosNotAdded, Gate::Test(sentencepiece::over)),
    (Fault::QuantFifthBitIgnored, Gate::Test(gguf::small_quants)),
    (Fault::TokenFileNotVerified, Gate::Test(damaged_files::token_file)),
    (Fault::SmallFilesNotVerified, Gate::Test(damaged_files::small_files)),
    (Fault::ContinuationGetsPrefix, Gate::Test(sentencepiece::over)),
    (Fault::YarnAlwaysTruncates, Gate::Test(rope_scaling::over)),
    (Fault::TrailingPieceWithoutTargetKept, Gate::Test(conversations::pieces)),
    (Fault::OnlyFirstEndTokenTrained, Gate::Test(conversations::ends)),
    // The sum of the next product drops the sign of a zero: logits cannot show this fault.
    (Fault::FinalZeroNotAdded, Gate::Focused(focused::zero)),
    (Fault::CheckpointDirectoryNotSynced, Gate::Focused(focused::power_cuts)),
    (Fault::CheckpointRenameBeforeSync, Gate::Focused(focused::power_cuts)),
    (Fault::TrainerDirectoryNotSynced, Gate::Focused(focused::power_cuts)),
    #[cfg(target_os = "linux")]
    (Fault::FilesNotSynced, Gate::Test(syncs::saves)),
    #[cfg(target_os = "linux")]
    (Fault::RunNamesNotSynced, Gate::Test(syncs::run)),
    #[cfg(target_os = "linux")]
    (Fault::OutputNameNotSynced, Gate::Test(syncs::output)),
    (Fault::WeightsChangeBeforeUpdate, Gate::Test(grpo::faults::steps)),
    (Fault::CompletionRetokenized, Gate::Test(grpo::faults::steps)),
    (Fault::UpdateForgetsTopP, Gate::Test(grpo::faults::steps)),
    (Fault::RewardOfTheNeighbor, Gate::Test(grpo::faults::steps)),
    (Fault::EndOfCompletionNotCompared, Gate::Test(equal_completions::over)),
    (Fault::RewardsShuffled, Gate::Test(grpo::learning::over)),
    (Fault::ReferenceMixSwapped, Gate::Test(grpo::reference_updates::over)),
    (Fault::ResumeForgetsReferenceUpdate, Gate::Test(grpo::reference_updates::over)),
    (Fault::PrefixGradientOverwritten, Gate::Test(branches)),
    (Fault::BranchAtFirstPosition, Gate::Test(branches)),
    (Fault::SimilarTokensShareRows, Gate::Test(branches)),
    (Fault::SharedLossWeightDropped, Gate::Test(branches)),
    (Fault::SharedLossBonusDropped, Gate::Test(branches)),
    (Fault::SharedLossRowOfOtherKeptSet, Gate::Test(branches)),
    (Fault::SharedLossRowOfOtherTarget, Gate::Test(branches)),
    (Fault::RandomNumbersCountFromPrompt, Gate::Test(turns::steps)),
    (Fault::AppendedTokensTrained, Gate::Test(turns::steps)),
    (Fault::GroupPromptNotShared, Gate::Test(grpo_counts::groups)),
    (Fault::EqualSequencesComputedApart, Gate::Test(grpo_counts::groups)),
    (Fault::ZeroWeightsTrained, Gate::Test(grpo_counts::rows)),
    (Fault::WeightsFromStaleValues, Gate::Test(grpo::reused_batch::over)),
    (Fault::ValuesChangeAfterWeights, Gate::Test(grpo::faults::iterations)),
    (Fault::PortableSumReversed, Gate::Test(grpo::devices::in_f32)),
    (Fault::WidestSimdNotDetected, Gate::Focused(|| checked_simds().map(|found| found.len()))),
    (Fault::QuantBlockSplit, Gate::Test(gguf_pieces::over)),
    (Fault::SingleRowRopeOffByOne, Gate::Test(families::caches)),
    (Fault::WeightPackedAgain, Gate::Test(packs::over)),
    (Fault::DuplicatePrefixHeld, Gate::Focused(prefix_cache::duplicates)),
    (Fault::HeldPrefixEvicted, Gate::Invariance),
    (Fault::PreemptedMemberForksAgain, Gate::Invariance),
    (Fault::GateGradientIsUps, Gate::Test(tape_gradient::over)),
    (Fault::RewardStdOfPopulation, Gate::Test(policy::over)),
    (Fault::ClippedTokenGradientKept, Gate::Test(policy::over)),
    (Fault::MaskedTokensCounted, Gate::Test(policy::over)),
    (Fault::LossTopPStopsEarly, Gate::Focused(focused::kept_sets)),
    (Fault::LossMinPIsStrict, Gate::Focused(focused::kept_sets)),
    (Fault::GivenKeptSetIgnored, Gate::Test(|| kept_sets::over(&Device::cpu(), 9))),
    (Fault::StopTextWithinToken, Gate::Test(stop_text::over)),
    (Fault::HeldTextLost, Gate::Test(stop_text::over)),
    (Fault::SurplusAfterStopTextKept, Gate::Test(stop_text::over)),
    (
        Fault::BiasesNotInEstimate,
        Gate::Command(
            commands_grpo::stored::the_initial_model_has_its_biases_in_a_dry_run_and_is_not_needed_to_resume,
            "# parameters: ",
        ),
    ),
    (
        Fault::ReferenceNotRequired,
        Gate::Command(
            grpo::input::wrong_sections_prompts_and_references_are_refused_before_the_first_step,
            "has run",
        ),
    ),
    (Fault::VerifyIgnoresStopTexts, Gate::Test(grpo::stop_texts::verified)),
    (Fault::StopTextInReward, Gate::Test(grpo::stop_texts::over)),
    (Fault::SurplusContinued, Gate::Test(grpo::stop_texts::over)),
    (Fault::LossForgetsMinP, Gate::Test(|| kept_sets::over(&Device::cpu(), 9))),
    (Fault::LossChunkForgetsFirstColumn, Gate::Focused(focused::vocabulary)),
    (Fault::ValueGradientFlushOfQueries, Gate::Focused(focused::tiny_gradients)),
    (Fault::YarnRampEndsAtLastPair, Gate::Test(rope_scaling::over)),
    (Fault::WsdDecayStartsInWarmup, Gate::Test(schedules::over)),
    (Fault::LlamaBiasRowsNotInterleaved, Gate::Test(gguf::biases)),
    (Fault::HeldOutPromptsShareNumbers, Gate::Test(grpo::held_out::over)),
    (Fault::HeldOutDetailsOfGreedy, Gate::Test(grpo::held_out::over)),
    (Fault::AppendedTokensInEntropy, Gate::Test(turns::entropy)),
    (Fault::ReplayKeepsTurns, Gate::Test(commands_grpo::replay::over)),
    (
        Fault::ForceReplacesAnyDirectory,
        Gate::Command(
            commands_overwrite::an_export_replaces_a_model_and_an_import_an_imported_run_with_force_only,
            "\"hf\", \"--force\"",
        ),
    ),
    (
        Fault::OverwriteWithoutForce,
        Gate::Command(commands_overwrite::no_command_replaces_a_file_without_force, "\"prepare\""),
    ),
    (
        Fault::BestWeightsOfLastEvaluation,
        Gate::Command(
            commands_early::the_best_weights_are_those_of_the_step_with_the_lowest_validation_loss,
            "step_000012",
        ),
    ),
    (
        Fault::ScoresBeginWithPass,
        Gate::Command(
            commands_score::scores_of_completions_have_the_bits_of_the_rollout,
            "logprobs of score",
        ),
    ),
    (
        Fault::ScoredMaskIgnored,
        Gate::Command(commands_score::tokens_that_a_program_appended_are_not_scored, "target_ids"),
    ),
    (
        Fault::OlderInitialModelUnreported,
        Gate::Command(
            commands_grpo::stored::an_older_checkpoint_of_the_initial_model_is_reported,
            "an older checkpoint: ",
        ),
    ),
    (
        Fault::LastTokenOfChoiceLeftOut,
        Gate::Command(commands_choices::log_probabilities_of_choices_are_those_of_scores, "logprobs of"),
    ),
    (
        Fault::PassedStepsAccepted,
        Gate::Command(commands_train::a_resume_ends_a_run_at_the_step_that_it_has_reached, "left: Some(0)"),
    ),
    (
        Fault::TruncatedScoresUnmarked,
        Gate::Command(
            commands_score::lines_that_are_longer_than_the_context_are_split_or_truncated,
            "longer than the context: ",
        ),
    ),
    (
        Fault::ScoresOfOtherDtypeUnnoted,
        Gate::Command(commands_score::completions_of_another_dtype_or_cache_are_noted, "no warning: "),
    ),
    (
        Fault::EndOfRunNotStored,
        Gate::Command(
            commands_train::a_resume_ends_a_run_at_the_step_that_it_has_reached,
            "the number of steps is stored",
        ),
    ),
    (
        Fault::PartOfStepLeftOut,
        Gate::Command(commands_train::epochs_are_the_steps_that_use_as_many_windows, "step_000006"),
    ),
    (
        Fault::ResumeIgnoresData,
        Gate::Command(
            commands_train::a_resume_accepts_only_the_data_that_the_run_started_with,
            "\"--resume\"",
        ),
    ),
    (
        Fault::ReportOmitsLastValue,
        Gate::Command(commands_report::a_report_has_every_value_and_no_text_becomes_markup, "299"),
    ),
    (
        Fault::BosDoubled,
        Gate::Command(sentencepiece::prompts_of_every_command_begin_with_the_bos_token_once, "left: "),
    ),
    (
        Fault::ChangedRewardUnreported,
        Gate::Command(
            commands_grpo::interruptions::a_resume_may_change_what_changes_no_result,
            "no \"warning: ",
        ),
    ),
    (
        Fault::StrictIgnored,
        Gate::Command(
            commands_overwrite::an_evaluation_names_its_checkpoint_and_is_strict_on_request,
            "Some(65)",
        ),
    ),
    (
        Fault::ProductsNotSplit,
        Gate::Command(
            launch_log::products_of_a_decode_step_fill_the_gpu,
            "fewer blocks than multiprocessors",
        ),
    ),
    (
        Fault::WeightGradientsNotShared,
        Gate::Command(launch_log::weight_gradients_of_a_step_fill_the_gpu, "tiles in waves with room for"),
    ),
    (
        Fault::InputGradientNotFused,
        Gate::Command(launch_log::weight_gradients_of_a_step_fill_the_gpu, "kernels of a layer"),
    ),
    (Fault::SharedInputCountedTwice, Gate::Test(launch_log::bytes_of_weight_gradients)),
    (Fault::LaunchNotRecorded, Gate::GpuTest(launch_log::same_launches)),
    (Fault::AccumulationStartsAnew, Gate::Gpu(accumulators::over)),
    (Fault::SharedZerosOverwritten, Gate::Gpu(accumulators::over)),
    (Fault::UpProjectionNotCounted, Gate::Test(launch_log::operations_of_the_model)),
    (Fault::PoolCountedAsRead, Gate::Test(launch_log::bytes_of_a_step)),
    (Fault::MergeTripsNotCounted, Gate::Test(launch_log::chains_of_a_step)),
    (
        Fault::PersistentTilesNotCounted,
        Gate::Command(launch_log::weight_gradients_of_a_step_fill_the_gpu, "tiles of products by wgmma"),
    ),
    #[cfg(target_os = "linux")]
    (Fault::LockOfCopiesKept, Gate::Test(run_lock::over)),
    (Fault::FiniteTailNotChecked, Gate::Test(finite_tails::over)),
    (Fault::OriginalPositionsOfModelIgnored, Gate::Test(config_fields::original_positions)),
    (Fault::HeadSizeOfOtherFamilies, Gate::Test(config_fields::head_sizes)),
    (Fault::SlidingWindowFlagUnchecked, Gate::Test(config_fields::switches)),
    (
        Fault::LargestTokenIdExceeded,
        Gate::Command(
            corrupt_tokenizers::every_damaged_tokenizer_is_refused_with_the_file_and_the_field,
            "t_id_at_the_limit",
        ),
    ),
    (Fault::QuantHalvesToEven, Gate::Test(quant_halves::over)),
    (Fault::NonFiniteIndexInPiece, Gate::Test(non_finite_index::over)),
    (Fault::EvaluationLimitExclusive, Gate::Test(exact_limits::evaluation)),
    (Fault::ShardLimitExclusive, Gate::Test(exact_limits::shards)),
    (Fault::ContextBeforeLength, Gate::Test(exact_limits::lengths)),
    (Fault::TokensOfSkippedStepLost, Gate::Test(grpo::token_counts::counted)),
    (
        Fault::RewardsRunWhereResumed,
        Gate::Command(commands_grpo::stored::reward_programs_run_where_the_run_was_started, "r/rollouts"),
    ),
    (
        Fault::OtherRunShownByQuickstart,
        Gate::Command(
            quickstart::a_run_of_another_command_is_refused,
            "is finished; showing its results again",
        ),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::PreallocationMergesGroups,
        Gate::Command(
            memory_grpo::the_estimate_is_near_the_peak_if_parts_do_not_divide_groups,
            "parts: estimate",
        ),
    ),
    (
        Fault::LargeCountsIgnored,
        Gate::Command(cli::a_count_above_the_largest_integer_of_a_configuration_is_refused, "Some(2)"),
    ),
    (Fault::SkippedStepEndsOnPolicy, Gate::Test(grpo::parts::after_a_skipped_step)),
    (
        Fault::ReferenceOfEarlierStartKept,
        Gate::Command(
            commands_grpo::stored::a_run_that_starts_again_has_the_reference_model_of_its_weights,
            "the divergence from the reference model",
        ),
    ),
    (
        Fault::VerdictLostWithReader,
        Gate::Command(
            commands_grpo::replay::a_difference_is_the_exit_code_without_a_reader_of_the_output,
            "without a reader",
        ),
    ),
    (Fault::PartsShareAdvantages, Gate::Test(grpo::parts::over)),
    (Fault::PartsShareKeptSets, Gate::Test(grpo::parts::over)),
    (Fault::DivisorOfWholeBatch, Gate::Test(grpo::parts::over)),
    (Fault::ReplacementsShareRewards, Gate::Test(grpo::replaced_groups::over)),
    (Fault::DiscardedGroupsFromZero, Gate::Test(grpo::replaced_groups::over)),
    (
        Fault::SamplesOfStepsShareIds,
        Gate::Command(commands_sft::the_samples_of_two_steps_differ, "samples of steps 1 and 2"),
    ),
    (
        Fault::WholeFirstTurn,
        Gate::Command(commands_sft::a_long_first_turn_is_cut_to_the_context, "sampling failed"),
    ),
    (Fault::MaskedCompletionsInDivisor, Gate::Test(grpo::token_counts::divided)),
    (Fault::QuantNibblesSwapped, Gate::Test(open_for_inference::quantized)),
    (Fault::QuantScaleOfFirstHalf, Gate::Test(open_for_inference::quantized)),
    (Fault::DraftAcceptedOneTooMany, Gate::Test(speculation::some)),
    (Fault::TopTokensOfForksLost, Gate::Test(speculation::some)),
    (Fault::DraftRowsNotRewound, Gate::Test(speculation::some)),
    (Fault::DraftTakenForSampled, Gate::Test(speculation::some)),
    (Fault::DraftPositionOffByOne, Gate::Test(speculation::some)),
    (Fault::DraftKeptAfterEnd, Gate::Test(speculation::some)),
    (Fault::DraftHistoryIgnored, Gate::Test(speculation::some)),
    (Fault::DraftNeverPaused, Gate::Test(speculation::pauses)),
    (Fault::DraftModelRowsStale, Gate::Test(speculation::same_weights)),
    (Fault::DraftVocabNotChecked, Gate::Test(speculation::vocabularies)),
    (Fault::PriorityIgnored, Gate::Test(priorities::bound)),
    (Fault::PriorityNeverAges, Gate::Test(priorities::bound)),
    (Fault::WatermarkIgnored, Gate::Test(priorities::watermark)),
    (Fault::GrowthOfOneSequence, Gate::Test(priorities::watermark)),
    (
        Fault::RecordedBestRemoved,
        Gate::Command(
            commands_early::a_killed_run_keeps_the_best_weights_of_its_last_checkpoint,
            "best weights of the last checkpoint",
        ),
    ),
    (
        Fault::ReplacedDirectoryLost,
        Gate::Command(
            commands_overwrite::a_killed_replacement_is_undone_by_the_next_command,
            "already exists",
        ),
    ),
    (
        Fault::WatchOmitsLastLine,
        Gate::Command(commands_watch::watch_of_a_run_that_has_ended_is_one_line, "left: \"a: step 0"),
    ),
    (Fault::PlotForgetsSmoothing, Gate::Command(cli::plot_compares_runs_within_the_width, "(mean of 7)")),
    (Fault::WatermarkCountsTokens, Gate::Test(priorities::watermark_in_pages)),
    (Fault::DraftModelCatchesUpAtOnce, Gate::Test(speculation::draft_model::long_prompt)),
    (Fault::HeldPageWrittenInPlace, Gate::Test(held_rows::some)),
    (Fault::SnapshotNeverReleased, Gate::Test(held_rows::some)),
    (Fault::SnapshotPageFreedTwice, Gate::Test(held_rows::some)),
    (Fault::SnapshotTokensNotCompared, Gate::Test(held_rows::some)),
    (Fault::RowsRestoredToOtherPage, Gate::Test(held_rows::some)),
    (Fault::OffloadedBlockReused, Gate::Test(held_rows::some)),
    (Fault::OffloadedLayerShifted, Gate::Invariance),
    (Fault::OffloadedRowsNotWritten, Gate::Test(held_rows::some)),
    (Fault::PrefixWeightsNotCompared, Gate::Test(damaged_files::prefix_of_other_weights)),
    (Fault::TensorChecksumNotCompared, Gate::Test(damaged_files::prefix)),
    (Fault::MinusZeroRanksBelow, Gate::Focused(focused::zeros)),
    (Fault::ExistingParentNotSynced, Gate::Focused(focused::new_directories)),
    (Fault::PromptCachedAtItsEnd, Gate::Test(prefix_cache::running)),
    (Fault::EmptyListEndsItsParent, Gate::Test(conversations::indented)),
    (Fault::NegativeBonusWithoutEntropy, Gate::Gpu(focused::bonuses)),
    (Fault::VerifyAcceptsMissingRows, Gate::Test(commands_verify::holds)),
    (Fault::AppendLeavesNoRoomToSample, Gate::Test(turns::room)),
    (Fault::DivisorLimitExclusive, Gate::Test(exact_limits::divisors)),
    (
        Fault::BosOfConfigFirst,
        Gate::Command(commands_situations::an_empty_prompt_begins_with_the_bos_token_of_the_tokenizer, "[5]"),
    ),
    (Fault::GgufPadBeginsTexts, Gate::Test(gguf::ids_of_tokens)),
    (Fault::WindowOfFirstLayer, Gate::Test(families_small::windows_by_layer)),
    (Fault::MinPNotOnDevice, Gate::GpuTest(|device| decode_ahead::over(device, &["llama_yarn"], Dtype::F32))),
    (Fault::SinksDecodedAhead, Gate::GpuTest(sinks::ends)),
    (Fault::DraftsPenalizedAlone, Gate::GpuTest(speculation::new_tokens_on_gpu)),
    (
        Fault::TorchDtypeOfSource,
        Gate::Command(import_export::import_and_export_keep_the_bytes_of_every_tensor, "torch_dtype"),
    ),
    (
        Fault::ValidationFilesIgnored,
        Gate::Command(
            commands_validation::the_validation_loss_is_that_of_the_file_and_all_data_is_trained,
            "val_loss is not the loss of v.txt",
        ),
    ),
    (Fault::QuantDividesByScale, Gate::Test(quant_halves::inverses)),
    (Fault::SaveNeedsMultiple, Gate::Test(grpo::files::passed)),
    (
        Fault::FullContextNotTruncated,
        Gate::Command(
            commands_rollout::a_completion_that_fills_the_context_finishes_by_context,
            "(String(\"context\"), Bool(false))",
        ),
    ),
    (
        Fault::FirstStepInF32,
        Gate::Command(
            commands_grpo::run::a_run_computes_in_its_dtype_from_the_first_step_on,
            "bf16 has the values of f32",
        ),
    ),
    (
        Fault::EvaluatedTextTruncated,
        Gate::Command(
            commands_sft::only_answers_count_as_target_tokens_and_a_token_file_is_the_same_data,
            "text is split into windows, not truncated",
        ),
    ),
    (
        Fault::RolloutsOfLaterStepsKept,
        Gate::Command(
            commands_grpo::interruptions::ctrl_c_saves_and_the_hint_resumes_to_the_same_bytes,
            "the completions of a later step were kept",
        ),
    ),
    (
        Fault::EndTokensOfConfigIgnored,
        Gate::Command(
            commands_end_tokens::a_model_gives_the_same_training_data_wherever_its_end_tokens_are_listed,
            "config",
        ),
    ),
    (
        Fault::LowestLossOfOtherEvaluations,
        Gate::Command(commands_early::a_lowest_loss_of_other_evaluations_is_forgotten, "at step "),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::StepMemoryKept,
        Gate::Command(memory_grpo::resident_memory_does_not_grow_from_step_to_step, "step 10: "),
    ),
    #[cfg(target_os = "linux")]
    (
        Fault::EvaluationOfManyRows,
        Gate::Command(
            memory_train::an_evaluation_needs_no_more_memory_than_a_step,
            "evaluated: process 0 of 1",
        ),
    ),
    (
        Fault::ReplayIgnoresLogprobs,
        Gate::Command(
            commands_grpo::replay::a_greedy_completion_is_compared_by_its_raw_log_probabilities,
            "a changed log-probability was not found",
        ),
    ),
    (
        Fault::TiedHeadNotCompared,
        Gate::Command(import_export::a_tied_model_may_hold_a_copy_of_its_table_as_head, "left: Some(0)"),
    ),
];
