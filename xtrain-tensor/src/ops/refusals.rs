//! Operands that do not fit: an operation with exactly one wrong operand returns the error of that operand.
use std::fmt::Debug;

use super::*;
use crate::{Device, Dtype, Error, Result, RopeTable, Tensor, ThreadSchedule, sliced_adamw, testing};

/// Zeros of one device.
struct Zeros(Device);

impl Zeros {
    fn f32(&self, shape: &[usize]) -> Tensor {
        Tensor::zeros(&self.0, shape, Dtype::F32).unwrap()
    }

    fn bf16(&self, shape: &[usize]) -> Tensor {
        Tensor::zeros(&self.0, shape, Dtype::BF16).unwrap()
    }

    fn u32(&self, shape: &[usize]) -> Tensor {
        Tensor::zeros(&self.0, shape, Dtype::U32).unwrap()
    }

    fn weight(&self, shape: &[usize], dtype: Dtype) -> Weight {
        Weight::new(&self.f32(shape), dtype).unwrap()
    }
}

fn zeros() -> Zeros {
    Zeros(Device::cpu())
}

#[track_caller]
fn shape<T: Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::Shape { .. })), "{result:?}");
}

#[track_caller]
fn dtype<T: Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::Dtype { .. })), "{result:?}");
}

/// An [`Error::Dtype`] of the operation itself: the same on every device.
#[track_caller]
fn dtype_of<T: Debug>(result: Result<T>, text: &str) {
    assert!(matches!(result, Err(Error::Dtype { .. })), "{result:?}");
    assert_eq!(result.unwrap_err().to_string(), text);
}

/// The host backends, and the emulated GPU that checks every access to memory.
fn devices() -> [Zeros; 3] {
    [Device::cpu(), Device::reference(), testing::checked(ThreadSchedule::Forward)].map(Zeros)
}

#[track_caller]
fn argument<T: Debug>(result: Result<T>, wanted: &str) {
    assert!(matches!(&result, Err(Error::Argument { want, .. }) if want.contains(wanted)), "{result:?}");
}

#[track_caller]
fn index<T: Debug>(result: Result<T>) {
    assert!(matches!(result, Err(Error::Index { .. })), "{result:?}");
}

#[test]
fn a_sampler_reads_tables_with_a_row_for_each_token_only() {
    let z = zeros();
    let mut sampler = DeviceSampler::new(&z.0, 2, 1).unwrap();
    sampler.stage(&[5, 3], Vec::new()).unwrap();
    sampler.embedding(&z.f32(&[6, 4]), Dtype::F32).unwrap();
    shape(sampler.embedding(&z.f32(&[5, 4]), Dtype::F32));
    shape(sampler.embedding(&z.bf16(&[6, 4]), Dtype::F32));
    sampler.weight_rows(&z.weight(&[6, 4], Dtype::F32)).unwrap();
    shape(sampler.weight_rows(&z.weight(&[5, 4], Dtype::F32)));
}

/// Rows of one sequence at positions 0, 1, ...
fn causal<'a>(slots: &'a Slots, pos: &'a [u32]) -> AttnMask<'a> {
    AttnMask { seq: &[0; 8][..pos.len()], pos, slots, window: None }
}

