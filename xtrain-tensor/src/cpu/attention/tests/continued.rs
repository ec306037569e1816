//! Rows that are continued after the chunks they share with other sequences.
use super::super::blocks::{Limits, Plan};
use super::*;
use crate::operands::Heads;

/// Completions of a few prompts that start with the same text, in bf16.
fn completions(rng: &mut CaseRng) -> Case {
    let (page, prompts, each) = (rng.pick(&[16, 64, 80]), 1 + rng.below(3), 1 + rng.below(20));
    let (text, longest) = (rng.below(150), 300);
    let mut pages = 0u32..;
    let first: Vec<u32> = pages.by_ref().take(text / page).collect();
    let (mut table, mut all) = (Vec::new(), Vec::new());
    for _ in 0..prompts {
        let len = text + rng.below(100);
        let mut prompt = first.clone();
        prompt.extend(pages.by_ref().take(len / page - first.len()));
        for _ in 0..each {
            let (last, rows) = (len + rng.below(longest - len), rng.pick(&[1, 1, 1, 2, 9]));
            let mut of_sequence = prompt.clone();
            of_sequence.extend(pages.by_ref().take((last + rows).div_ceil(page) - prompt.len()));
            for row in 0..rows {
                all.push((table.len() as u32, (last + row) as u32));
            }
            table.push(of_sequence);
        }
    }
    if rng.below(4) == 0 {
        rng.shuffle(&mut all);
    }
    let (seq, pos) = all.into_iter().unzip();
    let n_slots = pages.next().expect("pages do not end") as usize * page;
    Case {
        dtype: Dtype::BF16,
        kinds: [Kind::Plain; 4],
        heads: rng.pick(&[
            [2, 1, 32],
            [4, 2, 16],
            [6, 2, 64],
            [8, 1, 8],
            [10, 2, 16],
            [16, 1, 8],
            [17, 1, 8],
        ]),
        seq,
        pos,
        slots: Slots::Pages { page, table },
        n_slots,
        window: rng.pick(&[None, None, None, Some(100), Some(200)]),
    }
}

/// The number of rows that are continued after the chunks they share, with one thread and AMX.
fn continued(case: &Case) -> usize {
    let ([nh, nkv, hd], mask) = (case.heads, case.attn_mask());
    Plan::new(&mask, &Limits::new(Heads { nh, nkv, hd }, mask.rows(), 1, true)).continued
}

#[test]
fn completions_of_prompts_that_start_with_the_same_text_have_the_bits_of_the_reference() {
    let mut rows = 0;
    for number in 0..40 {
        let mut rng = CaseRng { case: 8_000 + number, at: 0 };
        let case = completions(&mut rng);
        rows += continued(&case);
        check(&case, &mut rng, false);
    }
    println!("{rows} rows are continued");
    assert!(rows > 200, "only {rows} rows are continued");
}

#[cfg(feature = "faults")]
#[test]
fn faults_of_continued_rows_are_detected() {
    use crate::Simd;
    use crate::faults::{Fault, with};
    if !simds().contains(&Simd::Amx) {
        println!("NOT RUN, rows are continued with AMX only");
        return;
    }
    let mut rng = CaseRng { case: 8_000, at: 0 };
    let mut cases = Vec::new();
    while cases.len() < 5 {
        let case = completions(&mut rng);
        if continued(&case) > 0 {
            cases.push((case.operands(&mut rng), case));
        }
    }
    for fault in [Fault::SharedSumsLost, Fault::FirstOwnChunkSkipped, Fault::SharedSumsOfNextRow] {
        for (operands, case) in &cases {
            let y = || bits(&compute(&Device::cpu_with(1, Simd::Amx), case, operands, false)[0]);
            assert_ne!(with(fault, y), y(), "{fault} is not detected in {case:?}");
        }
    }
}
