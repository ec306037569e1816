//! The order of windows: a pure function of (seed, step).
use xtrain_tensor::rng::{Purpose, uniform_u64};

use super::permutation::Permutation;

/// The order of training windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowOrder {
    /// Each window is drawn uniformly: example i of step t has the random number at address (seed, t, i). A window of
    /// running text starts anywhere.
    Random,
    /// Each window once per epoch, in a new random order for each epoch. Windows of running text are adjacent. The
    /// remainder at the two ends, less than one window, varies between epochs.
    Epochs,
}

/// A window of an epoch.
pub(super) struct EpochWindow {
    pub(super) epoch: u64,
    /// The index of the window in the data.
    pub(super) window: u64,
}

/// The window of example `index` of the `batch` examples of `step`, if an epoch has `count` windows.
pub(super) fn epoch_window(seed: u64, step: u64, index: u32, batch: u32, count: u64) -> EpochWindow {
    let number = u128::from(step) * u128::from(batch) + u128::from(index);
    let epoch = (number / u128::from(count)) as u64;
    let key = |i| uniform_u64(seed, epoch, i as u32, Purpose::DataOrder);
    let order = Permutation::new(count, std::array::from_fn(key));
    EpochWindow { epoch, window: order.at((number % u128::from(count)) as u64) }
}

/// A uniform number below `n`: the high half of u * n, with u the random number at address (seed, id, position).
pub(super) fn draw(seed: u64, id: u64, position: u32, n: u64) -> u64 {
    let u = uniform_u64(seed, id, position, Purpose::DataOrder);
    ((u128::from(u) * u128::from(n)) >> 64) as u64
}