#[test]
fn attention_takes_operands_that_fit_only() {
    let z = zeros();
    let slots = Slots::Runs { base: vec![0] };
    let mask = causal(&slots, &[0, 1, 2]);
    let run = |q: &[usize], k: &[usize], v: &[usize]| attention(&z.f32(q), &z.f32(k), &z.f32(v), &mask);
    run(&[3, 4, 8], &[3, 2, 8], &[3, 2, 8]).unwrap();
    run(&[3, 1, 256], &[3, 1, 256], &[3, 1, 256]).unwrap();
    shape(run(&[3, 4, 8], &[3, 2, 6], &[3, 2, 6]));
    shape(run(&[3, 1, 257], &[3, 1, 257], &[3, 1, 257]));
    shape(run(&[3, 4, 0], &[3, 2, 0], &[3, 2, 0]));
    shape(run(&[3, 0, 8], &[3, 0, 8], &[3, 0, 8]));
    shape(run(&[3, 0, 8], &[3, 1, 8], &[3, 1, 8]));
    shape(run(&[3, 4, 8], &[3, 3, 8], &[3, 3, 8]));
    shape(run(&[3, 4, 8], &[3, 2, 8], &[4, 2, 8]));
    let (q, kv) = ([3, 4, 8], [3, 2, 8]);
    let one_dtype = |q: &Tensor, k: &Tensor, v: &Tensor| {
        let want = "attention: expected q, k and v in one dtype";
        let error = attention(q, k, v, &mask).unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}");
    };
    one_dtype(&z.bf16(&q), &z.f32(&kv), &z.f32(&kv));
    one_dtype(&z.f32(&q), &z.f32(&kv), &z.bf16(&kv));

    let (q, kv, lse) = (z.f32(&q), z.f32(&kv), z.f32(&[3, 4]));
    let saved = AttnSaved { q: &q, k: &kv, v: &kv, y: &q, lse: &lse };
    attention_backward(&saved, &q, &mask).unwrap();
    shape(attention_backward(&AttnSaved { y: &kv, ..saved }, &q, &mask));
    shape(attention_backward(&saved, &kv, &mask));
    shape(attention_backward(&AttnSaved { lse: &z.f32(&[3, 3]), ..saved }, &q, &mask));
}

#[test]
fn slots_beyond_the_largest_number_are_refused() {
    let z = zeros();
    let (q, kv) = (z.f32(&[1, 4, 8]), z.f32(&[3, 2, 8]));
    let page = |page: usize, number: u32| Slots::Pages { page, table: vec![vec![number; 2]] };
    let run = |base: usize| Slots::Runs { base: vec![base] };
    for slots in [run(usize::MAX), run(usize::MAX - 1), page(usize::MAX, 1), page(usize::MAX / 2, u32::MAX)] {
        for window in [None, Some(usize::MAX)] {
            let mask = AttnMask { window, ..causal(&slots, &[1]) };
            index(attention(&q, &kv, &kv, &mask));
        }
    }
}

#[test]
fn a_gradient_of_shared_keys_needs_the_row_of_each_of_them() {
    let z = zeros();
    let refused = |table: Vec<Vec<u32>>, seq: &[u32], pos: &[u32], window| {
        let slots = Slots::Pages { page: 1, table };
        let mask = AttnMask { seq, pos, slots: &slots, window };
        let (q, kv, lse) = (z.f32(&[seq.len(), 2, 8]), z.f32(&[3, 2, 8]), z.f32(&[seq.len(), 2]));
        let saved = AttnSaved { q: &q, k: &kv, v: &kv, y: &q, lse: &lse };
        argument(attention_backward(&saved, &q, &mask), "a row for every position of a sequence");
    };
    // the slot of the position before belongs to another position
    refused(vec![vec![0, 1], vec![1, 2]], &[0, 0, 1], &[0, 1, 1], None);
    // it is outside the pool, behind the window
    refused(vec![vec![0], vec![3, 1]], &[0, 1], &[0, 1], Some(1));
}

