//! File systems of the nodes' own, which can be made slow and hung.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::nodes::copy_folder;

/// A slow disk stands still for so long...
pub const SLOW_FROZEN: Duration = Duration::from_millis(150);
/// ...and works for so long, by turns.
pub const SLOW_THAWED: Duration = Duration::from_millis(50);

/// The log's segments of a full load, with room.
const IMAGE_BYTES: u64 = 1 << 30;

/// A file system in a file, mounted for this process and its children only.
pub struct Disk {
    mount: PathBuf,
}

/// A file system that stands still, until the process that thaws it has done so.
pub struct Frozen(Child);

impl Disk {
    /// Makes a file system beside a cluster's folders and mounts it.
    pub fn mount(root: &Path, slot: usize) -> Result<Self, String> {
        let image = root.join(format!("disk-{slot}.img"));
        let mount = root.join(format!("disk-{slot}"));
        let failed = |error: std::io::Error| error.to_string();
        let file = fs::File::create(&image).map_err(failed)?;
        file.set_len(IMAGE_BYTES).map_err(failed)?;
        fs::create_dir(&mount).map_err(failed)?;
        done(
            Command::new("mkfs.ext4")
                .args(["-q", "-m", "0"])
                .arg(&image),
        )?;
        done(
            Command::new("mount")
                .args(["-o", "loop"])
                .args([&image, &mount]),
        )?;
        Ok(Self { mount })
    }

    /// Moves a data folder here; gives its new place.
    pub fn move_here(&self, data: &Path) -> Result<PathBuf, String> {
        let here = self.mount.join("data");
        copy_folder(data, &here)?;
        fs::remove_dir_all(data).map_err(|error| error.to_string())?;
        Ok(here)
    }

    /// Stands still from now on. A process of its own ends that, whatever becomes of this one.
    pub fn freeze_for(&self, how_long: Duration) -> Result<Frozen, String> {
        done(Command::new("fsfreeze").arg("-f").arg(&self.mount))?;
        let thaw = Command::new("sh")
            .args(["-c", "sleep \"$0\"; exec fsfreeze -u \"$1\""])
            .arg(how_long.as_secs_f64().to_string())
            .arg(&self.mount)
            .stdin(Stdio::null())
            .spawn();
        match thaw {
            Ok(child) => Ok(Frozen(child)),
            Err(error) => {
                done(Command::new("fsfreeze").arg("-u").arg(&self.mount))?;
                Err(error.to_string())
            }
        }
    }

    /// Stands still and works, by turns.
    pub fn bad_for(
        &self,
        how_long: Duration,
        frozen: Duration,
        thawed: Duration,
    ) -> Result<(), String> {
        let began = Instant::now();
        while began.elapsed() < how_long {
            self.freeze_for(frozen)?.wait()?;
            std::thread::sleep(thawed);
        }
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Nobody uses it any more, or the namespace's end unmounts it.
        let _ = done(Command::new("umount").arg("--lazy").arg(&self.mount));
    }
}

impl Frozen {
    /// Until it works again.
    pub fn wait(mut self) -> Result<(), String> {
        let status = self.0.wait().map_err(|error| error.to_string())?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("fsfreeze -u: {status}")),
        }
    }
}

fn done(command: &mut Command) -> Result<(), String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{:?}: {}",
            command.get_program(),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
