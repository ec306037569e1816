//! The most probable tokens.
use xtrain_tensor::softmax::lse_row;

use super::super::top::top_logprobs;
use super::*;

/// Compares rows with equal logits, zeros of both signs and -inf with a stable sort. Returns the first difference.
fn compared_with_a_sort() -> Result<(), String> {
    let tied: Vec<f32> = (0..300_u16).map(|i| f32::from(i * 7 % 13) - 6.0).collect();
    let zeros = vec![0.0, -0.0, -1.0, -0.0, 0.0];
    for row in [wide_row(501, 3.0), tied, zeros, vec![f32::NEG_INFINITY, 2.0], vec![1.5]] {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap());
        order.retain(|&token| row[token] != f32::NEG_INFINITY);
        for n in [0, 1, 2, 5, 40, 64, 65, row.len(), 1000] {
            let found = top_logprobs(&row, n);
            let want = order.iter().take(n).map(|&i| (i as u32, (row[i] - lse_row(&row)).to_bits()));
            if !found.iter().map(|top| (top.token, top.logprob.to_bits())).eq(want.clone()) {
                return Err(format!(
                    "{n} of {}: {found:?}, expected {:?}",
                    row.len(),
                    want.collect::<Vec<_>>()
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn the_most_probable_tokens_are_the_first_of_a_stable_sort() {
    assert_eq!(compared_with_a_sort(), Ok(()));
}

#[cfg(feature = "faults")]
#[test]
fn equal_tokens_in_another_order_are_found() {
    use xtrain_tensor::faults::{self, Fault};

    let found = faults::with(Fault::TopTokensInOtherOrder, compared_with_a_sort);
    assert!(found.expect_err("the fault is planted").starts_with("2 of 300: "));
}
