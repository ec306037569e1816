//! The operations that are alike on both host backends: sampling, the optimizer step, and operations for which only a
//! GPU has separate or fused kernels.
use crate::backend::{HostBackend, SharedOps};
use crate::compose;
use crate::dtype::Dtype;
use crate::error::Result;
use crate::operands::{
    AdamWScalars, Affine, AttnMask, Heads, Int8Head, Norm, Outcome, RopeArgs, SampleRing, SampleRow,
    StepLists, UnrotatedHeads, Update, Updated, Weight,
};
use crate::reference::sample;
use crate::tensor::{Tensor, Tensors};

impl<B: HostBackend> SharedOps for B {
    fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let mut y = a.clone();
        self.accumulate(&mut y, b)?;
        Ok(y)
    }

    fn rope_at(&self, x: &Tensor, rope: RopeArgs<'_>, _first: u32) -> Result<Tensor> {
        self.rope_rows(x, rope, x.dtype())
    }
    fn rope_pos(&self, x: &Tensor, rope: RopeArgs<'_>) -> Result<Tensor> {
        self.rope_rows(x, rope, x.dtype())
    }

    fn write_heads(&self, new: &UnrotatedHeads<'_>, [k_pool, v_pool]: [&mut Tensor; 2]) -> Result<Tensor> {
        let UnrotatedHeads { q, k, v, norms, rope, slots } = *new;
        let rotated = |x: &Tensor, norm: Option<Norm<'_>>| match norm {
            Some(norm) => self.norm_rope(x, norm, rope),
            None => self.rope_rows(x, rope, x.dtype()),
        };
        self.scatter_rows(k_pool, &rotated(k, norms.map(|n| n.k()))?, slots)?;
        self.scatter_rows(v_pool, v, slots)?;
        rotated(q, norms.map(|n| n.q()))
    }

    fn linears(&self, x: &Tensor, ws: &[Affine<'_>]) -> Result<Tensors> {
        compose::linears(self, x, ws)
    }
    fn swiglu_kept(&self, x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<[Tensor; 3]> {
        compose::swiglu_kept(self, x, gate_up)
    }
    fn swiglu(&self, x: &Tensor, gate_up: [Affine<'_>; 2]) -> Result<Tensor> {
        compose::swiglu(self, x, gate_up)
    }
    fn decode_attention(&self, qkv: [&Tensor; 3], heads: Heads, mask: &AttnMask<'_>) -> Result<Tensor> {
        Ok(self.attention(qkv, heads, mask)?.0)
    }
    fn quantize_heads(&self, x: &Tensor) -> Result<Tensor> {
        let &[n, heads, hd] = x.shape() else { unreachable!("ops::quantize_heads checks its shapes") };
        let values = self.cast(x, Dtype::F32)?;
        let mut codes = vec![0; n * heads * Int8Head::words(hd)];
        Int8Head::quantize(values.data()?, hd, &mut codes);
        Tensor::new(x.device(), &[n, heads, Int8Head::words(hd)], codes)
    }

    /// The decoder has its own CPU sampler, which keeps sorted rows and buffers between steps.
    fn sample_rows(&self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<Vec<Outcome>> {
        let data = logits.data::<f32>()?;
        Ok(data.chunks_exact(logits.width()).zip(rows).map(|(x, row)| sample(x, row)).collect())
    }

    fn sample_ring(&self, _rows: usize, _steps: usize) -> Result<Box<dyn SampleRing>> {
        Ok(Box::new(HostRing { backend: self.clone(), last: Vec::new(), outcomes: Vec::new() }))
    }

    fn adamw_all(&self, all: &mut [Update<'_>], max_norm: f32, s: &AdamWScalars) -> Result<Updated> {
        let gs: Vec<&Tensor> = all.iter().map(|one| one.g).collect();
        let rows: Vec<usize> = gs.iter().map(|g| g.rows()).collect();
        let norm = global_norm(self, &self.row_squares(&gs)?, &rows);
        let clip = clip_factor(norm, max_norm);
        Ok(Updated { norm, finite: !norm.is_finite() || self.update(all, clip, s)? })
    }

    fn sum_of_squares(&self, g: &Tensor) -> Result<f32> {
        Ok(self.sum(&self.row_squares(&[g])?))
    }
}

/// The norm of gradients from the squares of their rows. `rows`: the number of rows of each gradient, in walk order.
pub(crate) fn global_norm(backend: &impl HostBackend, squares: &[f32], rows: &[usize]) -> f32 {
    let mut rest = squares;
    let sum = |n: &usize| backend.sum(rest.split_off(..*n).expect("a square for each row"));
    rows.iter().map(sum).fold(0f32, |total, sum| total + sum).sqrt()
}

/// The factor that reduces gradients of this norm to `max_norm`; 1 for a smaller norm.
pub(crate) fn clip_factor(norm: f32, max_norm: f32) -> f32 {
    let ratio = max_norm / (norm + 1e-6);
    if ratio < 1.0 { ratio } else { 1.0 }
}

/// The state of a sampler: the last token of each row, and the outcomes of the steps since they were staged.
#[derive(Debug)]
struct HostRing<B> {
    backend: B,
    last: Vec<u32>,
    outcomes: Vec<Vec<Outcome>>,
}

impl<B> HostRing<B> {
    /// The ids that the repetition penalty of a row covers: `before`, and the tokens sampled since.
    fn seen(&self, before: &[u32], row: usize) -> Vec<u32> {
        let since = self.outcomes.iter().filter_map(|step| step[row].ok()).map(|s| s.token);
        before.iter().copied().chain(since).collect()
    }
}

impl<B: HostBackend> SampleRing for HostRing<B> {
    fn stage(&mut self, tokens: &[u32], _lists: StepLists) -> Result<()> {
        self.last = tokens.to_vec();
        self.outcomes.clear();
        Ok(())
    }

    fn embedding(&self, w: &Tensor, dtype: Dtype) -> Result<Tensor> {
        self.backend.embedding(w, &self.last, dtype)
    }
    fn weight_rows(&self, w: &Weight) -> Result<Tensor> {
        self.backend.weight_rows(w, &self.last)
    }

    fn sample(&mut self, logits: &Tensor, rows: &[SampleRow<'_>]) -> Result<()> {
        let seen: Vec<Vec<u32>> = rows.iter().enumerate().map(|(n, row)| self.seen(row.seen, n)).collect();
        let rows: Vec<_> = rows.iter().zip(&seen).map(|(row, seen)| SampleRow { seen, ..*row }).collect();
        let outcomes = self.backend.sample_rows(logits, &rows)?;
        self.last = outcomes.iter().map(|o| o.map_or(0, |s| s.token)).collect();
        self.outcomes.push(outcomes);
        Ok(())
    }

    fn read_back(&mut self) -> Result<Vec<Vec<Outcome>>> {
        Ok(std::mem::take(&mut self.outcomes))
    }
}
