//! A case: a model, sequences, and a way to compute their logits other than the oracle's.
use xtrain::decode::{KvKind, PrefixCaching};
use xtrain::model::{Biases, Config};
use xtrain::tensor::testing::simds;
use xtrain::tensor::{Dtype, Simd};

use crate::rng::CaseRng;

/// The seed of all cases.
pub(super) const SEED: u64 = 20_250_607;

/// One case. Its debug output is all that is needed to run it again.
#[derive(Debug, Clone)]
pub(super) struct Case {
    /// The number of the case. With [`SEED`] it determines weights, tokens and schedule.
    pub(super) number: u64,
    pub(super) cfg: Config,
    pub(super) dtype: Dtype,
    pub(super) oracle: Oracle,
    pub(super) kv: KvKind,
    pub(super) threads: usize,
    /// `None`: the reference backend.
    pub(super) simd: Option<Simd>,
    pub(super) driver: Driver,
    pub(super) seqs: Vec<Seq>,
    /// Sliding-window size of each layer, including the current token. `None`: full attention.
    pub(super) windows: Vec<Option<usize>>,
    /// The cache has memory for this number of layers, and offloads the others if there are more. `None`: all layers
    /// stay.
    pub(super) layers_in_memory: Option<usize>,
}

/// How the oracle computes a sequence: alone, on one thread, in one pass over all its tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Oracle {
    /// `None`: the reference backend.
    pub(super) simd: Option<Simd>,
    /// The training forward, recorded on a tape. Never for a lossy cache.
    pub(super) tape: bool,
    /// Also recomputed by a new forward pass for each token.
    pub(super) literal: bool,
}

/// A sequence.
#[derive(Debug, Clone)]
pub(super) struct Seq {
    pub(super) len: usize,
    /// Number of positions that are computed in chunks. Later positions are computed one at a time.
    pub(super) prompt: usize,
    /// Maximum number of rows in a chunk.
    pub(super) chunk: usize,
    /// `(of, len)`: the first `len` tokens equal those of the earlier sequence `of`. Passes share its cached rows; an
    /// engine shares the pages that it still has.
    pub(super) prefix: Option<(usize, usize)>,
}

/// How the passes are scheduled.
#[derive(Debug, Clone)]
pub(super) enum Driver {
    /// Calls of `Model::forward` with a cache.
    Passes {
        batch: Batch,
        /// Rows of different sequences alternate, instead of one sequence after the other.
        interleaved: bool,
        /// How often a sequence loses some or all of its cached positions and recomputes them.
        rewinds: usize,
    },
    /// The engine, which samples the tokens after the prompts.
    Engine {
        max_batch: usize,
        max_batched_tokens: Option<usize>,
        /// Positions that the cache has beyond the longest sequence. `None`: room for all sequences.
        spare: Option<usize>,
        /// The first `group` sequences are completions of one prompt.
        group: usize,
        /// Pages are kept for later prompts; some prompts begin with the tokens of an earlier one.
        prefix_caching: PrefixCaching,
    },
}

/// The sequences in one pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Batch {
    /// One sequence, drawn again for each pass.
    One,
    /// Some sequences, in random order.
    Some,
    /// All sequences.
    All,
}