#[test]
fn heads_take_operands_that_fit_only() {
    let z = zeros();
    let table = RopeTable::new(1e4, 8, 16).unwrap();
    let rope = RopeArgs { table: &table, positions: &[0, 1, 2] };
    let (x, gain, samples) = (z.f32(&[3, 2, 8]), z.f32(&[8]), Samples::of_lengths([3]));
    let norm = Norm { gain: &gain, eps: 1e-6 };
    let backward_to = |dy: &[usize], dw: &[usize], out: Dtype| {
        let mut dw = z.f32(dw);
        let gain = GainGradient { dw: &mut dw, samples: &samples };
        norm_rope_backward(&x, norm, rope, &z.f32(dy), gain, out)
    };
    let backward = |dy: &[usize], dw: &[usize]| backward_to(dy, dw, Dtype::F32);
    backward(&[3, 2, 8], &[8]).unwrap();
    dtype(backward_to(&[3, 2, 8], &[8], Dtype::U32));
    dtype(norm_rope(&Tensor::zeros(&z.0, &[3, 2, 8], Dtype::U32).unwrap(), norm, rope));
    shape(backward(&[3, 2, 4], &[8]));
    shape(backward(&[3, 2, 8], &[4]));
    shape(norm_rope(&x, Norm { gain: &z.f32(&[4]), eps: 1e-6 }, rope));
    let few = RopeArgs { positions: &[0, 1], ..rope };
    shape(norm_rope(&x, norm, few));
    shape(norm_rope(&z.f32(&[3, 2, 4]), norm, rope));
    index(norm_rope(&x, norm, RopeArgs { positions: &[0, 1, 16], ..rope }));

    let write = |k: &Tensor, v: &Tensor, pools: [&Tensor; 2], gains: [usize; 2], slots: &[u32]| {
        let gains = gains.map(|n| z.f32(&[n]));
        let norms = Some(QkNorm { q_gain: &gains[0], k_gain: &gains[1], eps: 1e-6 });
        let [mut k_pool, mut v_pool] = pools.map(Clone::clone);
        let q = z.f32(&[3, 4, 8]);
        let new = UnrotatedHeads { q: &q, k, v, norms, rope, slots };
        write_heads(&new, &mut k_pool, &mut v_pool)
    };
    let (pool, slots) = (z.f32(&[5, 2, 8]), [4, 0, 1]);
    write(&x, &x, [&pool, &pool], [8, 8], &slots).unwrap();
    shape(write(&x, &z.f32(&[3, 1, 8]), [&pool, &pool], [8, 8], &slots));
    shape(write(&x, &x, [&pool, &z.f32(&[6, 2, 8])], [8, 8], &slots));
    shape(write(&x, &x, [&z.f32(&[5, 1, 8]), &z.f32(&[5, 1, 8])], [8, 8], &slots));
    shape(write(&x, &x, [&pool, &pool], [4, 8], &slots));
    shape(write(&x, &x, [&pool, &pool], [8, 4], &slots));
    shape(write(&x, &x, [&pool, &pool], [8, 8], &slots[1..]));
    index(write(&x, &x, [&pool, &pool], [8, 8], &[5, 0, 1]));
    let half = z.bf16(&[5, 2, 8]);
    dtype(write(&x, &z.bf16(&[3, 2, 8]), [&pool, &pool], [8, 8], &slots));
    dtype(write(&x, &x, [&half, &pool], [8, 8], &slots));
    dtype(write(&x, &x, [&pool, &half], [8, 8], &slots));
}

#[test]
fn linear_maps_take_operands_that_fit_only() {
    let z = zeros();
    let (x, w, out) = (z.f32(&[3, 4]), z.weight(&[5, 4], Dtype::F32), Dtype::F32);
    linear(&x, &w, Some(&z.f32(&[5])), out).unwrap();
    shape(linear(&x, &w, Some(&z.f32(&[4])), out));
    shape(linear(&z.f32(&[3, 5]), &w, None, out));
    shape(linear(&z.f32(&[3, 1, 4]), &w, None, out));
    dtype(linear(&z.bf16(&[3, 4]), &w, None, out));
    linear_add(&z.f32(&[3, 5]), &x, &w, None).unwrap();
    shape(linear_add(&z.f32(&[2, 5]), &x, &w, None));
    shape(linear_add(&z.f32(&[3, 5]), &x, &w, Some(&z.f32(&[4]))));

    let affine = |weight| Affine { weight, bias: None };
    let (wide, half) = (z.weight(&[5, 6], Dtype::F32), z.weight(&[5, 4], Dtype::BF16));
    linears(&x, &[affine(&w), affine(&w)]).unwrap();
    shape(linears(&x, &[affine(&w), affine(&wide)]));
    shape(linears(&x, &[affine(&w), affine(&half)]));
    shape(linears(&z.f32(&[3, 1, 4]), &[affine(&w)]));
    dtype(linears(&x, &[affine(&half)]));
    argument(linears(&x, &[]), "at least one weight");
    let other = z.weight(&[6, 4], Dtype::F32);
    shape(swiglu(&x, [affine(&w), affine(&other)]));
    shape(swiglu_kept(&x, [affine(&w), affine(&other)]));

    let (dy, few) = (z.f32(&[3, 5]), z.f32(&[2, 5]));
    linear_backward_input(&[&dy, &dy], &[&w, &w]).unwrap();
    shape(linear_backward_input(&[&dy, &few], &[&w, &w]));
    shape(linear_backward_input(&[&dy, &dy], &[&w, &wide]));
    argument(linear_backward_input(&[&dy], &[&w, &w]), "as many gradients as weights");
    argument(linear_backward_input(&[], &[]), "as many gradients as weights");
    let samples = Samples::of_lengths([3]);
    linear_backward_bias(&mut z.f32(&[5]), &dy, &samples).unwrap();
    shape(linear_backward_bias(&mut z.f32(&[4]), &dy, &samples));
    shape(linear_backward_bias(&mut z.f32(&[5]), &z.f32(&[3, 1, 5]), &samples));
    shape(linear_backward_bias(&mut z.f32(&[5]), &few, &samples));
    let weight = |dw: &[usize], dy: &Tensor| linear_backward_weight(&mut z.f32(dw), dy, &x, &samples);
    weight(&[5, 4], &dy).unwrap();
    shape(weight(&[5, 5], &dy));
    shape(weight(&[4, 4], &dy));
    shape(weight(&[5, 4], &few));
    dtype(weight(&[5, 4], &z.bf16(&[3, 5])));
}

