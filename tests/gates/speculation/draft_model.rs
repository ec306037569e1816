//! The rows of a draft model: of a long prompt, and of a sequence that begins as another one.
use super::*;

/// A draft model computes a long prompt over several steps, and the sequence drafts once it has caught up. Returns the
/// number of drafted tokens.
pub(crate) fn long_prompt() -> Result<usize, String> {
    let cfg = Config { max_positions: 800, n_layers: 1, ..config() };
    let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 46).unwrap();
    let mut engine = Engine::new(&model, EngineOptions { max_batch: 1, ..EngineOptions::default() })
        .map_err(|e| e.to_string())?;
    engine.draft_with(&model).map_err(|e| e.to_string())?;
    let prompt: Vec<u32> = (0..700).map(|n| n % 6).collect();
    engine.submit(Request::greedy(&prompt, 40)).map_err(|e| e.to_string())?;
    let mut drafted = Vec::new();
    for _ in 0..4 {
        engine.step().map_err(|e| e.to_string())?;
        drafted.push(engine.counters().drafted as usize);
    }
    engine.run().map_err(|e| e.to_string())?;
    let Counters { drafted: all, accepted, .. } = engine.counters();
    // the prompt, two steps of 256 rows, and one with the other 190 rows and drafts
    match drafted[..] {
        [0, 0, 0, first] if first > 0 && accepted == all => Ok(all as usize),
        _ => Err(format!(
            "gate speculation, seed 46: drafted tokens after each step: {drafted:?}, {accepted} of {all} accepted"
        )),
    }
}

#[test]
fn a_draft_model_computes_a_long_prompt_over_several_steps() {
    long_prompt().unwrap_or_else(|e| panic!("{e}"));
}

/// A sequence takes the beginning of its rows in the draft model from a longer one. Returns the number of drafted tokens.
pub(crate) fn common_beginning() -> Result<usize, String> {
    let cfg = Config { max_positions: 800, n_layers: 1, ..config() };
    let model = Model::init(&cfg, Dtype::F32, &Device::cpu(), 47).unwrap();
    let mut engine = Engine::new(&model, EngineOptions { max_batch: 2, ..EngineOptions::default() })
        .map_err(|e| e.to_string())?;
    engine.draft_with(&model).map_err(|e| e.to_string())?;
    let prompt =
        |common: u32, own: u32| (0..common).map(|n| n % 6).chain((0..own).map(|n| (n + 1) % 5)).collect();
    let prompts: [Vec<u32>; 3] = [prompt(600, 20), vec![5, 1], prompt(590, 3)];
    let requests: Vec<Request> = [60, 8, 12]
        .into_iter()
        .zip(&prompts)
        .zip(0..)
        .map(|((max_new, prompt), id)| Request { id, ..Request::greedy(prompt, max_new) })
        .collect();
    let want: Vec<Completion> = requests.iter().map(|r| generate_naive(&model, r).unwrap()).collect();
    requests.into_iter().for_each(|request| _ = engine.submit(request).unwrap());
    let failed = |what: String| format!("gate speculation, seed 47, a common beginning: {what}");
    unwatched(&mut engine, &want).map_err(failed)?;
    let Counters { drafted, accepted, .. } = engine.counters();
    if accepted < drafted || drafted < 20 {
        return Err(failed(format!("{accepted} of {drafted} drafted tokens were accepted")));
    }
    Ok(drafted as usize)
}

#[test]
fn a_draft_model_takes_the_beginning_of_another_sequence() {
    common_beginning().unwrap_or_else(|e| panic!("{e}"));
}
