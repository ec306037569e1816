//! Cache of tensor maps on the device. The buffers of a step get the same addresses as in the previous step, so its
//! maps are encoded and uploaded once. A launch with other matrices has other maps: nothing is overwritten.
use std::collections::HashMap;

use super::launch::{At, Launcher, MAP_WORDS, MatrixBoxes};
use super::stream::Stream;
use crate::error::Result;
use crate::faults::{self, Fault};

/// Number of cached launches, of at most 4 KB per operand each, at which a step ends with an empty cache. Within a step
/// no map is freed, however many there are: an operation that asks for several would lose the first ones.
const MAX_LAUNCHES: usize = 4096;

/// The maps of each launch, and their address.
#[derive(Debug, Default)]
pub(super) struct TensorMaps(HashMap<Vec<Option<MatrixBoxes>>, u64>);

impl TensorMaps {
    /// The address of the maps of these matrices, one after another; that of an absent one is zero.
    pub(super) fn address(&mut self, stream: &Stream, matrices: &[Option<MatrixBoxes>]) -> Result<At> {
        let found = match faults::on(Fault::StaleTensorMap) {
            true => self.0.iter().find(|(cached, _)| cached.len() == matrices.len()).map(|(_, &at)| at),
            false => self.0.get(matrices).copied(),
        };
        if let Some(at) = found {
            return Ok(At(at));
        }
        let launcher = stream.launcher();
        if faults::on(Fault::TensorMapsFreedInStep) {
            self.end_step(launcher);
        }
        let mut words = Vec::with_capacity(MAP_WORDS * matrices.len());
        for matrix in matrices {
            match matrix {
                Some(matrix) => words.extend(launcher.tensor_map(matrix)?),
                None => words.extend([0; MAP_WORDS]),
            }
        }
        let at = stream.allocate(4 * words.len())?;
        stream.copy_to_device(at, bytemuck::cast_slice(&words)).inspect_err(|_| launcher.free(at))?;
        self.0.insert(matrices.to_vec(), at);
        Ok(At(at))
    }

    /// Ends a step: no operation is in progress and the queue is empty. Memory is freed in the order of the stream.
    pub(super) fn end_step(&mut self, launcher: &dyn Launcher) {
        if self.0.len() >= MAX_LAUNCHES {
            self.free_all(launcher);
        }
    }

    pub(super) fn free_all(&mut self, launcher: &dyn Launcher) {
        self.0.drain().for_each(|(_, at)| launcher.free(at));
    }
}

#[cfg(all(test, xtrain_emu, feature = "faults"))]
mod tests {
    use super::*;
    use crate::ThreadSchedule;
    use crate::device::gpu::{Emulation, EmulatorBuild, Gpu};

    #[test]
    fn maps_are_freed_between_steps_and_not_in_one() {
        // the allocations of a step that uses more launches than the cache keeps and then the first one again, and those
        // of that launch in the next step
        let allocations = || {
            let gpu = Gpu::emulated(Emulation::new(ThreadSchedule::Forward, EmulatorBuild::Plain)).unwrap();
            let x = gpu.buffer(2 * 64 * (MAX_LAUNCHES + 1)).unwrap();
            let map = |rows| {
                let matrix = MatrixBoxes { at: x.arg(), rows, columns: 64, box_rows: 64 };
                gpu.tensor_maps(&[Some(matrix)]).unwrap();
            };
            let before = gpu.gpu_counters();
            (1..=MAX_LAUNCHES + 1).for_each(map);
            map(1);
            let step = gpu.gpu_counters();
            gpu.submit_step().unwrap();
            map(1);
            [step.since(before), gpu.gpu_counters().since(step)].map(|counted| counted.allocations)
        };
        let launches = MAX_LAUNCHES as u64 + 1;
        assert_eq!(allocations(), [launches, 1]);
        let freed = faults::with(Fault::TensorMapsFreedInStep, allocations);
        assert_eq!(freed[0], launches + 1, "TensorMapsFreedInStep is not detected");
    }
}
