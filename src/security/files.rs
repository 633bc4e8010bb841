//! Reading the files that a configuration names, with a remedy for each way in
//! which that fails.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Reads a file; `what` says in messages what it is.
///
/// # Errors
/// Which file, what is wrong with it, and what to do.
pub fn read(what: &str, path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| unreadable(what, path, &error))
}

/// Reads a file that only its owner may read.
///
/// # Errors
/// As [`read`], and when others may read it.
pub fn read_secret(what: &str, path: &Path) -> Result<Vec<u8>, String> {
    let metadata = fs::metadata(path).map_err(|error| unreadable(what, path, &error))?;
    let mode = metadata.permissions().mode();
    if metadata.is_file() && mode & 0o077 != 0 {
        let shown = path.display();
        return Err(format!(
            "{what} {shown} can be read by others (mode {:04o}): chmod 600 {shown}",
            mode & 0o7777
        ));
    }
    read(what, path)
}

fn unreadable(what: &str, path: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => {
            "put the file there, or correct the path (a relative one in a configuration file counts \
             from that file's folder)"
        }
        io::ErrorKind::PermissionDenied => {
            "make it the property of the user that runs this program, and let that user into its \
             folders"
        }
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => "name a file",
        _ => "check the disk",
    };
    format!("{what} {}: {error}; {remedy}", path.display())
}
