//! The memory that this process may use.
use std::fs;
use std::path::Path;

/// A limit of the memory of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryLimit {
    /// The limit in bytes, swap included.
    pub(crate) bytes: u64,
    /// The bytes that are not used yet.
    pub(crate) left: u64,
    /// What sets the limit.
    pub(crate) source: &'static str,
}

/// The limit that leaves the least: of the address space, of the control group, or the memory of the machine. `None`:
/// unknown; only Linux reports them.
pub(crate) fn memory_limit() -> Option<MemoryLimit> {
    least_limit(&|path| fs::read_to_string(path).ok())
}

/// [`memory_limit`], with the files of the kernel that `read` returns.
fn least_limit(read: &dyn Fn(&str) -> Option<String>) -> Option<MemoryLimit> {
    let status = read("/proc/self/status")?;
    let (virtual_size, resident) = (kilobytes(&status, "VmSize:")?, kilobytes(&status, "VmRSS:")?);
    let info = read("/proc/meminfo").unwrap_or_default();
    let swap = kilobytes(&info, "SwapTotal:").unwrap_or(0);
    let machine = kilobytes(&info, "MemTotal:").map(|memory| memory + swap);
    let space = read("/proc/self/limits").and_then(|limits| address_space(&limits));
    let of_process =
        [(space, virtual_size, "ulimit -v"), (machine, resident, "memory and swap of the machine")]
            .into_iter()
            .filter_map(|(bytes, used, source)| {
                bytes.map(|bytes| MemoryLimit { bytes, left: bytes.saturating_sub(used), source })
            });
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    of_process.chain(group_limit(&groups, read, Process { resident, swap })).min_by_key(|limit| limit.left)
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

/// What the limits of control groups depend on.
#[derive(Debug, Clone, Copy)]
struct Process {
    /// Resident bytes of this process: the use of a group that does not report it.
    resident: u64,
    /// Bytes of swap of the machine.
    swap: u64,
}

/// The file names of a version of control groups.
struct Version {
    root: &'static str,
    limit: &'static str,
    /// The limit of swap, or of memory and swap together.
    swap_limit: &'static str,
    swap_includes_memory: bool,
    usage: &'static str,
    swap_usage: &'static str,
    /// Keys of `memory.stat`: the page cache of files, which the kernel frees when memory is needed.
    reclaimable: [&'static str; 2],
}

const V1: Version = Version {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    swap_limit: "memory.memsw.limit_in_bytes",
    swap_includes_memory: true,
    usage: "memory.usage_in_bytes",
    swap_usage: "memory.memsw.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};
const V2: Version = Version {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    swap_limit: "memory.swap.max",
    swap_includes_memory: false,
    usage: "memory.current",
    swap_usage: "memory.swap.current",
    reclaimable: ["inactive_file", "active_file"],
};

/// A limit of at least this many bytes is none: version 1 has the largest multiple of the page size.
const UNLIMITED: u64 = 1 << 62;

/// The limit that leaves the least, of the control groups in the text of `/proc/self/cgroup` and of the groups that
/// contain them.
fn group_limit(groups: &str, read: &dyn Fn(&str) -> Option<String>, process: Process) -> Option<MemoryLimit> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => &V2,
            names if names.split(',').any(|name| name == "memory") => &V1,
            _ => continue,
        };
        for above in Path::new(group).ancestors() {
            let dir = format!("{}/{}", version.root, above.display().to_string().trim_start_matches('/'));
            limits.extend(limit_of(version, &|file| read(&format!("{dir}/{file}")), process));
        }
    }
    limits.into_iter().min_by_key(|limit| limit.left)
}

/// The limit of one group. `None`: it has none.
fn limit_of(
    version: &Version,
    read: &dyn Fn(&str) -> Option<String>,
    process: Process,
) -> Option<MemoryLimit> {
    let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
    let limited = |file: &str| number(file).filter(|&bytes| bytes < UNLIMITED);
    let memory = limited(version.limit)?;
    let before_swap = if version.swap_includes_memory { memory } else { 0 };
    let swap = limited(version.swap_limit).map_or(process.swap, |bytes| bytes.saturating_sub(before_swap));
    let bytes = memory.saturating_add(swap.min(process.swap));
    let used = number(version.usage).map(|usage| {
        let usage = match number(version.swap_usage) {
            Some(both) if version.swap_includes_memory => both,
            swapped => usage.saturating_add(swapped.unwrap_or(0)),
        };
        let stat = read("memory.stat").unwrap_or_default();
        let reclaimable = |name: &&str| value_of(&stat, name).unwrap_or(0);
        usage.saturating_sub(version.reclaimable.iter().map(reclaimable).fold(0, u64::saturating_add))
    });
    let left = bytes.saturating_sub(used.unwrap_or(process.resident));
    Some(MemoryLimit { bytes, left, source: "the control group" })
}

