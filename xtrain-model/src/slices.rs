//! The division of the parameters among processes: slices of whole rows, in walk order.
use std::ops::Range;

use xtrain_tensor::Tensor;

use crate::error::Result;

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

    /// A copy of the slice of `tensors`, which are in walk order and in host memory.
    pub(crate) fn copy(&self, tensors: &[&Tensor]) -> Result<Tensor> {
        let whole = tensors[self.param];
        let values = whole.data::<f32>()?[self.elements()].to_vec();
        Ok(Tensor::new(whole.device(), &self.shape(), values)?)
    }
}

/// The number of rows of parameters with these shapes.
pub(crate) fn rows(shapes: &[&[usize]]) -> Vec<usize> {
    shapes.iter().map(|shape| if shape.len() > 1 { shape[0] } else { 1 }).collect()
}

/// The slices of each of `processes` processes: contiguous in walk order, with nearly equal numbers of elements. A row
/// belongs to the process in whose part of the elements it begins.
pub(crate) fn divide(shapes: &[&[usize]], processes: usize) -> Vec<Vec<Slice>> {
    let total: usize = shapes.iter().map(|shape| shape.iter().product::<usize>()).sum();
    let part = total.div_ceil(processes).max(1);
    let mut all = vec![Vec::new(); processes];
    let mut start = 0;
    for (param, (shape, rows)) in shapes.iter().zip(rows(shapes)).enumerate() {
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
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_one_owner_and_the_order_is_kept() {
        let shapes: [&[usize]; 5] = [&[37, 6], &[6], &[4, 6], &[1, 6], &[6]];
        for processes in 1..20 {
            let all = divide(&shapes, processes);
            assert_eq!(all.len(), processes);
            let mut next = (0, 0);
            for Slice { param, rows, .. } in all.iter().flatten() {
                if *param != next.0 {
                    assert_eq!((*param, next.1), (next.0 + 1, super::rows(&shapes)[next.0]));
                    next = (*param, 0);
                }
                assert_eq!(rows.start, next.1);
                assert!(!rows.is_empty());
                next.1 = rows.end;
            }
            assert_eq!(next, (4, 1));
            let sizes = all.iter().map(|own| own.iter().map(|s| s.elements().len()).sum::<usize>());
            let (sizes, part) = (sizes.collect::<Vec<_>>(), 264usize.div_ceil(processes));
            assert!(sizes.iter().all(|&n| n < part + 6), "{sizes:?}");
        }
    }
}
