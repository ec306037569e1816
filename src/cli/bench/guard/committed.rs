//! The committed ratios, by processor and workload.
use std::collections::BTreeMap;

type Ratios = BTreeMap<String, BTreeMap<String, f64>>;

/// The committed ratio of a workload on a processor. `None`: there is none.
pub(super) fn ratio(cpu: &str, workload: &str) -> Option<f64> {
    all().get(cpu)?.get(workload).copied()
}

fn all() -> Ratios {
    serde_json::from_str(include_str!("committed.json")).expect("a test parses this file")
}

#[cfg(test)]
mod tests {
    use super::super::workloads;
    use super::*;
    use crate::tensor::{Device, Simd};

    #[test]
    fn each_processor_has_a_ratio_for_each_workload() {
        let device = Device::cpu_with(1, Simd::Portable);
        let names: Vec<_> = workloads::all(&device).unwrap().iter().map(|w| w.name.to_string()).collect();
        assert!(!all().is_empty());
        for (cpu, ratios) in all() {
            let mut sorted = names.clone();
            sorted.sort();
            assert_eq!(ratios.keys().cloned().collect::<Vec<_>>(), sorted, "{cpu}");
            assert!(ratios.values().all(|&ratio| ratio > 0.0), "{cpu}");
        }
    }
}
