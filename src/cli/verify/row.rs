//! The verdict of a setting as it is printed, and as processes send it.
use serde::{Deserialize, Serialize};

use crate::cli::exit::CliError;
use crate::decode::Speculation;
use crate::model::comm::Communicator;
use crate::tensor::faults::{self, Fault};
use crate::verify::{CacheRoom, Difference, Prompts, Verdict};

/// The verdict of a setting.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::cli) struct Row {
    /// The process that verified it.
    #[serde(skip)]
    pub(super) process: usize,
    pub(super) kv: String,
    pub(super) prefill_chunk: Option<usize>,
    pub(super) prompts: String,
    pub(super) batch: usize,
    pub(super) room: String,
    pub(super) steps_per_sync: usize,
    pub(super) drafts: bool,
    pub(super) device: String,
    pub(super) rows: u64,
    pub(super) rows_expected: u64,
    pub(super) rows_recomputed: u64,
    pub(super) preemptions: u64,
    pub(super) drafted: u64,
    pub(super) passes_ahead: u64,
    pub(super) values: u64,
    pub(super) differing: u64,
    pub(super) tokens_differing: u64,
    pub(super) first: Option<First>,
}

/// The first difference of a setting.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct First {
    sample_id: u64,
    position: usize,
    what: String,
    expected: String,
    found: String,
}

/// A row, and whether its verdict holds.
pub(in crate::cli) type Held = (Row, bool);

/// The rows of verdicts.
pub(in crate::cli) fn rows(verdicts: &[Verdict]) -> Vec<Held> {
    verdicts.iter().map(|verdict| (Row::from(verdict), verdict.holds())).collect()
}

/// The rows of all processes, in the order of the settings.
///
/// # Errors
/// A process has ended.
pub(super) fn gather(comm: &dyn Communicator, own: &[Verdict]) -> Result<Vec<Held>, CliError> {
    let message = serde_json::to_vec(&rows(own)).expect("numbers and strings are JSON");
    let mut each = Vec::new();
    for (process, message) in comm.all_gather(&message)?.iter().enumerate() {
        let lost = process > 0 && process + 1 == comm.size() && faults::on(Fault::VerifiedPartLost);
        let rows = serde_json::from_slice::<Vec<Held>>(message).expect("all processes run one build");
        let rows = rows.into_iter().map(move |(row, holds)| (Row { process, ..row }, holds));
        each.push(rows.skip(if lost { usize::MAX } else { 0 }));
    }
    // setting i is the next one of process i mod R
    let mut all = Vec::new();
    loop {
        let before = all.len();
        each.iter_mut().for_each(|rows| all.extend(rows.next()));
        if all.len() == before {
            return Ok(all);
        }
    }
}

impl Row {
    /// The cache, its room, the steps between two synchronizations, and drafts.
    pub(super) fn cache(&self) -> String {
        let mut text = self.kv.clone();
        if self.room == room(CacheRoom::OneSequence) {
            text += ", room for one";
        }
        if self.steps_per_sync > 1 {
            text += &format!(", {} steps per sync", self.steps_per_sync);
        }
        if self.drafts {
            text += ", drafts";
        }
        text
    }
}

impl From<&Verdict> for Row {
    fn from(verdict: &Verdict) -> Row {
        let setting = &verdict.setting;
        Row {
            process: 0,
            kv: setting.kv.to_string(),
            prefill_chunk: setting.chunk,
            prompts: sharing(setting.prompts).into(),
            batch: setting.batch,
            room: room(setting.room).into(),
            steps_per_sync: setting.steps_per_sync,
            drafts: setting.speculation != Speculation::Off,
            device: setting.device.to_string(),
            rows: verdict.rows,
            rows_expected: verdict.rows_expected,
            rows_recomputed: verdict.rows_recomputed,
            preemptions: verdict.preemptions,
            drafted: verdict.drafted,
            passes_ahead: verdict.passes_ahead,
            values: verdict.values,
            differing: verdict.differing,
            tokens_differing: verdict.tokens_differing,
            first: verdict.first.as_ref().map(First::from),
        }
    }
}

impl From<&Difference> for First {
    fn from(difference: &Difference) -> First {
        let Difference { id, position, what, want, got } = difference.clone();
        First { sample_id: id, position, what, expected: want, found: got }
    }
}

impl std::fmt::Display for First {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let First { sample_id, position, what, expected, found } = self;
        write!(f, "sequence {sample_id}, position {position}, {what}: expected {expected}, found {found}")
    }
}

fn room(room: CacheRoom) -> &'static str {
    match room {
        CacheRoom::AllSequences => "all sequences",
        CacheRoom::OneSequence => "one sequence",
    }
}

fn sharing(prompts: Prompts) -> &'static str {
    match prompts {
        Prompts::Own => "own",
        Prompts::Shared => "shared",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::KvKind;
    use crate::model::comm::ThreadProcess;
    use crate::tensor::Device;
    use crate::verify::Setting;

    /// A verdict of a setting with this batch.
    fn verdict(batch: usize) -> Verdict {
        Verdict {
            setting: Setting {
                kv: KvKind::Paged { page: 5 },
                chunk: Some(3),
                prompts: Prompts::Own,
                batch,
                room: CacheRoom::OneSequence,
                steps_per_sync: 8,
                speculation: Speculation::Off,
                device: Device::cpu(),
            },
            rows: 7,
            rows_expected: 7,
            rows_recomputed: 0,
            preemptions: 0,
            drafted: 0,
            passes_ahead: 0,
            values: 70,
            differing: u64::from(batch == 3),
            tokens_differing: 0,
            first: None,
        }
    }

    /// The batches of the rows that three processes gather, whether each holds, and its process. Process r has the
    /// settings r, r + 3, ... of five.
    fn gathered() -> Vec<(usize, bool, usize)> {
        let fault = faults::current();
        let mut all = std::thread::scope(|scope| {
            let start = |process: ThreadProcess| {
                let own: Vec<Verdict> = (process.rank()..5).step_by(3).map(verdict).collect();
                scope.spawn(move || fault.enter(|| gather(&process, &own).unwrap()))
            };
            let threads: Vec<_> = ThreadProcess::group(3).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        all.remove(0).into_iter().map(|(row, holds)| (row.batch, holds, row.process)).collect()
    }

    const WANT: [(usize, bool, usize); 5] =
        [(0, true, 0), (1, true, 1), (2, true, 2), (3, false, 0), (4, true, 1)];

    #[test]
    fn the_rows_of_all_processes_have_the_order_of_the_settings() {
        assert_eq!(gathered(), WANT);
        let (row, _) = &rows(&[verdict(1)])[0];
        assert_eq!(row.cache(), format!("{}, room for one, 8 steps per sync", row.kv));
    }

    #[test]
    #[cfg(feature = "faults")]
    fn rows_that_are_lost_are_found() {
        assert_ne!(faults::with(Fault::VerifiedPartLost, gathered), WANT);
    }
}
