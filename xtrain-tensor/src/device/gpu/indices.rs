//! Cache of index lists (token ids, positions, slots) on the device. A pass uses the same few lists in every layer:
//! each is uploaded once and then found by value. The lists of a step reuse the addresses of the previous step, in
//! order of first use, so that a captured graph stays valid. Lists that a kernel writes at each step are also found
//! by value, see [`Indices::stage`].
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::launch::{At, Launcher};
use super::stream::Stream;
use crate::error::Result;
use crate::faults::{self, Fault};

/// Number of cached lists: more than any single operation uses.
const MAX_LISTS: usize = 32;

/// The index lists on the device.
#[derive(Debug, Default)]
pub(super) struct Indices {
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    cached: Vec<List>,
    /// Lists that a kernel of this step writes, and their addresses.
    staged: Vec<(Vec<u32>, At)>,
    /// Number of lookups, for LRU eviction.
    clock: u64,
    /// Step counter; a step ends at [`Indices::submit_step`].
    step: u64,
    /// Number of distinct lists used in this step.
    distinct: usize,
}

#[derive(Debug)]
struct List {
    values: Vec<u32>,
    at: u64,
    capacity: usize,
    /// Lookup and step of the last use.
    used: u64,
    step: u64,
}

impl Lists {
    fn find(&self, values: &[u32]) -> Option<usize> {
        let same = |list: &List| match faults::on(Fault::StaleIndexList) {
            true => list.values.len() == values.len(),
            false => list.values == values,
        };
        self.cached.iter().position(same)
    }

    /// Index for a new list: the next entry that this step has not used, else a new entry, else the least recently
    /// used one. The flag is true if queued kernels may still read that entry.
    fn entry_for_new_list(&mut self) -> (usize, bool) {
        let unused = (self.distinct..self.cached.len()).find(|&i| self.cached[i].step != self.step);
        if let Some(entry) = unused {
            return (entry, false);
        }
        if self.cached.len() < MAX_LISTS {
            self.cached.push(List { values: Vec::new(), at: 0, capacity: 0, used: 0, step: u64::MAX });
            return (self.cached.len() - 1, false);
        }
        let oldest = self.cached.iter().enumerate().min_by_key(|(_, list)| list.used);
        oldest.map_or((0, true), |(entry, list)| (entry, list.step == self.step))
    }

    /// Marks a list as used in this step and returns its address.
    fn mark(&mut self, entry: usize) -> At {
        let list = &mut self.cached[entry];
        self.distinct += usize::from(list.step != self.step);
        (list.used, list.step) = (self.clock, self.step);
        At(list.at)
    }
}

impl Indices {
    /// Returns the device address of `values`, uploading them if necessary. Valid for the calling operation only.
    pub(super) fn address(&self, stream: &Stream, values: &[u32]) -> Result<At> {
        let mut lists = self.lock();
        lists.clock += 1;
        if let Some(&(_, at)) = lists.staged.iter().find(|(staged, _)| staged == values) {
            return Ok(at);
        }
        if let Some(found) = lists.find(values) {
            return Ok(lists.mark(found));
        }
        let (entry, in_use) = lists.entry_for_new_list();
        if in_use {
            stream.flush()?;
        }
        let list = &mut lists.cached[entry];
        // the old contents are invalid even if the copy fails
        list.values.clear();
        if list.capacity < values.len() {
            let capacity = values.len().next_power_of_two().max(64);
            let at = stream.allocate(4 * capacity)?;
            if list.capacity > 0 {
                stream.launcher().free(list.at);
            }
            (list.at, list.capacity) = (at, capacity);
        }
        stream.copy_to_device(list.at, bytemuck::cast_slice(values))?;
        list.values.extend_from_slice(values);
        Ok(lists.mark(entry))
    }

    /// Replaces the lists that an already queued kernel writes.
    pub(super) fn stage(&self, lists: Vec<(Vec<u32>, At)>) {
        self.lock().staged = lists;
    }

    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a step. No operation is in progress and the queue is empty.
    pub(super) fn submit_step(&self) {
        let mut lists = self.lock();
        lists.step += 1;
        lists.distinct = 0;
        lists.staged.clear();
    }

    /// Returns the memory to the device.
    pub(super) fn free_all(&self, launcher: &dyn Launcher) {
        for list in self.lock().cached.drain(..) {
            if list.capacity > 0 {
                launcher.free(list.at);
            }
        }
    }
}