#[test]
fn norms_and_tables_take_operands_that_fit_only() {
    let z = zeros();
    let (x, gain, samples) = (z.f32(&[3, 4]), z.f32(&[4]), Samples::of_lengths([3]));
    shape(rms_norm(&x, &z.f32(&[3]), 1e-6, Dtype::F32));
    shape(rms_norm(&z.f32(&[3, 0]), &z.f32(&[0]), 1e-6, Dtype::F32));
    let backward = |dy: &[usize], dw: &[usize], onto: &[usize]| {
        let norm = Norm { gain: &gain, eps: 1e-6 };
        rms_norm_backward(&x, norm, &z.f32(dy), &mut z.f32(dw), &samples, Some(z.f32(onto)))
    };
    backward(&[3, 4], &[4], &[3, 4]).unwrap();
    shape(backward(&[3, 5], &[4], &[3, 4]));
    shape(backward(&[3, 4], &[5], &[3, 4]));
    shape(backward(&[3, 4], &[4], &[2, 4]));
    shape(add(&x, &z.f32(&[4, 3])));
    dtype(add(&x, &z.bf16(&[3, 4])));
    dtype(accumulate(&mut z.bf16(&[3, 4]), &x));
    shape(silu_mul_backward(&x, &x, &z.f32(&[4, 3]), Dtype::F32));
    shape(embedding(&x.reshape(&[12]).unwrap(), &[0], Dtype::F32));
    dtype(embedding(&z.bf16(&[3, 4]), &[0], Dtype::F32));
    index(embedding(&x, &[3], Dtype::F32));
    shape(embedding_backward(&mut z.f32(&[3, 4]), &[0, 1], &x));
    shape(repeat_kv(&x, 3));
    shape(repeat_kv(&z.f32(&[1, 0, 4]), 0));
    shape(repeat_kv(&z.f32(&[1, 2, 4]), 3));
    shape(repeat_kv_backward(&z.f32(&[1, 3, 4]), 2));
    shape(repeat_kv_backward(&z.f32(&[1, 0, 4]), 0));
    let error = cat_seq(&x, &z.f32(&[3, 5])).unwrap_err().to_string();
    assert!(error.starts_with("cat_seq: expected a [T, ..], b [U, ..]"), "{error}");
    shape(cat_seq(&z.bf16(&[3, 5]), &z.bf16(&[3, 5])));
    for bad in [&[4][..], &[0, 4], &[4, 0], &[1, 4, 4]] {
        shape(Weight::new(&z.f32(bad), Dtype::F32));
        shape(WeightPacker::new(&z.0, bad, Dtype::F32));
    }
}

