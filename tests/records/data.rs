//! Windows of training data: their order for several seeds, the packing of documents, the split.
use std::ops::Range;

use xtrain::model::data::{
    DocumentWindows, Overflow, Permutation, Pieces, Role, Split, Tokens, WindowOrder, Windows,
    evaluation_windows,
};

use crate::{Record, list, row};

const ORDERS: [WindowOrder; 2] = [WindowOrder::Random, WindowOrder::Epochs];

/// Lengths of documents: longer than a window, of equal lengths, of one token, empty of targets.
const LENGTHS: [u64; 12] = [5, 1, 9, 2, 7, 4, 23, 4, 3, 8, 6, 13];

pub(crate) fn record() -> Record {
    let mut out = Record::default();
    permutations(&mut out);
    windows(&mut out);
    splits(&mut out);
    let tokens = documents();
    for overflow in [Overflow::Split, Overflow::Truncate] {
        packing(&mut out, &tokens, overflow);
    }
    out
}

fn permutations(out: &mut Record) {
    out.section("permutations");
    for n in [1, 2, 3, 4, 5, 16, 17, 30] {
        for keys in [[0; 6], [1, 2, 3, 4, 5, 6], [u64::MAX, 7, 7, 0, 1 << 63, 9]] {
            let order = Permutation::new(n, keys);
            let images: Vec<u64> = (0..n).map(|i| order.at(i)).collect();
            let mut sorted = images.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..n), "{n}: not a permutation");
            out.line(row(format!("{n} {}", keys[0]), 24, list(images)));
        }
    }
}

fn windows(out: &mut Record) {
    for (part, context) in [(0..41, 8), (100..148, 5), (3..12, 8), (0..9, 1)] {
        out.section(format!("windows of {context} in {part:?}: starts of 5 steps of 3"));
        for order in ORDERS {
            for seed in [0, 1, 1 << 40] {
                let windows = Windows::new(part.clone(), context, seed, order).unwrap();
                let starts: Vec<Vec<u64>> =
                    (0..5).map(|step| (0..3).map(|at| windows.range(step, at, 3).start).collect()).collect();
                out.line(row(format!("{order:?} {seed} of {}", windows.per_epoch()), 28, list(starts)));
            }
        }
    }
    for (part, context) in [(0..8, 8), (0..8, 0), (5..5, 1)] {
        let error = Windows::new(part.clone(), context, 0, WindowOrder::Random).unwrap_err();
        out.line(row(format!("{part:?} by {context}"), 28, error.to_string()));
    }
}

fn splits(out: &mut Record) {
    out.section("splits of 10 tokens; of documents that end at 3, 4, 9, 10");
    for fraction in [0.0, 0.01, 0.1, 0.25, 0.3, 0.5, 0.95, 1.0, -0.1] {
        let show = |split: Result<Split, _>| match split {
            Ok(Split { train, validation }) => format!("{train:?} {validation:?}"),
            Err(error) => format!("{error}"),
        };
        let text = [show(Split::tail(10, fraction)), show(Split::of_documents(&[3, 4, 9, 10], fraction))]
            .join(" | ");
        out.line(row(fraction.to_string(), 8, text));
    }
    out.section("evaluation windows");
    for (part, context) in [(0..10, 3), (0..11, 3), (5..6, 3), (5..7, 3), (7..7, 2), (0..4, 0)] {
        out.line(row(format!("{part:?} by {context}"), 12, list(evaluation_windows(&part, context))));
    }
}

/// Documents of which every third token is context, and one is context only.
fn documents() -> Tokens {
    let document = |(at, &len): (usize, &u64)| -> Vec<(u32, Role)> {
        let role = |i: u64| if at == 7 || i.is_multiple_of(3) { Role::Context } else { Role::Target };
        (0..len).map(|i| ((10 * at as u64 + i) as u32 % 300, role(i))).collect()
    };
    Tokens::from_documents(LENGTHS.iter().enumerate().map(document), 300).unwrap()
}

fn packing(out: &mut Record, tokens: &Tokens, overflow: Overflow) {
    let all = 0..tokens.len();
    let part = 4..60;
    for (part, context) in [(&all, 8), (&all, 5), (&all, 30), (&part, 8), (&part, 1)] {
        out.section(format!("documents of {part:?} in windows of {context}, {overflow:?}"));
        let pieces = Pieces::cut(tokens, part, context, overflow).unwrap();
        out.line(row("pieces", 14, list(&pieces.ranges)));
        let stats = pieces.packing_stats;
        out.line(row("stats", 14, format!("{stats:?}")));
        best_fit(&pieces.ranges, context);
        for order in ORDERS {
            let windows = DocumentWindows::pack(&pieces, context, 5, order).unwrap();
            let first = list((0..4).map(|at| windows.ranges(0, at, 4)));
            let second = list((0..2).map(|at| windows.ranges(9, at, 2)));
            out.line(row(format!("{order:?} of {}", windows.per_epoch()), 14, format!("{first} | {second}")));
        }
        let windows = DocumentWindows::pack(&pieces, context, 5, WindowOrder::Epochs).unwrap();
        let example = windows.batch(tokens, 0, 1).unwrap().remove(0);
        let targets = example.targets.iter().map(|target| target.map_or("-".into(), |id| id.to_string()));
        let targets = targets.collect::<Vec<_>>().join(" ");
        let text = format!("{} | {targets} | {}", list(example.inputs), list(example.starts));
        out.line(row("an example", 14, text));
    }
}

/// The number of windows by a direct search for the fullest window with room equals that of the packing.
fn best_fit(ranges: &[Range<u64>], context: u64) {
    let mut lengths: Vec<u64> = ranges.iter().map(|range| range.end - range.start - 1).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    let mut room: Vec<u64> = Vec::new();
    for length in lengths {
        match room.iter_mut().filter(|room| **room >= length).min() {
            Some(fullest) => *fullest -= length,
            None => room.push(context - length),
        }
    }
    let pieces = Pieces { ranges: ranges.to_vec(), ..Pieces::default() };
    let packed = DocumentWindows::pack(&pieces, context, 0, WindowOrder::Epochs).unwrap();
    assert_eq!(packed.per_epoch(), room.len() as u64);
}
