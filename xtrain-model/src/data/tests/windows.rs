//! Tests of splits and windows.
use super::*;

#[test]
fn the_last_tenth_is_for_validation() {
    let split = Split::tail(1_115_394, 0.1).unwrap();
    assert_eq!((split.train, split.validation), (0..1_003_854, 1_003_854..1_115_394));
    assert_eq!(Split::tail(7, 0.0).unwrap().validation, 7..7);
    assert_eq!(Split::tail(0, 0.5).unwrap().train, 0..0);
    for fraction in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
        assert!(Split::tail(10, fraction).is_err());
    }
}

#[test]
fn the_keys_of_an_epoch_are_the_random_numbers_of_its_address() {
    use super::order::epoch_window;
    use super::permutation::Permutation;
    use xtrain_tensor::rng::{Purpose, uniform_u64};
    for (seed, epoch) in [(0, 0), (1, 2), (2, 1), (u64::MAX, 7)] {
        let key = |i: usize| uniform_u64(seed, epoch, i as u32, Purpose::DataOrder);
        let want = Permutation::new(11, std::array::from_fn(key));
        for at in 0..11 {
            let number = 11 * epoch + at;
            let found = epoch_window(seed, number / 4, (number % 4) as u32, 4, 11);
            assert_eq!((found.epoch, found.window), (epoch, want.at(at)), "seed {seed}, epoch {epoch}");
        }
    }
}

#[test]
fn evaluation_covers_each_target_once() {
    for (part, context) in
        [(0..100, 7), (5..6, 3), (5..5, 3), (3..5, 64), (10..75, 64), (10..76, 64), (0..64, 1)]
    {
        let mut targets = Vec::new();
        for window in evaluation_windows(&part, context) {
            assert!(window.end - window.start <= context + 1);
            targets.extend(window.start + 1..window.end);
        }
        let want: Vec<u64> = (part.start + 1..part.end).collect();
        assert_eq!(targets, want, "{part:?} by {context}");
    }
}

#[test]
fn windows_do_not_depend_on_the_order_of_calls() {
    for order in [WindowOrder::Random, WindowOrder::Epochs] {
        let windows = Windows::new(100..1000, 16, 42, order).unwrap();
        let forward: Vec<_> = (0..200).map(|i| windows.range(i / 4, (i % 4) as u32, 4)).collect();
        let again = Windows::new(100..1000, 16, 42, order).unwrap();
        for i in (0..200).rev() {
            assert_eq!(again.range(i / 4, (i % 4) as u32, 4), forward[i as usize]);
        }
        assert!(forward.iter().all(|w| w.start >= 100 && w.end <= 1000 && w.end - w.start == 17));
        let other = Windows::new(100..1000, 16, 43, order).unwrap();
        assert_ne!(forward, (0..200).map(|i| other.range(i / 4, (i % 4) as u32, 4)).collect::<Vec<_>>());
    }
}

#[test]
fn the_windows_of_an_epoch_are_adjacent_and_begin_at_every_offset_that_is_left() {
    for (end, per_epoch, starts) in [(15, 1, 0..1), (18, 1, 0..4), (19, 2, 0..1), (20, 2, 0..2)] {
        let windows = Windows::new(10..end, 4, 7, WindowOrder::Epochs).unwrap();
        assert_eq!(windows.per_epoch(), per_epoch, "10..{end}");
        let first =
            |epoch| (0..per_epoch as u32).map(|at| windows.range(epoch, at, per_epoch as u32).start).min();
        let seen: std::collections::BTreeSet<u64> = (0..50).map(|epoch| first(epoch).unwrap() - 10).collect();
        assert_eq!(seen, starts.collect(), "10..{end}");
    }
}

