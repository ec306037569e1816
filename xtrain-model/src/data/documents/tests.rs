//! Tests of document windows against their contracts.
use std::slice::from_ref;

use super::*;
use crate::data::Role;
use crate::data::order::draw;

/// Documents of these lengths with consecutive ids. One token in three is context only.
fn tokens(lengths: &[usize]) -> Tokens {
    let mut next = 0;
    let documents = lengths.iter().map(|&length| {
        let ids = next..next + length as u32;
        next = ids.end;
        ids.map(|id| (id, if id % 3 == 1 { Role::Context } else { Role::Target })).collect::<Vec<_>>()
    });
    Tokens::from_documents(documents.collect::<Vec<_>>(), 1 << 19).unwrap()
}

fn cut(tokens: &Tokens, context: u64, overflow: Overflow) -> Pieces {
    Pieces::cut(tokens, &(0..tokens.len()), context, overflow).unwrap()
}

#[test]
fn each_piece_goes_into_the_fullest_window_that_holds_it() {
    // predictions: 2, 9, 4, 10, 1, 5, 6 in windows of 10
    let tokens = tokens(&[3, 10, 5, 11, 2, 6, 7]);
    let pieces = cut(&tokens, 10, Overflow::Split);
    let packed = DocumentWindows::pack(&pieces, 10, 0, WindowOrder::Epochs).unwrap();
    let windows: Vec<&[Range<u64>]> =
        packed.starts.windows(2).map(|at| &packed.pieces[at[0]..at[1]]).collect();
    let want: [&[Range<u64>]; 4] =
        [from_ref(&(18..29)), &[3..13, 29..31], &[13..18, 37..44], &[0..3, 31..37]];
    assert_eq!(windows, want);
    assert_eq!(pieces.packing_stats, PackingStats { documents: 7, long: 0, empty: 0, inputs: 37 });
}

#[test]
fn an_epoch_reads_every_document_once_and_predicts_nothing_across_an_end() {
    for case in 0..60 {
        let roll = |i: u32, n: u64| draw(41, case, i, n) as usize;
        let lengths: Vec<usize> = (0..=roll(0, 40)).map(|i| 1 + roll(1 + i as u32, 30)).collect();
        let (tokens, context) = (tokens(&lengths), 1 + roll(100, 16) as u64);
        let pieces = cut(&tokens, context, Overflow::Split);
        let Ok(windows) = DocumentWindows::pack(&pieces, context, case, WindowOrder::Epochs) else {
            assert!(pieces.ranges.is_empty(), "{lengths:?}");
            continue;
        };
        let firsts: Vec<u32> = tokens.ends().unwrap().iter().map(|&end| end as u32).collect();
        let begins = |id: u32| id == 0 || firsts.contains(&id);
        let mut targets: Vec<u32> = Vec::new();
        for step in 0..windows.per_epoch() {
            let sample = windows.batch(&tokens, step, 1).unwrap().remove(0);
            assert!((1..=context as usize).contains(&sample.inputs.len()));
            let starts = [&[0][..], &sample.starts].concat();
            for (at, (&input, target)) in sample.inputs.iter().zip(&sample.targets).enumerate() {
                // ids are positions: a piece is a run of consecutive ids, and a target is the next id
                assert!(target.is_none_or(|id| id == input + 1 && !begins(id) && id % 3 != 1));
                let continues = at > 0 && input == sample.inputs[at - 1] + 1;
                assert!(continues != starts.contains(&at), "{sample:?}");
                targets.extend(target);
            }
        }
        targets.sort_unstable();
        let all = (0..tokens.len() as u32).filter(|&id| !begins(id) && id % 3 != 1);
        assert_eq!(targets, all.collect::<Vec<_>>(), "{lengths:?} in {context}");
    }
}

#[test]
fn windows_are_a_function_of_seed_and_step() {
    let tokens = tokens(&[7, 3, 12, 5, 9, 2, 4, 8, 6, 11]);
    let pieces = cut(&tokens, 8, Overflow::Split);
    for order in [WindowOrder::Random, WindowOrder::Epochs] {
        let windows = |seed| DocumentWindows::pack(&pieces, 8, seed, order).unwrap();
        let whole: Vec<_> = (0..20).map(|step| windows(3).batch(&tokens, step, 3).unwrap()).collect();
        let later = windows(3);
        for step in (0..20).rev() {
            assert_eq!(later.batch(&tokens, step, 3).unwrap(), whole[step as usize]);
        }
        let other: Vec<_> = (0..20).map(|step| windows(4).batch(&tokens, step, 3).unwrap()).collect();
        assert_ne!(other, whole);
    }
}

#[test]
fn a_long_conversation_is_truncated_and_one_without_a_target_is_omitted() {
    let role = |target: bool| if target { Role::Target } else { Role::Context };
    // 20 tokens with targets from the 10th; 6 with targets from the 4th; a prompt only; a single token
    let document = |n: u32, from: u32| (0..n).map(move |i| (i, role(i >= from))).collect::<Vec<_>>();
    let all = [document(20, 10), document(6, 4), document(9, 9), document(1, 0)];
    let tokens = Tokens::from_documents(all, 100).unwrap();
    let pieces = cut(&tokens, 12, Overflow::Truncate);
    assert_eq!(pieces.ranges, [0..13, 20..26]);
    assert_eq!(pieces.packing_stats, PackingStats { documents: 4, long: 1, empty: 2, inputs: 17 });
    let pieces = cut(&tokens, 8, Overflow::Truncate);
    assert_eq!(pieces.ranges, from_ref(&(20..26)));
    assert_eq!(pieces.packing_stats, PackingStats { documents: 4, long: 1, empty: 3, inputs: 5 });
    let pieces = cut(&tokens, 8, Overflow::Split);
    assert_eq!(pieces.ranges, [8..17, 16..20, 20..26]);
}

#[test]
fn documents_that_cannot_be_packed_are_refused() {
    let tokens = tokens(&[1, 1, 2]);
    assert!(Pieces::cut(&tokens, &(0..4), 0, Overflow::Split).is_err());
    let pieces = Pieces::cut(&tokens, &(0..2), 4, Overflow::Split).unwrap();
    let error = DocumentWindows::pack(&pieces, 4, 0, WindowOrder::Epochs).unwrap_err().to_string();
    assert!(error.contains("a document with a target"), "{error}");
    let long = Pieces { ranges: std::iter::once(0..9).collect(), ..Pieces::default() };
    assert!(DocumentWindows::pack(&long, 4, 0, WindowOrder::Epochs).is_err());
}
