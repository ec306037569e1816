//! Which window comes when: a pure function of (seed, step).
use xtrain_tensor::rng::{Purpose, uniform_u64};

use super::Permutation;

/// In which order the windows of a part come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Each window is drawn uniformly: sample i of step t is addressed (seed, t, i). A window of running text
    /// starts anywhere.
    Random,
    /// All windows once in each epoch, in an order drawn for the epoch. Those of running text lie side by side;
    /// what is left over at the ends, less than a window, changes from epoch to epoch.
    Epochs,
}

/// A window of an epoch.
pub(super) struct Epoch {
    pub(super) epoch: u64,
    /// Which of the epoch's windows.
    pub(super) place: u64,
}

/// The window that comes as sample `number` of a run whose epochs have `count` windows.
pub(super) fn turn(seed: u64, number: u128, count: u64) -> Epoch {
    let epoch = (number / u128::from(count)) as u64;
    let key = |i| uniform_u64(seed, epoch, i as u32, Purpose::DataOrder);
    let order = Permutation::new(count, std::array::from_fn(key));
    Epoch { epoch, place: order.at((number % u128::from(count)) as u64) }
}

/// A number below `n`, uniform: the high half of u * n, where u has that address.
pub(super) fn draw((seed, id, position): (u64, u64, u32), n: u64) -> u64 {
    let u = uniform_u64(seed, id, position, Purpose::DataOrder);
    ((u128::from(u) * u128::from(n)) >> 64) as u64
}
