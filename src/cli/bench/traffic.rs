//! What a measurement asked of a GPU, for each token or step.
use serde::Serialize;

use crate::report::{Column, Table};
use crate::tensor::{Device, Traffic};

/// Traffic for one unit of work.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct PerUnit {
    launches: f64,
    graphs: f64,
    changed: f64,
    bytes_to_device: f64,
    bytes_to_host: f64,
    allocations: f64,
}

/// A GPU's counters at the beginning of a measurement; none on a processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter(Option<Traffic>);

impl Meter {
    pub(super) fn start(device: &Device) -> Meter {
        Meter(device.traffic())
    }

    /// What has been asked since, over `units` of work.
    pub(super) fn stop(self, device: &Device, units: usize) -> Option<PerUnit> {
        let (from, to) = (self.0?, device.traffic()?);
        let per = |from: u64, to: u64| (to - from) as f64 / units.max(1) as f64;
        Some(PerUnit {
            launches: per(from.launches, to.launches),
            graphs: per(from.graphs, to.graphs),
            changed: per(from.changed, to.changed),
            bytes_to_device: per(from.uploaded, to.uploaded),
            bytes_to_host: per(from.downloaded, to.downloaded),
            allocations: per(from.allocations, to.allocations),
        })
    }
}

impl PerUnit {
    /// As a table, under the name of the unit.
    pub(super) fn table(&self, unit: &str) -> String {
        let head = format!("for each {unit}");
        let mut table = Table::new([Column::words(&head), Column::numbers("")]);
        for (what, value) in [
            ("kernels", self.launches),
            ("graphs that hold them", self.graphs),
            ("kernels changed in a graph", self.changed),
            ("bytes to the device", self.bytes_to_device),
            ("bytes to the host", self.bytes_to_host),
            ("allocations", self.allocations),
        ] {
            table.row([what, &format!("{value:.2}")]);
        }
        table.render()
    }
}