#[test]
fn a_loss_takes_operands_that_fit_only() {
    let z = zeros();
    let (head, samples) = (z.weight(&[6, 4], Dtype::F32), Samples::of_lengths([2]));
    let targets = [Some(Target { id: 5, weight: 1.0, bonus: 0.0 }), None];
    let good = LossRows::new(&targets, &samples);
    let loss = |x: &[usize], rows: &LossRows<'_>| cross_entropy(&z.f32(x), &head, rows, &mut 0.0);
    loss(&[2, 4], &good).unwrap();
    loss(&[2, 4], &LossRows { top_k: Some(1), min_p: 1.0, ..good }).unwrap();
    shape(loss(&[2, 5], &good));
    shape(loss(&[3, 4], &good));
    shape(loss(&[2, 1, 4], &good));
    for temperature in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        argument(loss(&[2, 4], &LossRows { temperature, ..good }), "a positive temperature");
    }
    for top_p in [0.0, 1.5, f32::NAN] {
        argument(loss(&[2, 4], &LossRows { top_p, ..good }), "a top-p in (0, 1]");
    }
    argument(loss(&[2, 4], &LossRows { min_p: 1.5, ..good }), "a min-p in [0, 1]");
    argument(loss(&[2, 4], &LossRows { top_k: Some(0), ..good }), "a top-k of at least 1");
    let set = |vocab| Some(KeptSet::from_ids(vocab, &[5]).unwrap());
    loss(&[2, 4], &LossRows { kept: &[set(6), None], ..good }).unwrap();
    argument(loss(&[2, 4], &LossRows { kept: &[set(6)], ..good }), "one entry per row");
    argument(loss(&[2, 4], &LossRows { kept: &[set(7), None], ..good }), "the vocabulary of the head");
    shape(loss(&[2, 4], &LossRows { samples: &Samples::of_lengths([1]), ..good }));
    let outside = [Some(Target { id: 6, weight: 1.0, bonus: 0.0 }), None];
    index(loss(&[2, 4], &LossRows { targets: &outside, ..good }));
    let x = z.f32(&[2, 4]);
    shape(cross_entropy_backward(&x, &head, &good, &mut 0.0, &mut z.f32(&[4, 6])));
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn attention_and_rotations_of_other_dtypes_are_refused_on_every_device() {
    for z in devices() {
        let slots = Slots::Runs { base: vec![0] };
        let mask = causal(&slots, &[0, 1, 2]);
        let (x, lse) = (z.u32(&[3, 2, 8]), z.f32(&[3, 2]));
        let saved = AttnSaved { q: &x, k: &x, v: &x, y: &x, lse: &lse };
        dtype_of(attention(&x, &x, &x, &mask), "attention: expected f32 or bf16, found u32");
        dtype_of(decode_attention(&x, &x, &x, &mask), "decode_attention: expected f32 or bf16, found u32");
        let text = "attention_backward: expected f32 or bf16, found u32";
        dtype_of(attention_backward(&saved, &z.f32(&[3, 2, 8]), &mask), text);

        let table = RopeTable::new(1e4, 8, 16).unwrap();
        let rope = RopeArgs { table: &table, positions: &[0, 1, 2] };
        let (x, half, whole) = (z.f32(&[3, 2, 8]), z.bf16(&[3, 2, 8]), z.u32(&[3, 2, 8]));
        rope_backward(&x, rope).unwrap().to_vec::<f32>().unwrap();
        dtype_of(rope_backward(&half, rope), "rope_backward: expected dy in f32, found bf16");
        dtype_of(rope_backward(&whole, rope), "rope_backward: expected f32 or bf16, found u32");
        for refused in [
            rope_rows(&x, rope, Dtype::U32),
            rope_rows(&whole, rope, Dtype::F32),
            rope_at(&whole, &table, 0),
            rope_pos(&whole, &[0, 1, 2], &table),
        ] {
            dtype_of(refused, "rope: expected f32 or bf16, found u32");
        }

        let (gain, samples) = (z.f32(&[8]), Samples::of_lengths([3]));
        let norm = Norm { gain: &gain, eps: 1e-6 };
        let mut dw = z.f32(&[8]);
        let to = GainGradient { dw: &mut dw, samples: &samples };
        let text = "norm_rope_backward: expected dy in f32, found bf16";
        dtype_of(norm_rope_backward(&x, norm, rope, &half, to, Dtype::F32), text);
        let [mut k_pool, mut v_pool] = [0, 1].map(|_| z.f32(&[5, 2, 8]));
        let new = UnrotatedHeads { q: &half, k: &x, v: &x, norms: None, rope, slots: &[4, 0, 1] };
        let text = "write_heads: expected one dtype, found bf16";
        dtype_of(write_heads(&new, &mut k_pool, &mut v_pool), text);
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn products_norms_and_gates_of_other_dtypes_are_refused_on_every_device() {
    for z in devices() {
        let (x, half, whole) = (z.f32(&[3, 4]), z.bf16(&[3, 4]), z.u32(&[3, 4]));
        let (w, samples) = (z.weight(&[5, 4], Dtype::F32), Samples::of_lengths([3]));
        for out in [Dtype::U32, Dtype::I32] {
            let of = |op: &str| format!("{op}: expected f32 or bf16, found {out}");
            dtype_of(linear(&x, &w, None, out), &of("linear"));
            dtype_of(rms_norm(&x, &z.f32(&[4]), 1e-6, out), &of("rms_norm"));
            dtype_of(silu_mul(&x, &x, out), &of("silu_mul"));
            dtype_of(silu_mul_backward(&x, &x, &x, out), &of("silu_mul_backward"));
        }
        let text = "linear_backward_weight: expected f32 or bf16, found u32";
        dtype_of(linear_backward_weight(&mut z.f32(&[4, 4]), &whole, &whole, &samples), text);
        let gain = z.f32(&[4]);
        dtype_of(rms_norm(&whole, &gain, 1e-6, Dtype::F32), "rms_norm: expected f32 or bf16, found u32");
        let text = "rms_norm: expected a gain in f32, found bf16";
        dtype_of(rms_norm(&x, &z.bf16(&[4]), 1e-6, Dtype::F32), text);
        let norm = Norm { gain: &gain, eps: 1e-6 };
        let text = "rms_norm_backward: expected f32 or bf16, found u32";
        dtype_of(rms_norm_backward(&whole, norm, &x, &mut z.f32(&[4]), &samples, None), text);
        dtype_of(silu_mul(&whole, &whole, Dtype::F32), "silu_mul: expected f32 or bf16, found u32");
        let text = "silu_mul: expected gate and up in one dtype, found bf16";
        dtype_of(silu_mul(&x, &half, Dtype::F32), text);
        let text = "silu_mul_backward: expected dy in f32, found bf16";
        dtype_of(silu_mul_backward(&half, &half, &half, Dtype::F32), text);
    }
}

#[test]
#[cfg_attr(not(xtrain_emu), ignore = "this build has no emulator")]
fn an_optimizer_step_takes_four_tensors_of_one_shape_only() {
    let scalars = AdamWScalars { s1: 0.1, s2: 0.9, s3: 0.1, keep: 1.0, step: 0.1, c2: 1.0, eps: 1e-8 };
    for z in devices() {
        let of = |shapes: [&[usize]; 4], sliced: bool| {
            let [mut w, g, mut m, mut v] = shapes.map(|shape| z.f32(shape));
            let mut all = [Update { w: &mut w, g: &g, m: &mut m, v: &mut v }];
            match sliced {
                true => sliced_adamw::update(&z.0, &mut all, [1.0; 2], &scalars),
                false => adamw_all(&mut all, 1.0, &scalars).map(|updated| updated.finite),
            }
        };
        for sliced in [false, true] {
            assert_eq!(of([&[4, 3]; 4], sliced), Ok(true));
            for other in 0..4 {
                let mut shapes = [&[4, 3][..]; 4];
                shapes[other] = &[400, 3];
                shape(of(shapes, sliced));
            }
        }
    }
}
