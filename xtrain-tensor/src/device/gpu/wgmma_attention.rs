//! Attention by the `wgmma` kernels and by those with `mma.sync`, from the same operands.
use super::handle::Gpu;
use super::launch::{Arg, At, Grid, args};
use super::tensor_core_operands::Operands;
use super::wgmma_products::{Both, results};
use crate::dtype::Dtype;
use crate::error::Result;

/// Attention of 70 rows of one head over the same 70 keys, with partial tiles: y, dq, dk and dv.
pub(super) fn attention(gpu: &Gpu, operands: &Operands, hd: usize) -> Result<Vec<Both>> {
    const ROWS: usize = 70;
    let n = ROWS * hd;
    let upload = |values: &[u16]| gpu.upload(&values[..n]);
    let (q, k, v, dy) =
        (upload(&operands.a)?, upload(&operands.b)?, upload(&operands.a[n..])?, upload(&operands.b[n..])?);
    let (lse, delta, other) = (gpu.zeros(4 * ROWS)?, gpu.zeros(4 * ROWS)?, gpu.zeros(4 * n)?);
    let positions: Vec<u32> = (0..ROWS as u32).collect();
    let rows = ROWS as u32;
    let lists =
        [vec![0, 0, 64, 64, 0, rows - 64], vec![0, rows, 0, 0, rows, 64], vec![0; ROWS], positions, vec![0]];
    let [tiles, key_tiles, seq, pos, table] = [0, 1, 2, 3, 4].map(|i| gpu.indices(&lists[i]));
    // the order of the rows is their positions
    let (tiles, key_tiles, seq, pos, table) = (tiles?, key_tiles?, seq?, pos?, table?);
    let scale = 1.0 / (hd as f32).sqrt();
    let sizes = args![seq, pos, table, 0usize, 0usize, 0usize, 1usize, 1usize, hd, scale].to_vec();
    let read = args![q.arg(), k.arg(), v.arg(), dy.arg(), lse.arg(), delta.arg()].to_vec();
    let forward =
        |y: At| Ok([args![q.arg(), k.arg(), v.arg(), y, lse.arg(), tiles] as &[Arg], &sizes].concat());
    let dq = |dq: At| Ok([&read, args![dq, tiles] as &[Arg], &sizes].concat());
    let dv = |dv: At| Ok([&read, args![other.arg(), dv, key_tiles, pos] as &[Arg], &sizes].concat());
    let dk_of = |dk_at: At| Ok([&read, args![dk_at, other.arg(), key_tiles, pos] as &[Arg], &sizes].concat());
    // rows of hd + 8 values, by mma.sync 64 or 32 of them per stage
    let (pitch, stage) = (2 * (hd + 8), if hd == 64 { 64 } else { 32 });
    let (keys, gradients) = (pitch * 128 + 512, pitch * (128 + 4 * stage) + 16 * stage);
    macro_rules! kernels {
        ($hd:literal) => {
            [
                [concat!("attention_bf16_wgmma_hd", $hd), concat!("attention_bf16_hd", $hd)],
                [concat!("attention_dq_bf16_wgmma_hd", $hd), concat!("attention_dq_bf16_hd", $hd)],
                [concat!("attention_dkv_bf16_wgmma_hd", $hd), concat!("attention_dkv_bf16_hd", $hd)],
            ]
        };
    }
    let [of_y, of_dq, of_dkv] = if hd == 64 { kernels!(64) } else { kernels!(128) };
    let both = |[wgmma, mma]: [&'static str; 2],
                [panels, shared]: [usize; 2],
                args: &dyn Fn(At) -> Result<Vec<Arg>>,
                out| {
        let grid = |shared| Grid::blocks([2, 1, 1], 128).shared(shared);
        // SAFETY: operands, results and tiles of 70 rows of one head.
        let run = |kernel, shared| unsafe { results(gpu, n, (kernel, grid(shared)), args, out) };
        Ok([run(wgmma, panels * 2 * 64 * hd + 1024)?, run(mma, shared)?])
    };
    Ok(vec![
        both(of_y, [5, keys], &forward, Dtype::BF16)?,
        both(of_dq, [6, gradients], &dq, Dtype::F32)?,
        both(of_dkv, [6, gradients], &dk_of, Dtype::F32)?,
        both(of_dkv, [6, gradients], &dv, Dtype::F32)?,
    ])
}
