//! Lists of ids, positions and slots on the device. A pass hands the same few lists to every layer: each is brought
//! over once, and found again by its values. The lists of one step come to the places of the step before, in the
//! order in which they are first asked for, so that a graph of kernels finds them where it did. Lists that a kernel
//! writes, turn by turn, are found by their values too: [`Gpu::foretell`].
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{At, Gpu, Launcher};
use crate::{
    Result,
    faults::{self, Fault},
};

/// Lists that are kept: more than any operation asks for at once.
const KEPT: usize = 32;

/// The lists that the device holds.
#[derive(Debug, Default)]
pub(super) struct Indices {
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    kept: Vec<List>,
    /// What kernels of this step write, and where.
    foretold: Vec<(Vec<u32>, At)>,
    /// Requests so far.
    clock: u64,
    /// Steps so far: one ends when something is brought to the host.
    step: u64,
    /// Lists of this step.
    distinct: usize,
}

#[derive(Debug)]
struct List {
    values: Vec<u32>,
    at: u64,
    capacity: usize,
    /// When, and in which step, it was last asked for.
    used: u64,
    step: u64,
}

impl Lists {
    fn find(&self, values: &[u32]) -> Option<usize> {
        let same = |list: &List| match faults::on(Fault::IndexListNotRenewed) {
            true => list.values.len() == values.len(),
            false => list.values == values,
        };
        self.kept.iter().position(same)
    }

    /// A place for a new list: the next one that this step has not used, else a fresh one, else that of the list
    /// which went unused for longest. True: kernels that wait may read it.
    fn place(&mut self) -> (usize, bool) {
        let unused = (self.distinct..self.kept.len()).find(|&i| self.kept[i].step != self.step);
        if let Some(place) = unused {
            return (place, false);
        }
        if self.kept.len() < KEPT {
            self.kept.push(List { values: Vec::new(), at: 0, capacity: 0, used: 0, step: u64::MAX });
            return (self.kept.len() - 1, false);
        }
        let oldest = self.kept.iter().enumerate().min_by_key(|(_, list)| list.used);
        oldest.map_or((0, true), |(place, list)| (place, list.step == self.step))
    }

    /// Marks a list of this step.
    fn mark(&mut self, place: usize) -> At {
        let list = &mut self.kept[place];
        self.distinct += usize::from(list.step != self.step);
        (list.used, list.step) = (self.clock, self.step);
        At(list.at)
    }
}

impl Gpu {
    /// Where the device holds `values`. Good for the operation that asks.
    pub(crate) fn indices(&self, values: &[u32]) -> Result<At> {
        let shared = &*self.shared;
        let mut lists = shared.indices.lock();
        lists.clock += 1;
        if let Some(&(_, at)) = lists.foretold.iter().find(|(foretold, _)| foretold == values) {
            return Ok(at);
        }
        if let Some(found) = lists.find(values) {
            return Ok(lists.mark(found));
        }
        let (place, awaited) = lists.place();
        if awaited {
            self.flush()?;
        }
        let list = &mut lists.kept[place];
        // what the list held is gone, whether the copy succeeds or not
        list.values.clear();
        if list.capacity < values.len() {
            let capacity = values.len().next_power_of_two().max(64);
            let at = self.allocate(4 * capacity)?;
            if list.capacity > 0 {
                shared.launcher.free(list.at);
            }
            (list.at, list.capacity) = (at, capacity);
        }
        self.send(list.at, bytemuck::cast_slice(values))?;
        list.values.extend_from_slice(values);
        Ok(lists.mark(place))
    }
}

impl Gpu {
    /// Until the step ends, each of these lists is where a kernel that was launched before will have written it.
    pub(crate) fn foretell(&self, lists: impl Iterator<Item = (Vec<u32>, At)>) {
        self.shared.indices.lock().foretold = lists.collect();
    }

    /// Such lists are no more.
    pub(crate) fn forget_foretold(&self) {
        self.shared.indices.lock().foretold.clear();
    }
}

impl Indices {
    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a step: no operation is under way, and nothing waits.
    pub(super) fn submit_step(&self) {
        let mut lists = self.lock();
        lists.step += 1;
        lists.distinct = 0;
        lists.foretold.clear();
    }

    /// Gives the device its memory back.
    pub(super) fn free_all(&self, launcher: &dyn Launcher) {
        for list in self.lock().kept.drain(..) {
            if list.capacity > 0 {
                launcher.free(list.at);
            }
        }
    }
}
