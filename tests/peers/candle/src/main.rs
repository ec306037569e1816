//! The speed of model T in candle, for `bench.py decode --candle`.
//!
//!     RAYON_NUM_THREADS=1 candle-peer ROWS PROMPT NEW ONE
//!
//! candle_transformers' Qwen3 with random f32 weights repeatedly completes ROWS prompts of PROMPT tokens (ONE=1: the
//! same prompt in all rows) by NEW tokens, as one batch with its own KV cache. A sample is one pass after the prompts:
//! the next token of every row, including the argmax. candle shares nothing between rows with the same prompt: each has
//! its own keys.
//!
//! Prints `warm` after the warm-up passes, then measures until SIGTERM and prints the milliseconds of each pass.

use std::{
    env,
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use candle_core::{D, DType, Device::Cpu, Tensor, utils::with_threadpool};
use candle_nn::{Activation, VarBuilder, VarMap};
use candle_transformers::models::qwen3::{Config, ModelForCausalLM};
use signal_hook::{consts::SIGTERM, flag};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const VOCAB: usize = 4096;
const WARM: usize = 5;

fn model_t() -> Result<ModelForCausalLM> {
    let config = Config {
        vocab_size: VOCAB,
        hidden_size: 256,
        intermediate_size: 768,
        num_hidden_layers: 6,
        num_attention_heads: 8,
        head_dim: 32,
        attention_bias: false,
        num_key_value_heads: 4,
        max_position_embeddings: 512,
        sliding_window: None,
        max_window_layers: 0,
        tie_word_embeddings: true,
        rope_theta: 1e6,
        rms_norm_eps: 1e-6,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    };
    let random = VarMap::new();
    ModelForCausalLM::new(&config, VarBuilder::from_varmap(&random, DType::F32, &Cpu))?;
    // as tensors: for a variable, candle keeps the graph of all operations for a gradient that is not needed
    let weights = random.data().lock().map_err(|e| e.to_string())?;
    let weights = weights.iter().map(|(name, weight)| (name.clone(), weight.as_detached_tensor())).collect();
    Ok(ModelForCausalLM::new(&config, VarBuilder::from_tensors(weights, DType::F32, &Cpu))?)
}

fn prompts(rows: usize, length: usize, one: bool) -> candle_core::Result<Tensor> {
    let different = if one { 1 } else { rows };
    Tensor::rand(0f32, VOCAB as f32, (different, length), &Cpu)?
        .to_dtype(DType::U32)?
        .broadcast_as((rows, length))
}

/// The next token of every row.
fn step(model: &mut ModelForCausalLM, tokens: &Tensor, at: usize) -> candle_core::Result<Tensor> {
    model.forward(tokens, at)?.argmax(D::Minus1)
}

/// Milliseconds of each decoding pass, until `stop` is set.
fn passes(rows: usize, prompt: usize, new: usize, one: bool, stop: &AtomicBool) -> Result<Vec<f64>> {
    let mut model = model_t()?;
    let mut samples = Vec::new();
    loop {
        model.clear_kv_cache();
        let mut tokens = step(&mut model, &prompts(rows, prompt, one)?, 0)?;
        for at in prompt..prompt + new - 1 {
            let start = Instant::now();
            tokens = step(&mut model, &tokens, at)?;
            samples.push(1e3 * start.elapsed().as_secs_f64());
            if samples.len() == WARM {
                println!("warm");
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(samples.into_iter().skip(WARM).collect());
            }
        }
    }
}

fn main() -> Result<()> {
    let args = env::args().skip(1).map(|arg| arg.parse()).collect::<std::result::Result<Vec<usize>, _>>()?;
    // the pass over the prompt gives the first token of a completion
    let &[rows, prompt, new @ (2..), one @ 0..=1] = args.as_slice() else {
        return Err("usage: candle-peer ROWS PROMPT NEW ONE".into());
    };
    let stop = Arc::new(AtomicBool::new(false));
    flag::register(SIGTERM, stop.clone())?;
    // inside the pool: otherwise each parallel operation is sent to a worker while this thread waits
    let samples = with_threadpool(|| passes(rows, prompt, new, one == 1, &stop))?;
    println!("{}", serde_json::to_string(&samples)?);
    Ok(())
}
