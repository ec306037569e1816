//! `xtrain logits`: writes the logits of given tokens.
use std::path::PathBuf;

use clap::Args;
use safetensors::tensor::{Dtype, TensorView};

use super::atomic_file::AtomicFile;
use super::common::{Common, Force, token_id};
use super::model_arg::ModelArg;
use super::{CliError, Exit, loaded, out, output_path};
use crate::model::{self, Eager, NoCache, Rows};

#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Writes a safetensors file with one f32 tensor `logits` of shape [tokens, vocab].

Example:
  xtrain logits runs/shakespeare --tokens 82,79,77,69,79,58 --out logits.safetensors")]
pub(super) struct LogitsArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Token ids, for example 1,2,3.
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true, value_parser = token_id)]
    tokens: Vec<u32>,
    /// Output file.
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    force: Force,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: &LogitsArgs) -> Result<(), CliError> {
    output_path::check_absent(&args.out, args.force)?;
    output_path::check_is_no_input(&args.out, [&args.model.path().to_path_buf()])?;
    let model = loaded::open(args.model.path(), &args.common)?.model;
    let cfg = model.config();
    if args.tokens.len() > cfg.max_positions {
        let (got, want) = (args.tokens.len(), cfg.max_positions);
        let message = format!("--tokens: found {got} ids, expected at most {want}, the context of the model");
        return Err(CliError::new(Exit::Usage, message));
    }
    if let Some(at) = args.tokens.iter().position(|&id| id as usize >= cfg.vocab) {
        let (id, size) = (args.tokens[at], cfg.vocab);
        let message = format!("--tokens: id {id} at index {at} is outside the vocabulary of {size}");
        return Err(CliError::new(Exit::Usage, message));
    }
    let mut file = AtomicFile::create(&args.out)?;
    let rows = Rows::whole(&[&args.tokens]);
    let hidden = model.forward(&mut Eager, &mut NoCache::new(&rows)?, &rows)?;
    let logits = model.logits(&hidden)?;
    let values = logits.read::<f32>().map_err(model::Error::from)?;
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, logits.shape().to_vec(), &bytes)
        .expect("the data has the size of the shape");
    let bytes = safetensors::serialize([("logits", view)], None).expect("a single tensor can be serialized");
    file.write(&bytes)?;
    file.finish()?;
    let [t, v] = [args.tokens.len(), cfg.vocab];
    out::print(format!("wrote {}: logits, f32, shape [{t}, {v}]\n", args.out.display()))
}
