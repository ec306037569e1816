//! Names that survive a power failure.
use std::fs::File;
use std::io;
use std::path::Path;

/// The directory of a path.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the names in a directory durable. Other systems than Unix cannot open a directory as a file; there, a rename is
/// as durable as the system makes it.
///
/// # Errors
/// The directory cannot be opened or synced.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_file_is_synced() {
        sync_dir(parent(Path::new("in-the-current-directory"))).unwrap();
        sync_dir(parent(Path::new("/in-the-root"))).unwrap();
        assert_eq!(parent(Path::new("a/b")), Path::new("a"));
        let found = sync_dir(parent(Path::new("no such directory/a"))).err().map(|error| error.kind());
        assert_eq!(found, cfg!(unix).then_some(io::ErrorKind::NotFound));
    }
}