/// The value of a line `NAME N`.
fn value_of(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.split_once(' ').filter(|pair| pair.0 == name)?.1.trim().parse().ok();
    text.lines().find_map(value)
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
    }

    /// The total, the rest and the source of the limit of a process of 300 kB, of which 200 kB are resident.
    fn least(address_space: &str, info: &str, group: Option<&str>) -> Option<(u64, u64, &'static str)> {
        let read = |path: &str| match path {
            "/proc/self/status" => Some("VmSize: 300 kB\nVmRSS: 200 kB\n".to_string()),
            "/proc/self/limits" => Some(format!("Max address space  {address_space}  unlimited  bytes\n")),
            "/proc/meminfo" => Some(info.to_string()),
            "/proc/self/cgroup" => Some("0::/a\n".to_string()),
            "/sys/fs/cgroup/a/memory.max" => group.map(str::to_string),
            _ => None,
        };
        least_limit(&read).map(|limit| (limit.bytes, limit.left, limit.source))
    }

    #[test]
    fn the_least_of_the_address_space_the_machine_and_the_group_limits() {
        let (machine, info) = ("memory and swap of the machine", "MemTotal: 1000 kB\nSwapTotal: 50 kB\n");
        assert_eq!(least("unlimited", info, None), Some((1050 << 10, 850 << 10, machine)));
        assert_eq!(least("unlimited", "MemTotal: 900 kB\n", None), Some((900 << 10, 700 << 10, machine)));
        assert_eq!(least("1126400", info, None), Some((1100 << 10, 800 << 10, "ulimit -v")));
        assert_eq!(least("1228800", info, None).map(|limit| limit.2), Some(machine));
        assert_eq!(least("204800", info, None), Some((200 << 10, 0, "ulimit -v")), "less than is used");
        let group = least("unlimited", info, Some("409600\n")).unwrap();
        assert_eq!((group.1, group.2 == machine), (250 << 10, false), "of memory and swap");
    }

    const GIB: u64 = 1 << 30;

    /// The total and the rest of the limit of groups, with these files, of a machine with `swap` bytes of swap.
    #[track_caller]
    fn check(groups: &str, files: &[(&str, &str)], swap: u64, want: Option<(u64, u64)>) {
        let read = |path: &str| {
            let path = path.replace("//", "/");
            files.iter().find(|file| path == file.0).map(|file| file.1.to_string())
        };
        let limit = group_limit(groups, &read, Process { resident: 1000, swap });
        assert_eq!(limit.map(|limit| (limit.bytes, limit.left)), want);
    }

    #[test]
    fn the_group_that_leaves_the_least_limits() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "5000\n"),
            ("/sys/fs/cgroup/memory.max", "9000\n"),
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "7000\n"),
        ];
        check("0::/a/b\n", &files, 0, Some((5000, 4000)));
        check("3:cpu:/x\n2:foo,memory:/x\n", &files, 0, Some((7000, 6000)));
        check("0::/z\n", &files, 0, Some((9000, 8000)));
        check("1:cpu:/x\n", &files, 0, None);
        check("no colon\n0::/z\n", &files, 0, Some((9000, 8000)));
    }

    #[test]
    fn swap_and_the_use_of_a_group_count_and_its_page_cache_does_not() {
        let mut files = vec![
            ("/sys/fs/cgroup/memory.max", "10000\n"),
            ("/sys/fs/cgroup/memory.current", "7000\n"),
            ("/sys/fs/cgroup/memory.stat", "anon 3000\ninactive_file 3000\nactive_file 500\n"),
        ];
        check("0::/\n", &files, 0, Some((10_000, 6500)));
        check("0::/\n", &files, GIB, Some((10_000 + GIB, 6500 + GIB)));
        files.push(("/sys/fs/cgroup/memory.swap.max", "2000\n"));
        files.push(("/sys/fs/cgroup/memory.swap.current", "200\n"));
        check("0::/\n", &files, GIB, Some((12_000, 8300)));
        check("0::/\n", &files, 100, Some((10_100, 6400)));
    }

    #[test]
    fn version_1_limits_memory_and_swap_together() {
        let none = "9223372036854771712\n";
        let mut files = vec![("/sys/fs/cgroup/memory/memory.limit_in_bytes", none)];
        check("2:memory:/x\n", &files, GIB, None);
        files[0].1 = "10000\n";
        files.push(("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", none));
        files.push(("/sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n"));
        check("2:memory:/x\n", &files, 300, Some((10_300, 4300)));
        files[1].1 = "10000\n";
        check("2:memory:/x\n", &files, 300, Some((10_000, 4000)));
        files.push(("/sys/fs/cgroup/memory/memory.memsw.usage_in_bytes", "7000\n"));
        files.push(("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n"));
        check("2:memory:/x\n", &files, 300, Some((10_000, 3500)));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_a_limit_above_its_use() {
        let limit = memory_limit().unwrap();
        assert!(limit.left > 0 && limit.left < limit.bytes, "{limit:?}");
    }
}
