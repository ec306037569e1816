//! The memory that this process may use.
use std::fs;
use std::path::Path;

/// A limit of the memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// The limit in bytes.
    pub(crate) bytes: u64,
    /// The bytes that the process does not use yet.
    pub(crate) left: u64,
    /// What sets the limit.
    pub(crate) source: &'static str,
}

/// The limit that leaves the least: of the address space, of the control group, or the memory of the machine. `None`:
/// unknown; only Linux reports them.
pub(crate) fn memory_limit() -> Option<MemoryLimit> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let status = read("/proc/self/status")?;
    let (virtual_size, resident) = (kilobytes(&status, "VmSize:")?, kilobytes(&status, "VmRSS:")?);
    let machine = read("/proc/meminfo")
        .and_then(|info| Some(kilobytes(&info, "MemTotal:")? + kilobytes(&info, "SwapTotal:").unwrap_or(0)));
    let group = read("/proc/self/cgroup").and_then(|groups| group_limit(&groups, &read));
    let space = read("/proc/self/limits").and_then(|limits| address_space(&limits));
    [
        (space, virtual_size, "ulimit -v"),
        (group, resident, "the control group"),
        (machine, resident, "memory and swap of the machine"),
    ]
    .into_iter()
    .filter_map(|(bytes, used, source)| {
        bytes.map(|bytes| MemoryLimit { bytes, left: bytes.saturating_sub(used), source })
    })
    .min_by_key(|limit| limit.left)
}

/// The value of a line `NAME: N kB`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit in the text of `/proc/self/limits`. `None`: no limit.
fn address_space(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The smallest limit of the control groups in the text of `/proc/self/cgroup` and of the groups that contain them.
fn group_limit(groups: &str, read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for above in Path::new(group).ancestors() {
            let above = above.display().to_string();
            let text = read(&format!("{root}/{}/{file}", above.trim_start_matches('/')));
            limits.extend(text.and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_from_the_texts_of_the_kernel() {
        let limits =
            "Limit   Soft Limit   Hard Limit   Units\nMax address space  4096000  unlimited  bytes\n";
        assert_eq!(address_space(limits), Some(4_096_000));
        assert_eq!(address_space(&limits.replace("4096000", "unlimited")), None);
        assert_eq!(kilobytes("VmPeak: 1 kB\nVmSize:\t  12 kB\n", "VmSize:"), Some(12 << 10));
        let file = |path: &str| {
            let text = match path {
                "/sys/fs/cgroup/a/b/memory.max" => "max\n",
                "/sys/fs/cgroup/a/memory.max" => "5000\n",
                "/sys/fs/cgroup//memory.max" => "9000\n",
                "/sys/fs/cgroup/memory/x/memory.limit_in_bytes" => "7000\n",
                _ => return None,
            };
            Some(text.to_string())
        };
        assert_eq!(group_limit("0::/a/b\n", &file), Some(5000));
        assert_eq!(group_limit("3:cpu:/x\n2:foo,memory:/x\n", &file), Some(7000));
        assert_eq!(group_limit("0::/z\n", &file), Some(9000));
        assert_eq!(group_limit("1:cpu:/x\n", &file), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_a_limit_above_its_use() {
        let limit = memory_limit().unwrap();
        assert!(limit.left > 0 && limit.left < limit.bytes, "{limit:?}");
    }
}
