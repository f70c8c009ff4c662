//! Block devices for tests: files of ours that the kernel shows as devices. Nothing here, and nothing that uses it,
//! ever touches another device.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A block device whose content is a file's; it goes when this is dropped.
pub struct Loop {
    /// The device.
    pub path: PathBuf,
    /// The file.
    pub file: PathBuf,
}

impl Loop {
    /// Over a new file of this content, a multiple of 512 bytes; nothing, said loudly, where that is not allowed.
    pub fn of(file: &Path, content: &[u8]) -> Option<Loop> {
        assert!(content.len().is_multiple_of(512), "a device has whole sectors");
        std::fs::write(file, content).expect("a writable directory");
        Loop::over(file, &[])
    }

    /// Over a file, with these options of losetup.
    pub fn over(file: &Path, options: &[&str]) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).args(options).arg(file).output();
        let shown = made.as_ref().map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
        match shown {
            Ok(path) if path.starts_with("/dev/loop") => Some(Loop { path: path.into(), file: file.to_owned() }),
            _ => {
                eprintln!("SKIPPED: a block device: this needs root, losetup and a loop device: {made:?}");
                None
            }
        }
    }

    /// Let the device know that its file has another length.
    pub fn resize(&self, len: u64) {
        File::options().write(true).open(&self.file).and_then(|f| f.set_len(len)).expect("our file");
        self.tell("--set-capacity");
    }

    fn tell(&self, option: &str) {
        let done = Command::new("losetup").arg(option).arg(&self.path).status();
        assert!(done.is_ok_and(|s| s.success()), "losetup {option} {:?}", self.path);
    }

    /// What is on it.
    pub fn content(&self) -> Vec<u8> {
        let mut all = Vec::new();
        File::open(&self.path).and_then(|mut f| f.read_to_end(&mut all)).expect("a readable device");
        all
    }

    /// Write something on it.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut device = File::options().write(true).open(&self.path).expect("a writable device");
        device.seek(SeekFrom::Start(offset)).and_then(|_| device.write_all(bytes)).expect("a writable device");
        device.sync_all().expect("a device that can be synced");
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}
