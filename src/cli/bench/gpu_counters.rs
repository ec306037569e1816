//! GPU counters of a benchmark, per token or step.
use serde::{Serialize, Serializer};

use crate::report::Table;
use crate::tensor::{Device, GpuCounters};

/// A counter: its JSON key, its name in the table, its value.
type Counter = (&'static str, &'static str, fn(&GpuCounters) -> u64);

const COUNTERS: [Counter; 9] = [
    ("launches", "kernel launches", |c| c.launches),
    ("graphs", "graph launches", |c| c.graphs),
    ("graph_node_updates", "graph node updates", |c| c.graph_node_updates),
    ("bytes_to_device", "bytes copied to device", |c| c.uploaded),
    ("bytes_to_host", "bytes copied to host", |c| c.downloaded),
    ("syncs", "synchronizations", |c| c.syncs),
    ("kv_bytes_read", "bytes of keys and values read", |c| c.kv_read),
    ("partial_bytes", "bytes of partial results", |c| c.partials),
    ("allocations", "allocations", |c| c.allocations),
];

/// The counters per unit of work, in the order of [`COUNTERS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct PerUnit([f64; COUNTERS.len()]);

impl Serialize for PerUnit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(COUNTERS.iter().zip(self.0).map(|((key, ..), value)| (key, value)))
    }
}

impl PerUnit {
    /// The counters since `start`, divided by `units` of work. `None`: the device is the CPU.
    pub(super) fn since(start: Option<GpuCounters>, device: &Device, units: usize) -> Option<PerUnit> {
        let counters = device.gpu_counters()?.since(start?);
        Some(PerUnit(COUNTERS.map(|(.., value)| value(&counters) as f64 / units.max(1) as f64)))
    }

    /// Formats the counters as a table. `unit` names the unit of work.
    pub(super) fn table(&self, unit: &str) -> String {
        let mut table = Table::new(&[&format!("per {unit}")], &[""]);
        for ((_, name, _), value) in COUNTERS.iter().zip(self.0) {
            table.row([name, &*format!("{value:.2}")]);
        }
        table.render()
    }
}
