//! Words of a fixed length over a small alphabet, numbered from 0.
use rand::RngExt as _;
use xtrain_tensor::rng::PhiloxRng;

/// Word `index` over `alphabet`: the digits of `index` in base `alphabet.len()`, most significant first. `alphabet`
/// is ASCII.
pub(super) fn word(mut index: u64, alphabet: &str, length: usize) -> String {
    let (letters, base) = (alphabet.as_bytes(), alphabet.len() as u64);
    let mut text = vec![b' '; length];
    for c in text.iter_mut().rev() {
        *c = letters[(index % base) as usize];
        index /= base;
    }
    text.into_iter().map(char::from).collect()
}

/// The number of `word`, the inverse of [`word`]. `None`: another length, or a character outside `alphabet`.
pub(super) fn index(word: &str, alphabet: &str, length: usize) -> Option<u64> {
    if word.len() != length {
        return None;
    }
    word.chars().try_fold(0, |index, c| Some(index * alphabet.len() as u64 + alphabet.find(c)? as u64))
}

/// A uniformly distributed number below `size` for which `accepts` holds.
pub(super) fn draw(rng: &mut PhiloxRng, size: u64, accepts: impl Fn(u64) -> bool) -> u64 {
    loop {
        let index = rng.random_range(0..size);
        if accepts(index) {
            return index;
        }
    }
}
