//! A case: a model, sequences, and a way to compute their logits that is not the oracle's.
use xtrain::decode::KvKind;
use xtrain::model::{Biases, Config};
use xtrain::tensor::{Dtype, Simd};

use crate::dice::Dice;

/// The seed of all cases.
pub(super) const SEED: u64 = 20_250_607;

/// One case; its text is all that is needed to run it again.
#[derive(Debug, Clone)]
pub(super) struct Case {
    /// Its number: with [`SEED`] the address of weights, tokens and schedule.
    pub(super) number: u64,
    pub(super) cfg: Config,
    pub(super) dtype: Dtype,
    pub(super) oracle: Oracle,
    pub(super) kv: KvKind,
    pub(super) threads: usize,
    pub(super) simd: Option<Simd>,
    pub(super) how: How,
    pub(super) seqs: Vec<Seq>,
    /// How many positions back each layer sees.
    pub(super) windows: Vec<Option<usize>>,
}

/// How the oracle computes a sequence: alone, on one thread, in one pass over the whole of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Oracle {
    pub(super) simd: Option<Simd>,
    /// The training forward, watched by a tape.
    pub(super) tape: bool,
    /// Once more by a fresh forward for each token.
    pub(super) literal: bool,
}

/// A sequence.
#[derive(Debug, Clone)]
pub(super) struct Seq {
    pub(super) len: usize,
    /// Positions that come in chunks; those after them come one at a time.
    pub(super) prompt: usize,
    /// The most rows of a chunk.
    pub(super) chunk: usize,
    /// So many first tokens are those of an earlier sequence, whose room is shared.
    pub(super) prefix: Option<(usize, usize)>,
}

/// Who drives the passes.
#[derive(Debug, Clone)]
pub(super) enum How {
    /// The gate itself: `Model::forward` with a cache.
    Passes {
        company: Company,
        /// Rows of different sequences in turn, not one sequence after another.
        woven: bool,
        /// Sequences that lose some or all of their positions on the way, and get them again.
        losses: usize,
    },
    /// The engine, which draws the tokens after the prompts.
    Engine {
        max_batch: usize,
        max_batched_tokens: Option<usize>,
        /// Positions beyond the longest sequence that the cache has; none: room for all.
        spare: Option<usize>,
        /// The first so many sequences are completions of one prompt.
        group: usize,
    },
}

/// Who advances in a pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Company {
    /// One sequence, drawn anew each time.
    One,
    /// Some, in a random order.
    Some,
    /// All.
    All,
}

impl Case {
    /// Case `number`.
    pub(super) fn draw(number: u64) -> Case {
        let mut dice = Dice::new(SEED, number);
        let kv = match dice.below(6) {
            0 => KvKind::Growing,
            1 => KvKind::Contiguous,
            _ => KvKind::Paged { page: dice.pick(&[1, 2, 3, 5, 8, 16, 17, 32, 64]) },
        };
        let engine = dice.one_in(5);
        let seqs = loop {
            let seqs = sequences(&mut dice, (number, engine));
            let own = |s: &Seq| s.len - s.prefix.map_or(0, |p| p.1);
            if seqs.iter().map(own).sum::<usize>() >= 80 {
                break seqs;
            }
        };
        let longest = seqs.iter().map(|s| s.len).max().expect("there are sequences");
        let how = match engine {
            true => How::Engine {
                max_batch: dice.between(1, seqs.len()),
                max_batched_tokens: dice.one_in(2).then(|| dice.between(1, 60)),
                spare: dice.one_in(2).then(|| 64 + dice.below(2 * longest)),
                group: 1,
            },
            false => How::Passes {
                company: dice.pick(&[Company::One, Company::Some, Company::Some, Company::All]),
                woven: dice.one_in(6),
                losses: dice.below(12).saturating_sub(9),
            },
        };
        let cfg = config(&mut dice, longest);
        let literal = number.is_multiple_of(50);
        let light = !(engine || literal || cfg.dim.max(cfg.ffn_dim).max(cfg.vocab) > 100 || longest > 64);
        let oracle = Oracle { simd: simd(&mut dice, light), tape: dice.one_in(2), literal };
        let mut case = Case {
            number,
            cfg,
            dtype: dice.pick(&[Dtype::F32, Dtype::BF16]),
            oracle,
            kv,
            threads: dice.pick(&[1, 1, 2, 3]),
            simd: simd(&mut dice, light),
            how,
            seqs,
            windows: Vec::new(),
        };
        case.form_group(&mut dice);
        case.draw_windows(&mut dice);
        case.draw_biases(&mut dice);
        case
    }

    /// In one engine of three the first sequences are completions of one prompt, each one row of it.
    fn form_group(&mut self, dice: &mut Dice) {
        let n = self.seqs.len();
        if let How::Engine { group, .. } = &mut self.how
            && n > 2
            && dice.one_in(3)
        {
            let rows = |seqs: &[Seq], g: usize| {
                let new = seqs[0].len - seqs[0].prompt;
                seqs[g..].iter().map(|s| s.len - 1).sum::<usize>() + seqs[0].prompt + g * (new - 1)
            };
            let g = dice.between(2, n - 1);
            if rows(&self.seqs, g) >= 64 {
                *group = g;
                let first = self.seqs[0].clone();
                self.seqs[1..g].fill(first);
            }
        }
    }