#[test]
fn an_appended_window_is_a_document_of_its_own() {
    let window = |ids: &[u32]| TokenWindow::new(ids, &vec![true; ids.len()]);
    let mut joined = TokenWindow::default();
    joined.append(window(&[1, 2, 3]));
    assert_eq!(joined.starts, [0; 0]);
    joined.append(window(&[9]));
    assert_eq!(joined.starts, [0; 0], "a window without inputs");
    let mut two = window(&[4, 5]);
    two.append(window(&[6, 7, 8]));
    joined.append(two);
    assert_eq!((joined.inputs, joined.starts), (vec![1, 2, 4, 6, 7], vec![2, 3]));
}

#[test]
fn a_run_resumed_at_a_step_reads_what_the_whole_run_read() {
    let tokens = Tokens::from_ids((0..500).collect(), 500).unwrap();
    let windows = Windows::new(0..500, 16, 1, WindowOrder::Random).unwrap();
    let whole: Vec<_> = (0..20).map(|step| windows.batch(&tokens, step, 3).unwrap()).collect();
    let resumed = Windows::new(0..500, 16, 1, WindowOrder::Random).unwrap();
    assert_eq!(resumed.batch(&tokens, 13, 3).unwrap(), whole[13]);
    assert_eq!(whole[0][0].inputs.len(), 16);
    assert_eq!(whole[0][0].targets[0], Some(whole[0][0].inputs[1]));
}

#[test]
fn random_windows_reach_every_start_evenly() {
    let windows = Windows::new(0..74, 64, 7, WindowOrder::Random).unwrap();
    let mut seen = [0u32; 10];
    (0..10_000).for_each(|step| seen[windows.range(step, 0, 1).start as usize] += 1);
    assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
}

#[test]
fn an_epoch_shows_every_window_once() {
    let windows = Windows::new(50..50 + 16 * 37 + 9, 16, 3, WindowOrder::Epochs).unwrap();
    assert_eq!(windows.per_epoch(), 37);
    let (mut orders, mut phases) = (Vec::new(), Vec::new());
    for epoch in 0..20u64 {
        let mut starts: Vec<u64> =
            (0..37).map(|i| epoch * 37 + i).map(|n| windows.range(n / 5, (n % 5) as u32, 5).start).collect();
        orders.push(starts.clone());
        starts.sort_unstable();
        phases.push(starts[0]);
        assert!(starts.windows(2).all(|w| w[1] - w[0] == 16), "{starts:?}");
    }
    assert!(orders.windows(2).all(|w| w[0] != w[1]));
    assert!(phases.iter().any(|&phase| phase != phases[0]));
}

#[test]
fn a_permutation_contains_each_index_once() {
    for n in [1, 2, 3, 4, 5, 16, 17, 37, 1000, 10_000] {
        let permutation = Permutation::new(n, [1, 2, 3, 4, 5, n]);
        let mut seen: Vec<u64> = (0..n).map(|i| permutation.at(i)).collect();
        assert!(n < 37 || seen.iter().zip(0..).filter(|&(&x, i)| x == i).count() < 10);
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..n), "{n}");
    }
    assert!(Permutation::new(1 << 62, [0; 6]).at((1 << 62) - 1) < 1 << 62);
}

#[test]
fn data_shorter_than_a_context_is_refused() {
    assert!(Windows::new(0..17, 16, 0, WindowOrder::Epochs).is_ok());
    for (part, context) in [(0..16, 16), (0..0, 1), (5..5, 64), (0..10, u64::MAX), (0..10, 0)] {
        assert!(Windows::new(part, context, 0, WindowOrder::Random).is_err());
    }
    let error = Windows::new(0..2, 64, 0, WindowOrder::Random).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the training data (a context and one more token): expected at least 65 tokens, found 2"
    );
    assert!(Tokens::from_ids(vec![1, 5], 5).unwrap_err().to_string().contains("token 1 is 5"));
    assert_eq!(TokenWindow::new(&[], &[]), TokenWindow::default());
    assert!(TokenWindow::new(&[3], &[true]).targets.is_empty());
}
