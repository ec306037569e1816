//! The gate of stop texts: a sequence ends with the token that completes a stop text, its text ends before it, and what
//! is streamed is its text. The oracle searches the whole text of a completion that was generated without stop texts.
use xtrain::decode::{
    Completion, Engine, EngineOptions, Event, FinishReason, Request, SampleOptions, StopConditions,
    TextStops, generate_naive,
};
use xtrain::model::tokenizer::Tokenizer;
use xtrain::model::{Config, Model};
use xtrain::tensor::testing::{gpus, times};
use xtrain::tensor::{Device, Dtype, ThreadSchedule};

use crate::fixtures::path;
use crate::gpu;
use crate::rng::CaseRng;

const SEED: u64 = 83;

fn bpe() -> Tokenizer {
    Tokenizer::load(&path("tokenizers/qwen_bpe")).unwrap()
}

/// A completion and its text.
type Ended = (Completion, String);

/// The completion with stop texts, from the whole one.
fn oracle(tokenizer: &Tokenizer, whole: &Completion, stops: &[String]) -> Ended {
    let (mut done, text) = (whole.clone(), whole.text(tokenizer));
    let mut ends = (1..=text.len()).filter(|&end| text.is_char_boundary(end));
    let longest = |end| stops.iter().filter(|stop| text[..end].ends_with(*stop)).map(String::len).max();
    let Some((end, len)) = ends.find_map(|end| Some((end, longest(end)?))) else { return (done, text) };
    let mut stream = tokenizer.stream_continuation();
    let mut streamed = 0;
    let reaches = |&token: &u32| {
        streamed += stream.push(token).len();
        streamed >= end
    };
    let texts = whole.text_tokens();
    let tokens = texts.iter().position(reaches).map_or(texts.len(), |at| at + 1);
    done.tokens.truncate(tokens);
    done.logprobs.truncate(tokens);
    done.processed_logprobs.truncate(tokens);
    done.finish_reason = FinishReason::Stop;
    (done, text[..end - len].to_string())
}

fn event(index: usize, at: usize, whole: &Completion) -> Event {
    let last = at + 1 == whole.tokens.len();
    Event {
        index,
        id: whole.id,
        position: whole.prompt_len + at,
        token: whole.tokens[at],
        logprob: whole.logprobs[at],
        processed_logprob: whole.processed_logprobs[at],
        finish: last.then_some(whole.finish_reason),
    }
}

/// A completion of random tokens of a text with characters of one to four bytes, some of them cut.
fn completion(tokenizer: &Tokenizer, rng: &mut CaseRng) -> Completion {
    let mut ids = tokenizer.encode("aab abac stop stopping. é→日本𝄞\n\n").unwrap();
    ids.extend([b'a', b'b', 0xc3].map(u32::from));
    let tokens: Vec<u32> = (0..rng.between(1, 24)).map(|_| rng.choose(&ids)).collect();
    let logprobs: Vec<f32> = (0..tokens.len()).map(|at| -(at as f32)).collect();
    let processed_logprobs = logprobs.clone();
    let finish_reason = rng.choose(&[FinishReason::Eos, FinishReason::Length]);
    Completion {
        index: 0,
        id: 4,
        prompt_len: 3,
        tokens,
        logprobs,
        processed_logprobs,
        top_logprobs: Vec::new(),
        finish_reason,
    }
}

/// One to three texts, most of them parts of `text`.
fn stops(text: &str, rng: &mut CaseRng) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let stop = |_| {
        if chars.is_empty() || rng.one_in(4) {
            return rng.choose(&["stop", "ab", "→", "zz", "\u{fffd}", "aab"]).to_string();
        }
        let start = rng.below(chars.len());
        chars[start..].iter().take(rng.between(1, 4)).collect()
    };
    (0..stop_count(text)).map(stop).collect()
}

fn stop_count(text: &str) -> usize {
    1 + text.len() % 3
}

fn same(what: &str, got: &Ended, want: &Ended) -> Result<(), String> {
    let failed = |e: String| format!("gate stop-text, seed {SEED}, {what}: {e}");
    crate::decode::same(&got.0, &want.0).map_err(failed)?;
    if got.1 == want.1 { Ok(()) } else { Err(failed(format!("got the text {:?}, want {:?}", got.1, want.1))) }
}

