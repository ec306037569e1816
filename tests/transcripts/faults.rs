//! Planted faults that a transcript shows.
use xtrain::tensor::faults::Fault;

use crate::Transcript;

/// A fault, the transcript, and a part of the difference.
const FAULTS: [(Fault, &str, &str); 5] = [
    (Fault::ResumeForgetsBestLoss, "resume.txt", "stopped early"),
    (Fault::RngIgnoresSequenceId, "rollout.txt", "completion_ids"),
    (Fault::MaskOffByOne, "formats.txt", ".safetensors"),
    (Fault::TextOfTruncatedPromptKept, "rollout.txt", "\"prompt\":\"0 1 2"),
    (Fault::RewardLogsShared, "grpo.txt", "b2/logs/reward-3.log"),
];

#[test]
fn planted_faults_change_transcripts() {
    for (fault, name, part) in FAULTS {
        let differences = Transcript::run(name, &format!("--fault {fault}")).differences();
        assert!(
            differences.iter().any(|shown| answers(shown).any(|line| line.contains(part))),
            "{fault}: {differences:?}"
        );
    }
}

/// The lines of a difference that are answers.
fn answers(shown: &str) -> impl Iterator<Item = &str> {
    shown.lines().filter(|line| line.starts_with("    < ") || line.starts_with("    > "))
}
