//! Planted faults that a record shows.
use xtrain::tensor::faults::{self, Fault};
use xtrain::tensor::testing::failure;

use crate::{RECORDS, check};

const FAULTS: [(Fault, &str); 25] = [
    (Fault::RewardStdOfPopulation, "advantages.txt"),
    (Fault::SinksForkLostRows, "caches.txt"),
    (Fault::DuplicatePrefixHeld, "caches.txt"),
    (Fault::PromptLearntWithTurn, "chat.txt"),
    (Fault::OneCheckpointTooManyKept, "checkpoints.txt"),
    (Fault::SlidingWindowFlagUnchecked, "configs.txt"),
    (Fault::TrailingPieceWithoutTargetKept, "data.txt"),
    (Fault::DocumentBoundariesLost, "data.txt"),
    (Fault::EndOfCompletionNotCompared, "grpo.txt"),
    (Fault::GgufAlignmentIgnored, "headers.txt"),
    (Fault::UpProjectionNotCounted, "launches.txt"),
    (Fault::SharedInputCountedTwice, "launches.txt"),
    (Fault::ClippedTokenGradientKept, "policies.txt"),
    (Fault::MaskedTokensCounted, "policies.txt"),
    (Fault::IdsOfDiscardedUsedAgain, "rewards.txt"),
    (Fault::GreedyTieTakesLast, "sampler.txt"),
    (Fault::WatermarkIgnored, "scheduler.txt"),
    (Fault::PriorityNeverAges, "scheduler.txt"),
    (Fault::WsdDecayStartsInWarmup, "schedules.txt"),
    (Fault::ShardBoundsRoundedUp, "schedules.txt"),
    (Fault::StopTextWithinToken, "stops.txt"),
    (Fault::FirstLineOfAnswerCompared, "tasks.txt"),
    (Fault::ContinuationGetsPrefix, "tokens.txt"),
    (Fault::TokensOfSkippedStepLost, "training.txt"),
    (Fault::BosNotAdded, "vocabularies.txt"),
];

#[test]
fn planted_faults_change_records() {
    if std::env::var_os("XTRAIN_BLESS").is_some() {
        return;
    }
    for (fault, name) in FAULTS {
        let (_, record) = *RECORDS.iter().find(|(file, _)| *file == name).unwrap();
        let failed = failure(move || faults::with(fault, || check(name, record)));
        let message = failed.unwrap_or_else(|| panic!("{name} does not show the fault {fault}"));
        assert!(message.contains("lines differ") || message.contains("expected"), "{fault}: {message}");
    }
}
