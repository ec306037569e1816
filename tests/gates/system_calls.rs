//! Records the system calls of a thread that change files. The test binary defines the functions of the C library that
//! the standard library calls for them, so a call that is not made is not recorded.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A system call, and what it made durable.
#[derive(Debug)]
pub(crate) struct Call {
    name: &'static str,
    paths: Vec<PathBuf>,
    durable: Option<(u64, Durable)>,
}

/// What a power failure after a sync leaves.
#[derive(Debug, PartialEq)]
enum Durable {
    /// The bytes of a file.
    Bytes(Vec<u8>),
    /// The names in a directory and their inodes.
    Names(BTreeMap<PathBuf, u64>),
}

thread_local! {
    static CALLS: RefCell<Option<Vec<Call>>> = const { RefCell::new(None) };
}

/// Runs `work` and returns its system calls on this thread.
pub(crate) fn recorded<R>(work: impl FnOnce() -> R) -> (R, Vec<Call>) {
    CALLS.set(Some(Vec::new()));
    let result = work();
    (result, CALLS.take().unwrap_or_default())
}

/// The calls below `root` as lines: the name of the function and its paths from `root`. Writes to the same file in a
/// row are one line.
pub(crate) fn lines(calls: &[Call], root: &Path) -> Vec<String> {
    let below = |path: &PathBuf| Some(format!(" {}", path.strip_prefix(root).ok()?.display()));
    let line =
        |call: &Call| Some(call.name.to_owned() + &call.paths.iter().map(below).collect::<Option<String>>()?);
    without_repeated_writes(calls.iter().filter_map(line))
}

/// Removes each write to the file of the write before it.
pub(crate) fn without_repeated_writes(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.dedup_by(|line, before| line.starts_with("write ") && line == before);
    lines
}

/// The files and names below `root` that the calls did not make durable. The name of `root` counts as durable.
pub(crate) fn not_durable(calls: &[Call], root: &Path) -> Vec<String> {
    let last: BTreeMap<u64, &Durable> = calls
        .iter()
        .filter_map(|call| call.durable.as_ref())
        .map(|(inode, durable)| (*inode, durable))
        .collect();
    let (mut found, mut left) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(path) = left.pop() {
        let (inode, now) = state(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display();
        match (&now, last.get(&inode)) {
            (Durable::Bytes(bytes), durable) if !bytes.is_empty() && durable != Some(&&now) => {
                found.push(format!("the bytes of {name}"));
            }
            (Durable::Bytes(_), _) => {}
            (Durable::Names(names), durable) => {
                for (entry, inode) in names {
                    let kept =
                        matches!(durable, Some(Durable::Names(kept)) if kept.get(entry) == Some(inode));
                    if !kept {
                        found.push(format!(
                            "the name {}",
                            path.join(entry).strip_prefix(root).unwrap().display()
                        ));
                    }
                    left.push(path.join(entry));
                }
            }
        }
    }
    found.sort();
    found
}

/// The inode and the state of a file or directory.
fn state(path: &Path) -> std::io::Result<(u64, Durable)> {
    let inode = fs::metadata(path)?.ino();
    if !path.is_dir() {
        return Ok((inode, Durable::Bytes(fs::read(path)?)));
    }
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        names.insert(PathBuf::from(entry.file_name()), entry.metadata()?.ino());
    }
    Ok((inode, Durable::Names(names)))
}

/// Adds a call if this thread records.
fn record(name: &'static str, paths: impl FnOnce() -> Vec<PathBuf>, synced: bool) {
    // a thread that ends has no list
    let _ = CALLS.try_with(|calls| {
        let Ok(mut calls) = calls.try_borrow_mut() else { return };
        let Some(calls) = calls.as_mut() else { return };
        let paths = paths();
        let durable = synced.then(|| state(&paths[0]).unwrap());
        // pipes and sockets have no path
        if paths.iter().all(|path| path.is_absolute()) {
            calls.push(Call { name, paths, durable });
        }
    });
}

