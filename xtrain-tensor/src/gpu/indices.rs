//! Lists of ids, positions and slots on the device. A pass hands the same few lists to every layer:
//! each is brought over once, and found again by its values.
use std::sync::{Mutex, PoisonError};

use super::{At, Gpu, Launcher};
use crate::{Result, faults};

/// Lists that are kept; no operation takes more than a few at once.
const KEPT: usize = 16;

/// The lists that the device holds.
#[derive(Debug, Default)]
pub(super) struct Indices {
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    kept: Vec<List>,
    clock: u64,
}

#[derive(Debug)]
struct List {
    values: Vec<u32>,
    at: u64,
    capacity: usize,
    used: u64,
}

impl Gpu {
    /// Where the device holds `values`. Good until the next operation: a list that goes unused for
    /// sixteen others gives its place away, in the order of the stream.
    pub(crate) fn indices(&self, values: &[u32]) -> Result<At> {
        let shared = &*self.shared;
        let mut lists = shared.indices.lists.lock().unwrap_or_else(PoisonError::into_inner);
        lists.clock += 1;
        let now = lists.clock;
        let same = |list: &List| match faults::on("index-list-not-renewed") {
            true => list.values.len() == values.len(),
            false => list.values == values,
        };
        if let Some(list) = lists.kept.iter_mut().find(|list| same(list)) {
            list.used = now;
            return Ok(At(list.at));
        }
        let old = if lists.kept.len() < KEPT { None } else { lists.kept.iter_mut().min_by_key(|l| l.used) };
        let list = match old {
            Some(list) => list,
            None => {
                lists.kept.push(List { values: Vec::new(), at: 0, capacity: 0, used: 0 });
                lists.kept.last_mut().expect("just pushed")
            }
        };
        if list.capacity < values.len() {
            list.values.clear();
            let capacity = values.len().next_power_of_two().max(64);
            let at = shared.memory.allocate(&*shared.launcher, 4 * capacity)?;
            if list.capacity > 0 {
                shared.launcher.free(list.at);
            }
            (list.at, list.capacity) = (at, capacity);
        }
        // what the list held is gone, whether the copy succeeds or not
        list.values.clear();
        self.send(list.at, bytemuck::cast_slice(values))?;
        list.values.extend_from_slice(values);
        list.used = now;
        Ok(At(list.at))
    }
}

impl Indices {
    /// Gives the device its memory back.
    pub(super) fn free_all(&self, launcher: &dyn Launcher) {
        for list in self.lists.lock().unwrap_or_else(PoisonError::into_inner).kept.drain(..) {
            if list.capacity > 0 {
                launcher.free(list.at);
            }
        }
    }
}
