//! What the processes of a run send each other: sampled turns, the replies of the rewards, values of tokens. All of it
//! is copied, so no result depends on the number of processes.
use serde::{Deserialize, Serialize};

use super::Error;
use super::token_values::TokenValues;
use crate::decode::{Completion, FinishReason};
use crate::model::comm::Communicator;
use crate::rewards::{CompletionIndex, RewardReply};
use crate::tensor::faults::{self, Fault};
use crate::tensor::ops::KeptSet;

/// A turn of a completion of another process.
pub(super) struct Turn {
    pub(super) at: CompletionIndex,
    pub(super) turn: Completion,
}

/// What a process sends when its turns have ended.
#[derive(Serialize, Deserialize)]
struct Turns {
    /// The process was told to stop, and its turns have not ended.
    interrupted: bool,
    turns: Vec<SentTurn>,
}

/// A turn as it is sent.
#[derive(Serialize, Deserialize)]
struct SentTurn {
    prompt: usize,
    completion: usize,
    id: u64,
    tokens: Vec<u32>,
    /// The bits of each log-probability.
    logprobs: Vec<u32>,
    reason: FinishReason,
}

impl From<&Turn> for SentTurn {
    fn from(Turn { at, turn }: &Turn) -> SentTurn {
        SentTurn {
            prompt: at.prompt,
            completion: at.completion,
            id: turn.id,
            tokens: turn.tokens.clone(),
            logprobs: turn.processed_logprobs.iter().map(|x| x.to_bits()).collect(),
            reason: turn.finish_reason,
        }
    }
}

impl From<SentTurn> for Turn {
    fn from(sent: SentTurn) -> Turn {
        let turn = Completion {
            index: 0,
            id: sent.id,
            prompt_len: 0,
            tokens: sent.tokens,
            logprobs: Vec::new(),
            processed_logprobs: sent.logprobs.into_iter().map(f32::from_bits).collect(),
            top_logprobs: Vec::new(),
            finish_reason: sent.reason,
        };
        Turn { at: CompletionIndex { prompt: sent.prompt, completion: sent.completion }, turn }
    }
}

/// Sends the turns of this process that have ended to the others. `ended`: whether all have. Returns the turns of the
/// others.
///
/// # Errors
/// That of `ended`; [`Error::Interrupted`] in all processes if one of them was interrupted; a process has ended.
pub(super) fn turns(
    comm: &dyn Communicator,
    ended: Result<(), Error>,
    own: &[Turn],
) -> Result<Vec<Turn>, Error> {
    if comm.size() == 1 {
        return ended.map(|()| Vec::new());
    }
    let interrupted = match ended {
        Ok(()) => false,
        Err(Error::Interrupted) => true,
        Err(error) => return Err(error),
    };
    let message = encode(&Turns { interrupted, turns: own.iter().map(SentTurn::from).collect() });
    let mut others = Vec::new();
    let mut any_interrupted = false;
    for (rank, message) in comm.all_gather(&message)?.iter().enumerate() {
        let Turns { interrupted, turns } = decode(message);
        any_interrupted |= interrupted;
        if rank != comm.rank() {
            others.extend(turns.into_iter().map(Turn::from));
        }
    }
    if any_interrupted { Err(Error::Interrupted) } else { Ok(others) }
}

/// The names of the rewards and the replies of the first process. Those of the others are ignored.
///
/// # Errors
/// A process has ended.
pub(super) fn replies(
    comm: &dyn Communicator,
    own: (Vec<String>, Vec<RewardReply>),
) -> Result<(Vec<String>, Vec<RewardReply>), Error> {
    if comm.size() == 1 {
        return Ok(own);
    }
    let (names, mut replies) = decode::<(Vec<String>, Vec<RewardReply>)>(&comm.broadcast(0, &encode(&own))?);
    if comm.rank() > 0 && faults::on(Fault::RewardsShiftedOnOtherProcesses) {
        replies.rotate_right(1);
    }
    Ok((names, replies))
}

/// The values of the completions of all processes, each with its index, in the order of the processes.
///
/// # Errors
/// A process has ended.
pub(super) fn values(
    comm: &dyn Communicator,
    own: Vec<(usize, TokenValues)>,
) -> Result<Vec<(usize, TokenValues)>, Error> {
    if comm.size() == 1 {
        return Ok(own);
    }
    let mut words: Vec<u64> = Vec::new();
    for (index, TokenValues { logp, entropy }) in &own {
        words.extend([*index as u64, logp.len() as u64]);
        words.extend(logp.iter().chain(entropy).map(|x| x.to_bits()));
    }
    let mut all = Vec::new();
    let message: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    for (rank, message) in comm.all_gather(&message)?.iter().enumerate() {
        let mut words = message.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word));
        let lost = rank != comm.rank() && faults::on(Fault::ValuesOfOtherProcessesLost);
        while let (Some(index), Some(len)) = (words.next(), words.next()) {
            let mut read = || words.by_ref().take(len as usize).map(f64::from_bits).collect::<Vec<_>>();
            let mut found = TokenValues { logp: read(), entropy: read() };
            if lost {
                found.logp.fill(0.0);
            }
            all.push((index as usize, found));
        }
    }
    Ok(all)
}

/// The kept tokens of the completions of all processes, in the order of the processes. `vocab`: the size of the
/// vocabulary.
///
/// # Errors
/// A process has ended.
pub(super) fn kept_sets(
    comm: &dyn Communicator,
    vocab: usize,
    own: Vec<Vec<Option<KeptSet>>>,
) -> Result<Vec<Vec<Option<KeptSet>>>, Error> {
    if comm.size() == 1 {
        return Ok(own);
    }
    let mut words: Vec<u32> = Vec::new();
    for sets in &own {
        words.push(sets.len() as u32);
        for set in sets {
            words.push(u32::from(set.is_some()));
            set.iter().for_each(|set| set.append_to(&mut words));
        }
    }
    let message: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
    let mut messages = comm.all_gather(&message)?;
    if faults::on(Fault::KeptSetsOfProcessesSwapped) {
        messages.swap(0, comm.size() - 1);
    }
    let mut all = Vec::new();
    for message in messages {
        let words: Vec<u32> = message.as_chunks().0.iter().map(|&word| u32::from_ne_bytes(word)).collect();
        let mut rest = &words[..];
        while let Some(&len) = rest.split_off_first() {
            all.push((0..len).map(|_| read_kept_set(vocab, &mut rest)).collect());
        }
    }
    Ok(all)
}

/// The next kept set of a message, if there is one.
fn read_kept_set(vocab: usize, rest: &mut &[u32]) -> Option<KeptSet> {
    let is_some = *rest.split_off_first().expect("all processes run one build") == 1;
    is_some.then(|| KeptSet::read(vocab, rest).expect("all processes run one build"))
}

/// The decision of the first process.
///
/// # Errors
/// A process has ended.
pub(super) fn agreed(comm: &dyn Communicator, decision: bool) -> Result<bool, Error> {
    Ok(comm.broadcast(0, &[u8::from(decision)])? == [1])
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("numbers and strings are JSON")
}

fn decode<T: for<'a> Deserialize<'a>>(message: &[u8]) -> T {
    serde_json::from_slice(message).expect("all processes run one build")
}