/// Random tokens, also after the end of the text; returns the number of completions that a stop text ended.
pub(crate) fn over() -> Result<usize, String> {
    let tokenizers = [Tokenizer::byte(), bpe()];
    let (mut ended, mut others) = (0, 0);
    for case in 0..times(2000, 50_000) {
        let mut rng = CaseRng::new(SEED, case);
        let tokenizer = &tokenizers[case as usize % 2];
        let whole = completion(tokenizer, &mut rng);
        let stops = stops(&whole.text(tokenizer), &mut rng);
        let mut texts = TextStops::new(tokenizer, stops.clone());
        let mut streamed = String::new();
        for at in 0..whole.tokens.len() {
            streamed += &texts.push(&event(0, at, &whole));
        }
        let mut done = whole.clone();
        let text = texts.finish(&mut done);
        let what = format!("case {case}, stop texts {stops:?}");
        if !text.starts_with(&streamed) {
            return Err(format!("gate stop-text, seed {SEED}, {what}: streamed {streamed:?} of {text:?}"));
        }
        let want = oracle(tokenizer, &whole, &stops);
        same(&what, &(done, text), &want)?;
        if want.0.finish_reason == FinishReason::Stop { ended += 1 } else { others += 1 }
    }
    if others < ended / 10 {
        return Err(format!("gate stop-text, seed {SEED}: {others} completions without a stop text"));
    }
    Ok(ended)
}

fn model(device: &Device) -> Model {
    let cfg = Config { vocab: 257, max_positions: 64, ..gpu::config(true) };
    Model::init(&cfg, Dtype::F32, &Device::cpu(), 9).unwrap().to_device(device).unwrap()
}

fn request() -> Request {
    let options = SampleOptions { temperature: 0.6, top_k: Some(3), ..SampleOptions::default() };
    let stop = StopConditions { eos: vec![256], tokens: Vec::new() };
    Request { id: 3, options, stop, ..Request::sampled(&[65, 66, 67], 24, 1.0, 5) }
}

/// Groups of completions of an engine on `device`, most of which end at a stop text; returns their number.
fn engine(device: &Device, steps_per_sync: usize) -> Result<usize, String> {
    let (tokenizer, on_cpu, on_device) = (Tokenizer::byte(), model(&Device::cpu()), model(device));
    let alone =
        |n: u64| generate_naive(&on_cpu, &Request { id: 3 + n, ..request() }).map_err(|e| e.to_string());
    let whole: Vec<Completion> = (0..8).map(alone).collect::<Result<_, _>>()?;
    let mut ended = 0;
    for case in 0..6 {
        let mut rng = CaseRng::new(SEED, case);
        let stops = stops(&whole[case as usize].text(&tokenizer), &mut rng);
        let options = EngineOptions {
            steps_per_sync,
            max_batch: [8, 3][case as usize % 2],
            ..EngineOptions::default()
        };
        let mut engine = Engine::new(&on_device, options).map_err(|e| e.to_string())?;
        engine.submit_group(request(), 8).map_err(|e| e.to_string())?;
        let mut texts = TextStops::new(&tokenizer, stops.clone());
        let mut finished = Vec::new();
        while !engine.is_idle() {
            engine.step().map_err(|e| e.to_string())?;
            engine.stop_at(&mut texts);
            for mut completion in engine.take_finished() {
                let text = texts.finish(&mut completion);
                finished.push((completion, text));
            }
        }
        finished.sort_by_key(|(completion, _)| completion.id);
        let what = format!("{device}, {steps_per_sync} steps per sync, stop texts {stops:?}");
        if finished.len() != whole.len() {
            return Err(format!("gate stop-text, seed {SEED}, {what}: {} completions", finished.len()));
        }
        for (got, whole) in finished.iter().zip(&whole) {
            let want = oracle(&tokenizer, whole, &stops);
            same(&what, got, &want)?;
            ended += usize::from(want.0.finish_reason == FinishReason::Stop);
        }
    }
    if ended < 8 { Err(format!("gate stop-text: {ended} completions end at a stop text")) } else { Ok(ended) }
}

#[test]
fn a_text_ends_before_the_first_stop_text_and_its_tokens_with_it() {
    let ended = over().unwrap_or_else(|e| panic!("{e}"));
    assert!(ended > 500, "{ended} completions end at a stop text");
}

#[test]
fn a_group_with_stop_texts_has_the_bits_of_each_completion_alone() {
    let ended = engine(&Device::cpu(), 1).unwrap_or_else(|e| panic!("{e}"));
    println!("stop texts on the CPU: {ended} completions end at one");
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn a_gpu_that_runs_ahead_drops_the_tokens_after_a_stop_text() {
    for device in gpus(&[ThreadSchedule::Forward]) {
        let ended = engine(&device, 8).unwrap_or_else(|e| panic!("{e}"));
        println!("stop texts on {device}: {ended} completions end at one");
    }
}
