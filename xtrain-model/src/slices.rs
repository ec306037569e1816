//! The division of the parameters among processes: groups, and in each group slices of whole rows, in walk order.
use std::ops::Range;

use xtrain_tensor::{Device, Tensor};

use crate::error::Result;
use crate::params::Params;

/// The totals of a group of parameters are sent together, in messages of at least this many bytes on average, as long as
/// the model has as many. Small in builds for the gates, whose models then have several groups.
const LEAST_BYTES: usize = if cfg!(feature = "faults") { 1 << 8 } else { 1 << 16 };

/// Consecutive parts of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) parts: Range<usize>,
    /// Their parameters, in walk order.
    pub(crate) params: Range<usize>,
}

/// Joins `parts` of a model, which are ranges of parameters, to groups: from the last part on, as many as
/// [`LEAST_BYTES`] for each of `processes` processes need. `elements`: the number of elements of each parameter.
pub(crate) fn groups(parts: &[Range<usize>], elements: &[usize], processes: usize) -> Vec<Group> {
    let mut groups = Vec::new();
    let (mut end, mut bytes) = (parts.len(), 0);
    for (part, params) in parts.iter().enumerate().rev() {
        bytes += 4 * elements[params.clone()].iter().sum::<usize>();
        if part == 0 || bytes >= LEAST_BYTES * processes {
            groups.push(Group { parts: part..end, params: params.start..parts[end - 1].end });
            (end, bytes) = (part, 0);
        }
    }
    groups.reverse();
    groups
}

/// The number of elements of each group of parameters whose gradients `processes` processes exchange together, in walk
/// order: layers travel while the backward pass computes those before them, several at a time if they are small.
pub fn exchange_groups(params: &Params, processes: usize) -> Vec<usize> {
    let elements: Vec<usize> = params.iter().map(|param| param.shape().iter().product()).collect();
    let groups = groups(&params.parts(), &elements, processes);
    groups.into_iter().map(|group| elements[group.params].iter().sum()).collect()
}

/// Some rows of a parameter. A vector is one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The parameter, in walk order.
    pub(crate) param: usize,
    pub(crate) rows: Range<usize>,
    width: usize,
    is_matrix: bool,
}

impl Slice {
    /// The elements of the slice in its parameter.
    pub(crate) fn elements(&self) -> Range<usize> {
        self.rows.start * self.width..self.rows.end * self.width
    }

    pub(crate) fn shape(&self) -> Vec<usize> {
        if self.is_matrix { vec![self.rows.len(), self.width] } else { vec![self.width] }
    }

    /// A copy of the slice of `whole`, the tensor of its parameter, on the CPU `host`.
    pub(crate) fn copy(&self, whole: &Tensor, host: &Device) -> Result<Tensor> {
        let mut copy = Tensor::unspecified(host, &self.shape())?;
        copy.data_mut()?.copy_from_slice(&whole.read::<f32>()?[self.elements()]);
        Ok(copy)
    }
}

/// The number of rows of parameters with these shapes.
pub(crate) fn rows(shapes: &[&[usize]]) -> Vec<usize> {
    shapes.iter().map(|shape| if shape.len() > 1 { shape[0] } else { 1 }).collect()
}

/// The slices of each of `processes` processes, in walk order. Those of each group are contiguous, with nearly equal
/// numbers of elements, so all processes receive at the same rate when the groups are sent one after the other. A row
/// belongs to the process in whose part of the group's elements it begins.
pub(crate) fn divide(shapes: &[&[usize]], groups: &[Group], processes: usize) -> Vec<Vec<Slice>> {
    let mut all = vec![Vec::new(); processes];
    for Group { params, .. } in groups {
        divide_group(shapes, params.clone(), &mut all);
    }
    all
}

/// Divides the parameters of one group, and adds the slices to those of each process.
fn divide_group(shapes: &[&[usize]], params: Range<usize>, all: &mut [Vec<Slice>]) {
    let total: usize = shapes[params.clone()].iter().map(|shape| shape.iter().product::<usize>()).sum();
    let part = total.div_ceil(all.len()).max(1);
    let mut start = 0;
    for param in params {
        let (shape, rows) = (shapes[param], rows(&shapes[param..=param])[0]);
        let (width, is_matrix) = (shape.last().copied().unwrap_or(1), shape.len() > 1);
        let owner = |row: usize| (start + row * width) / part;
        let mut row = 0;
        while row < rows {
            let rank = owner(row);
            // the first row that begins in the part of another process
            let end = ((rank + 1) * part - start).div_ceil(width.max(1)).min(rows);
            all[rank].push(Slice { param, rows: row..end, width, is_matrix });
            row = end;
        }
        start += rows * width;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_one_owner_and_each_group_is_divided_evenly() {
        let shapes: [&[usize]; 5] = [&[37, 6], &[6], &[4, 6], &[1, 6], &[6]];
        let group = |params: Range<usize>| Group { parts: params.clone(), params };
        for (processes, groups) in
            (1..20).flat_map(|n| [(n, vec![group(0..5)]), (n, vec![group(0..2), group(2..5)])])
        {
            let all = divide(&shapes, &groups, processes);
            assert_eq!(all.len(), processes);
            let mut owners: Vec<Vec<u32>> = super::rows(&shapes).iter().map(|&rows| vec![0; rows]).collect();
            for own in &all {
                assert!(own.is_sorted_by_key(|slice| (slice.param, slice.rows.start)), "{own:?}");
                for Slice { param, rows, .. } in own {
                    assert!(!rows.is_empty());
                    owners[*param][rows.clone()].iter_mut().for_each(|owners| *owners += 1);
                }
            }
            assert!(owners.iter().flatten().all(|&owners| owners == 1), "{owners:?}");
            for Group { params, .. } in groups {
                let total: usize = shapes[params.clone()].iter().map(|s| s.iter().product::<usize>()).sum();
                for own in &all {
                    let own = own.iter().filter(|slice| params.contains(&slice.param));
                    let size: usize = own.map(|slice| slice.elements().len()).sum();
                    assert!(size < total.div_ceil(processes) + 6, "{size} of {total} for {processes}");
                }
            }
        }
    }

    #[test]
    fn parts_join_from_the_last_until_each_process_gets_enough() {
        // parts of 1, 3, 1, 1 and 2 times the least bytes for two processes
        let unit = LEAST_BYTES * 2 / 4;
        let (parts, elements) =
            ([0..1, 1..2, 2..4, 4..5, 5..6], [unit, 3 * unit, unit / 2, unit / 2, unit, 2 * unit]);
        let group = |parts: Range<usize>, params: Range<usize>| Group { parts, params };
        let each =
            [group(0..1, 0..1), group(1..2, 1..2), group(2..3, 2..4), group(3..4, 4..5), group(4..5, 5..6)];
        assert_eq!(groups(&parts, &elements, 2), each);
        let joined = [group(0..1, 0..1), group(1..2, 1..2), group(2..4, 2..5), group(4..5, 5..6)];
        assert_eq!(groups(&parts, &elements, 4), joined);
        assert_eq!(groups(&parts, &elements, 1000), [group(0..5, 0..6)]);
    }
}