impl Case {
    /// Draws case `number`.
    pub(super) fn draw(number: u64) -> Case {
        let mut rng = CaseRng::new(SEED, number);
        let kv = match rng.below(6) {
            0 => KvKind::Growing,
            1 => KvKind::Contiguous,
            _ => KvKind::Paged { page: rng.choose(&[1, 2, 3, 5, 8, 16, 17, 32, 64]) },
        };
        let engine = rng.one_in(5);
        let seqs = loop {
            let seqs = sequences(&mut rng, number, engine);
            let own = |s: &Seq| s.len - s.prefix.map_or(0, |p| p.1);
            if seqs.iter().map(own).sum::<usize>() >= 80 {
                break seqs;
            }
        };
        let longest = seqs.iter().map(|s| s.len).max().expect("there are sequences");
        let driver = match engine {
            true => Driver::Engine {
                max_batch: rng.between(1, seqs.len()),
                max_batched_tokens: rng.one_in(2).then(|| rng.between(1, 60)),
                spare: rng.one_in(2).then(|| 64 + rng.below(2 * longest)),
                group: 1,
                prefix_caching: PrefixCaching::Off,
            },
            false => Driver::Passes {
                batch: rng.choose(&[Batch::One, Batch::Some, Batch::Some, Batch::All]),
                interleaved: rng.one_in(6),
                rewinds: rng.below(12).saturating_sub(9),
            },
        };
        let cfg = config(&mut rng, longest);
        let literal = number.is_multiple_of(50);
        let light = !(engine || literal || cfg.dim.max(cfg.ffn_dim).max(cfg.vocab) > 100 || longest > 64);
        let oracle = Oracle { simd: simd(&mut rng, light), tape: rng.one_in(2), literal };
        let mut case = Case {
            number,
            cfg,
            dtype: rng.choose(&[Dtype::F32, Dtype::BF16]),
            oracle,
            kv,
            threads: rng.choose(&[1, 1, 2, 3]),
            simd: simd(&mut rng, light),
            driver,
            seqs,
            windows: Vec::new(),
            layers_in_memory: None,
        };
        case.form_group(&mut rng);
        case.draw_windows(&mut rng);
        case.draw_biases(&mut rng);
        case.keep_prefixes(&mut CaseRng::new(SEED ^ 5, number));
        case.quantize_cache(&mut CaseRng::new(SEED ^ 6, number));
        case.keep_sinks(&mut CaseRng::new(SEED ^ 7, number));
        case.offload_layers(&mut CaseRng::new(SEED ^ 8, number));
        case
    }

    /// In most engines with pages, the cache keeps prefixes and has little room. Some prompts begin with the tokens
    /// of an earlier one. In half of these engines, only completions of the longest sequence's prompt run at the same
    /// time, and they have more tokens than the cache has room for.
    fn keep_prefixes(&mut self, rng: &mut CaseRng) {
        let (n, longest) = (self.seqs.len(), self.longest());
        let (KvKind::Paged { page }, Driver::Engine { group, .. }) = (self.kv, &self.driver) else { return };
        if rng.one_in(4) {
            return;
        }
        if *group == 1 && n > 2 && rng.one_in(2) {
            let at = (0..n).find(|&s| self.seqs[s].len == longest).expect("the longest sequence");
            self.seqs.swap(0, at);
            self.seqs[0].prompt = longest - rng.between(2, (longest - 1).min(30));
            self.share_prompt(rng.between(2, n - 1));
        }
        let Driver::Engine { max_batch, group, spare, prefix_caching, .. } = &mut self.driver else { return };
        *prefix_caching = PrefixCaching::On;
        *spare = Some(rng.below(longest + 2 * page));
        if *group > 1 && !rng.one_in(3) {
            *max_batch = rng.between(2, *group);
            *spare = Some(rng.below(page + 4));
        }
        let mut left = rows(&self.seqs, *group).saturating_sub(64);
        for s in *group..self.seqs.len() {
            let of = rng.below(s);
            let len = (self.seqs[s].prompt - 1).min(self.seqs[of].prompt).min(left);
            if len > 0 && !rng.one_in(3) {
                self.seqs[s].prefix = Some((of, len));
                left -= len;
            }
        }
    }

    /// One cache with pages of three is in int8. Its oracle is a naive definition without a tape.
    fn quantize_cache(&mut self, rng: &mut CaseRng) {
        if let KvKind::Paged { page } = self.kv
            && rng.one_in(3)
        {
            (self.kv, self.oracle.tape) = (KvKind::Int8 { page }, false);
        }
    }

