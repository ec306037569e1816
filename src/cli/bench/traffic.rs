//! What a measurement asked of a GPU, for each token or step.
use serde::Serialize;

use crate::report::{Column, Table};
use crate::tensor::{Device, GpuCounters};

/// GpuCounters for one unit of work.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct PerUnit {
    launches: f64,
    graphs: f64,
    graph_node_updates: f64,
    bytes_to_device: f64,
    bytes_to_host: f64,
    syncs: f64,
    kv_bytes_read: f64,
    partial_bytes: f64,
    allocations: f64,
}

/// A GPU's counters at the beginning of a measurement; none on a processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter(Option<GpuCounters>);

impl Meter {
    pub(super) fn start(device: &Device) -> Meter {
        Meter(device.gpu_counters())
    }

    /// What has been asked since, over `units` of work.
    pub(super) fn stop(self, device: &Device, units: usize) -> Option<PerUnit> {
        let t = device.gpu_counters()?.since(self.0?);
        let per = |n: u64| n as f64 / units.max(1) as f64;
        Some(PerUnit {
            launches: per(t.launches),
            graphs: per(t.graphs),
            graph_node_updates: per(t.graph_node_updates),
            bytes_to_device: per(t.uploaded),
            bytes_to_host: per(t.downloaded),
            syncs: per(t.syncs),
            kv_bytes_read: per(t.kv_read),
            partial_bytes: per(t.partials),
            allocations: per(t.allocations),
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
            ("kernels changed in a graph", self.graph_node_updates),
            ("bytes to the device", self.bytes_to_device),
            ("bytes to the host", self.bytes_to_host),
            ("looks of the host", self.syncs),
            ("bytes of keys and values read", self.kv_bytes_read),
            ("bytes of partial results", self.partial_bytes),
            ("allocations", self.allocations),
        ] {
            table.row([what, &format!("{value:.2}")]);
        }
        table.render()
    }
}