/// The path of an open file.
fn of_descriptor(descriptor: c_int) -> Vec<PathBuf> {
    vec![fs::read_link(format!("/proc/self/fd/{descriptor}")).unwrap_or_default()]
}

/// The paths of arguments.
///
/// # Safety
/// Each is a string of the C library.
unsafe fn of_names<const N: usize>(names: [*const c_char; N]) -> Vec<PathBuf> {
    // SAFETY: as for this function.
    names.map(|name| PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()))).to_vec()
}

/// `fsync` of the C library.
#[unsafe(no_mangle)]
extern "C" fn fsync(descriptor: c_int) -> c_int {
    // SAFETY: the call takes any number.
    let done = unsafe { libc::syscall(libc::SYS_fsync, descriptor) };
    record("fsync", || of_descriptor(descriptor), done == 0);
    done as c_int
}

/// `fdatasync` of the C library.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    // SAFETY: the call takes any number.
    let done = unsafe { libc::syscall(libc::SYS_fdatasync, descriptor) };
    record("fdatasync", || of_descriptor(descriptor), done == 0);
    done as c_int
}

/// `write` of the C library.
///
/// # Safety
/// As for the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(descriptor: c_int, bytes: *const c_void, count: usize) -> isize {
    record("write", || of_descriptor(descriptor), false);
    // SAFETY: as for this function.
    unsafe { libc::syscall(libc::SYS_write, descriptor, bytes, count) as isize }
}

/// `rename` of the C library.
///
/// # Safety
/// As for the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: as for this function.
    record("rename", || unsafe { of_names([from, to]) }, false);
    // SAFETY: as for this function.
    unsafe { libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) as c_int }
}

/// `mkdir` of the C library.
///
/// # Safety
/// As for the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn mkdir(path: *const c_char, mode: libc::mode_t) -> c_int {
    // SAFETY: as for this function.
    record("mkdir", || unsafe { of_names([path]) }, false);
    // SAFETY: as for this function.
    unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path, mode) as c_int }
}

/// `unlink` of the C library.
///
/// # Safety
/// As for the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: as for this function.
    record("unlink", || unsafe { of_names([path]) }, false);
    // SAFETY: as for this function.
    unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) as c_int }
}

/// `rmdir` of the C library.
///
/// # Safety
/// As for the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: *const c_char) -> c_int {
    // SAFETY: as for this function.
    record("rmdir", || unsafe { of_names([path]) }, false);
    // SAFETY: as for this function.
    unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, libc::AT_REMOVEDIR) as c_int }
}

#[test]
fn calls_and_what_they_make_durable_are_recorded() {
    use std::io::Write as _;

    let dir = crate::cli::Scratch::new("system-calls");
    let ((), calls) = recorded(|| {
        fs::create_dir(dir.0.join("d")).unwrap();
        let mut file = fs::File::create(dir.0.join("d/a")).unwrap();
        file.write_all(b"1").unwrap();
        file.write_all(b"2").unwrap();
        file.sync_data().unwrap();
        fs::write(dir.0.join("d/b"), "3").unwrap();
        fs::File::open(dir.0.join("d")).unwrap().sync_all().unwrap();
        fs::rename(dir.0.join("d/b"), dir.0.join("d/c")).unwrap();
        fs::create_dir(dir.0.join("e")).unwrap();
        fs::remove_dir(dir.0.join("e")).unwrap();
        fs::write(dir.0.join("f"), "").unwrap();
        fs::remove_file(dir.0.join("f")).unwrap();
    });
    let want = [
        "mkdir d",
        "write d/a",
        "fdatasync d/a",
        "write d/b",
        "fsync d",
        "rename d/b d/c",
        "mkdir e",
        "rmdir e",
        "unlink f",
    ];
    assert_eq!(lines(&calls, &dir.0), want);
    assert_eq!(not_durable(&calls, &dir.0), ["the bytes of d/c", "the name d", "the name d/c"]);
}