    /// One growing or contiguous cache of three becomes one of sinks and a window. In a quarter of these, the window
    /// holds the longest sequence, and the oracle is that of an exact cache.
    fn keep_sinks(&mut self, rng: &mut CaseRng) {
        if !matches!(self.kv, KvKind::Growing | KvKind::Contiguous) || !rng.one_in(3) {
            return;
        }
        let longest = self.longest();
        let sinks = rng.below(6).min(longest - 1);
        let (most, some) = (longest - sinks, rng.choose(&[2, 8, 20, 70]));
        let window = if rng.one_in(4) { most } else { rng.between(1, most.min(some)) };
        self.kv = KvKind::Sinks { sinks, window };
        self.oracle.tape &= self.definition().is_exact();
    }

    /// One in ten contiguous or paged caches offloads layers; its model has three or four.
    fn offload_layers(&mut self, rng: &mut CaseRng) {
        if !matches!(self.kv, KvKind::Contiguous | KvKind::Paged { .. } | KvKind::Int8 { .. })
            || !rng.one_in(10)
        {
            return;
        }
        let n_layers = rng.between(3, 4);
        self.windows = self.windows.iter().copied().cycle().take(n_layers).collect();
        self.cfg.n_layers = n_layers;
        self.layers_in_memory = Some(rng.between(2, n_layers - 1));
    }

    /// The kind of cache whose definition the case follows. Sinks and a window that hold the longest sequence follow
    /// that of an exact cache.
    pub(super) fn definition(&self) -> KvKind {
        let holds_all = !self.kv.keeps_all() && self.kv.slots(0) >= self.longest();
        if holds_all { KvKind::Off } else { self.kv }
    }

    /// In one engine of three, the first sequences are completions of one prompt.
    fn form_group(&mut self, rng: &mut CaseRng) {
        let n = self.seqs.len();
        if matches!(self.driver, Driver::Engine { .. }) && n > 2 && rng.one_in(3) {
            self.share_prompt(rng.between(2, n - 1));
        }
    }

    /// Makes the first `g` sequences of an engine completions of one prompt, unless few rows remain.
    fn share_prompt(&mut self, g: usize) {
        if let Driver::Engine { group, .. } = &mut self.driver
            && rows(&self.seqs, g) >= 64
        {
            *group = g;
            let first = self.seqs[0].clone();
            self.seqs[1..g].fill(first);
        }
    }

    /// In one case of five, some layers have a sliding window.
    fn draw_windows(&mut self, rng: &mut CaseRng) {
        let some = rng.one_in(5);
        let mut window =
            |_| (some && !rng.one_in(3)).then(|| rng.choose(&[1, 2, 7, 31, 32, 33, 63, 64, 65, 100]));
        self.windows = (0..self.cfg.n_layers).map(&mut window).collect();
    }

    /// In one case of three, some projections have biases: those of Qwen2, or all that Llama supports.
    fn draw_biases(&mut self, rng: &mut CaseRng) {
        if rng.one_in(3) {
            let all = rng.one_in(2);
            self.cfg.biases = Biases { qkv: true, o: all, mlp: all };
        }
    }

    /// Length of the longest sequence.
    pub(super) fn longest(&self) -> usize {
        self.seqs.iter().map(|s| s.len).max().unwrap_or(1)
    }

    /// Positions in a page. 1 for a cache without pages.
    pub(super) fn page(&self) -> usize {
        self.kv.page().unwrap_or(1)
    }
}

/// The rows of an engine whose first `group` sequences are completions of one prompt.
fn rows(seqs: &[Seq], group: usize) -> usize {
    let new = seqs[0].len - seqs[0].prompt;
    seqs[group..].iter().map(|s| s.len - 1).sum::<usize>() + seqs[0].prompt + group * (new - 1)
}

/// The reference (`None`) and the instruction sets of this machine: those that emulate FMA while others have it, and
/// the rest.
pub(super) fn simd_groups() -> (Vec<Option<Simd>>, Vec<Option<Simd>>) {
    let all = [None].into_iter().chain(simds().into_iter().map(Some));
    all.partition(|s| *s < Some(Simd::Avx2) && Simd::detect() >= Simd::Avx2)
}

