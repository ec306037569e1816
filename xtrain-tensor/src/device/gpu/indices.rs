//! Cache of index lists (token ids, positions, slots) on the device. A pass uses the same few lists in every layer:
//! each is uploaded once and then found by value. The lists of a step reuse the addresses of the previous step, in
//! order of first use, so that a captured graph stays valid. Lists that a kernel writes at each step are also found
//! by value, see [`Gpu::stage_indices`](super::Gpu::stage_indices).
use super::launch::{At, Launcher};
use super::stream::Stream;
use crate::error::Result;
use crate::faults::{self, Fault};

/// Number of cached lists: more than any single operation uses. A training step has a table for each launch of weight
/// gradients, at most seven per layer. With more lists, a step is submitted in parts.
const MAX_LISTS: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Indices {
    cached: Vec<List>,
    /// Lists that a kernel of this step writes, and their addresses.
    pub(super) staged: Vec<(Vec<u32>, At)>,
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

impl Indices {
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

    pub(super) fn address(&mut self, stream: &Stream, values: &[u32]) -> Result<At> {
        self.clock += 1;
        if let Some(&(_, at)) = self.staged.iter().find(|(staged, _)| staged == values) {
            return Ok(at);
        }
        if let Some(found) = self.find(values) {
            return Ok(self.mark(found));
        }
        let (entry, in_use) = self.entry_for_new_list();
        if in_use && !faults::on(Fault::ListOfQueuedKernelReplaced) {
            stream.flush()?;
        }
        let list = &mut self.cached[entry];
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
        Ok(self.mark(entry))
    }

    /// Ends a step. No operation is in progress and the queue is empty.
    pub(super) fn submit_step(&mut self) {
        self.step += 1;
        self.distinct = 0;
        self.staged.clear();
    }

    pub(super) fn free_all(&mut self, launcher: &dyn Launcher) {
        self.cached.drain(..).filter(|list| list.capacity > 0).for_each(|list| launcher.free(list.at));
    }
}