    /// In one case of five some layers have a window.
    fn draw_windows(&mut self, dice: &mut Dice) {
        let some = dice.one_in(5);
        let mut window =
            |_| (some && !dice.one_in(3)).then(|| dice.pick(&[1, 2, 7, 31, 32, 33, 63, 64, 65, 100]));
        self.windows = (0..self.cfg.n_layers).map(&mut window).collect();
    }

    /// In one case of three some projections have biases, as in Qwen2 or with all that Llama knows.
    fn draw_biases(&mut self, dice: &mut Dice) {
        if dice.one_in(3) {
            let all = dice.one_in(2);
            self.cfg.biases = Biases { qkv: true, o: all, mlp: all };
        }
    }

    /// Positions of the longest sequence.
    pub(super) fn longest(&self) -> usize {
        self.seqs.iter().map(|s| s.len).max().unwrap_or(1)
    }

    /// Positions in a page; 1 where there are no pages.
    pub(super) fn page(&self) -> usize {
        if let KvKind::Paged { page } = self.kv { page } else { 1 }
    }
}

/// The reference (`None`) and the instruction sets of this machine: those that emulate an fma which others have, and
/// the rest.
pub(super) fn simds() -> (Vec<Option<Simd>>, Vec<Option<Simd>>) {
    let all = [None].into_iter().chain(Simd::available().map(Some));
    all.partition(|s| *s < Some(Simd::Avx2) && Simd::detect() >= Simd::Avx2)
}

/// A set of instructions. Those that emulate fma are drawn less often, and only where there is little to
/// compute.
fn simd(dice: &mut Dice, light: bool) -> Option<Simd> {
    let (slow, fast) = simds();
    match light && !slow.is_empty() && dice.one_in(8) {
        true => dice.pick(&slow),
        false => dice.pick(&fast),
    }
}

/// 2 to 8 sequences of different lengths: the edges of chunks, blocks and pages before all others.
fn sequences(dice: &mut Dice, (number, engine): (u64, bool)) -> Vec<Seq> {
    let n = dice.between(2, 8);
    let first = match dice.below(5) {
        _ if number % 18 == 7 => Some(dice.pick(&[257, 257, 258, 260, 270])),
        0 => Some(dice.pick(&[65, 65, 66, 100, 127, 128, 129, 130])),
        _ => None,
    };
    let mut seqs: Vec<Seq> = Vec::new();
    for i in 0..n {
        let drawn = match (first, i) {
            (Some(first), 0) => first,
            (Some(257..), 1) if dice.one_in(2) => dice.pick(&[255, 256]),
            (Some(_), 1) if dice.one_in(2) => dice.pick(&[63, 64, 127, 128]),
            (Some(_), _) => dice.pick(&[31, 32, 33, 2 + i, 10 + i]),
            (None, _) => match dice.one_in(2) {
                true => dice.pick(&[31, 32, 33, 63, 64]),
                false => dice.between(2, 60),
            },
        };
        let mut len = drawn.max(3);
        while seqs.iter().any(|s| s.len == len) {
            len = if len > 3 { len - 1 } else { 40 };
        }
        let most = if engine { 7 } else { dice.pick(&[3, 10, 10, 10, 10, len]) };
        // An engine does not run the last token: two make a step of one row.
        let tail = dice.between(if engine { 2 } else { 1 }, most.min(len - 1));
        let prefix = match i > 0 && !engine && dice.one_in(5) {
            true => Some(dice.below(i)).map(|of| (of, dice.between(1, (len - 1).min(seqs[of].len)))),
            false => None,
        };
        let chunk = dice.pick(&[1, 2, 3, 5, 8, 16, 31, 32, 33, 63, 64, 65, 300, 300]);
        seqs.push(Seq { len, prompt: len - tail, chunk, prefix });
    }
    dice.shuffle_first(&mut seqs);
    seqs
}

impl Dice {
    /// The longest sequence is not always the first; only where no other leans on a place.
    fn shuffle_first(&mut self, seqs: &mut [Seq]) {
        if seqs.iter().all(|s| s.prefix.is_none()) {
            self.shuffle(seqs);
        }
    }
}

/// A small shape: head sizes with `nh hd != dim`, odd widths, vocabularies that are no multiple of
/// anything, now and then a width beyond one chunk of 256.
fn config(dice: &mut Dice, longest: usize) -> Config {
    let wide = dice.below(64);
    let n_kv_heads = dice.pick(&[1, 1, 2, 3]);
    Config {
        vocab: if wide == 0 { 300 } else { dice.between(3, 71) },
        dim: if wide == 1 { dice.pick(&[257, 288]) } else { dice.pick(&[4, 6, 8, 11, 12, 16, 20, 33]) },
        ffn_dim: if wide == 2 { 270 } else { dice.pick(&[3, 8, 16, 24, 37]) },
        n_layers: dice.pick(&[1, 1, 1, 2, 2, 3]),
        n_heads: n_kv_heads * dice.pick(&[1, 1, 2, 3]),
        n_kv_heads,
        head_dim: if wide < 6 { dice.pick(&[34, 64, 66]) } else { dice.pick(&[2, 4, 6, 8, 10, 16]) },
        max_positions: longest,
        rope_theta: dice.pick(&[1e4, 1e6]),
        norm_eps: dice.pick(&[1e-5, 1e-6]),
        qk_norm: dice.one_in(2),
        tie_embeddings: dice.one_in(2),
        ..Config::default()
    }
}