/// Draws an instruction set. Those that emulate FMA are drawn less often, and only for cheap cases.
fn simd(rng: &mut CaseRng, light: bool) -> Option<Simd> {
    let (slow, fast) = simd_groups();
    match light && !slow.is_empty() && rng.one_in(8) {
        true => rng.choose(&slow),
        false => rng.choose(&fast),
    }
}

/// 2 to 8 sequences of different lengths. Lengths at the borders of chunks, blocks and pages are preferred.
fn sequences(rng: &mut CaseRng, number: u64, engine: bool) -> Vec<Seq> {
    let n = rng.between(2, 8);
    let first = match rng.below(5) {
        _ if number % 18 == 7 => Some(rng.choose(&[257, 257, 258, 260, 270])),
        0 => Some(rng.choose(&[65, 65, 66, 100, 127, 128, 129, 130])),
        _ => None,
    };
    let mut seqs: Vec<Seq> = Vec::new();
    for i in 0..n {
        let drawn = match (first, i) {
            (Some(first), 0) => first,
            (Some(257..), 1) if rng.one_in(2) => rng.choose(&[255, 256]),
            (Some(_), 1) if rng.one_in(2) => rng.choose(&[63, 64, 127, 128]),
            (Some(_), _) => rng.choose(&[31, 32, 33, 2 + i, 10 + i]),
            (None, _) => match rng.one_in(2) {
                true => rng.choose(&[31, 32, 33, 63, 64]),
                false => rng.between(2, 60),
            },
        };
        let mut len = drawn.max(3);
        while seqs.iter().any(|s| s.len == len) {
            len = if len > 3 { len - 1 } else { 40 };
        }
        let max_tail = if engine { 7 } else { rng.choose(&[3, 10, 10, 10, 10, len]) };
        // an engine does not run the last token: two tokens make one step of one row
        let tail = rng.between(if engine { 2 } else { 1 }, max_tail.min(len - 1));
        let prefix = match i > 0 && !engine && rng.one_in(5) {
            true => Some(rng.below(i)).map(|of| (of, rng.between(1, (len - 1).min(seqs[of].len)))),
            false => None,
        };
        let chunk = rng.choose(&[1, 2, 3, 5, 8, 16, 31, 32, 33, 63, 64, 65, 300, 300]);
        seqs.push(Seq { len, prompt: len - tail, chunk, prefix });
    }
    rng.shuffle_unshared(&mut seqs);
    seqs
}

impl CaseRng {
    /// Puts the sequences in random order, so that the longest is not always the first. Sequences with a shared
    /// prefix keep their order, because the prefix refers to a place.
    fn shuffle_unshared(&mut self, seqs: &mut [Seq]) {
        if seqs.iter().all(|s| s.prefix.is_none()) {
            self.shuffle(seqs);
        }
    }
}

/// A small shape: head sizes with `nh hd != dim`, odd widths, vocabulary sizes that are a multiple of no block size,
/// and sometimes a width of more than one chunk of 256.
fn config(rng: &mut CaseRng, longest: usize) -> Config {
    let wide = rng.below(64);
    let n_kv_heads = rng.choose(&[1, 1, 2, 3]);
    Config {
        vocab: if wide == 0 { 300 } else { rng.between(3, 71) },
        dim: if wide == 1 { rng.choose(&[257, 288]) } else { rng.choose(&[4, 6, 8, 11, 12, 16, 20, 33]) },
        ffn_dim: if wide == 2 { 270 } else { rng.choose(&[3, 8, 16, 24, 37]) },
        n_layers: rng.choose(&[1, 1, 1, 2, 2, 3]),
        n_heads: n_kv_heads * rng.choose(&[1, 1, 2, 3]),
        n_kv_heads,
        head_dim: if wide < 6 { rng.choose(&[34, 64, 66]) } else { rng.choose(&[2, 4, 6, 8, 10, 16]) },
        max_positions: longest,
        rope_theta: rng.choose(&[1e4, 1e6]),
        norm_eps: rng.choose(&[1e-5, 1e-6]),
        qk_norm: rng.one_in(2),
        tie_embeddings: rng.one_in(2),
        ..Config::default()
    }
}
