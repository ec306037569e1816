//! GPU counters of a benchmark, per token or step.
use serde::Serialize;

use crate::report::{Column, Table};
use crate::tensor::{Device, GpuCounters};

/// Counters per unit of work.
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

/// The counters of the GPU at the start of a measurement. `None`: the device is the CPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meter(Option<GpuCounters>);

impl Meter {
    pub(super) fn start(device: &Device) -> Meter {
        Meter(device.gpu_counters())
    }

    /// The counters since [`Meter::start`], divided by `units` of work. `None`: the device is the CPU.
    pub(super) fn stop(self, device: &Device, units: usize) -> Option<PerUnit> {
        let counters = device.gpu_counters()?.since(self.0?);
        let per = |n: u64| n as f64 / units.max(1) as f64;
        Some(PerUnit {
            launches: per(counters.launches),
            graphs: per(counters.graphs),
            graph_node_updates: per(counters.graph_node_updates),
            bytes_to_device: per(counters.uploaded),
            bytes_to_host: per(counters.downloaded),
            syncs: per(counters.syncs),
            kv_bytes_read: per(counters.kv_read),
            partial_bytes: per(counters.partials),
            allocations: per(counters.allocations),
        })
    }
}

impl PerUnit {
    /// Formats the counters as a table. `unit` names the unit of work.
    pub(super) fn table(&self, unit: &str) -> String {
        let head = format!("per {unit}");
        let mut table = Table::new([Column::words(&head), Column::numbers("")]);
        for (name, value) in [
            ("kernel launches", self.launches),
            ("graph launches", self.graphs),
            ("graph node updates", self.graph_node_updates),
            ("bytes copied to device", self.bytes_to_device),
            ("bytes copied to host", self.bytes_to_host),
            ("synchronizations", self.syncs),
            ("bytes of keys and values read", self.kv_bytes_read),
            ("bytes of partial results", self.partial_bytes),
            ("allocations", self.allocations),
        ] {
            table.row([name, &format!("{value:.2}")]);
        }
        table.render()
    }
}
