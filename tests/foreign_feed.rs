//! Archives of other programs as a stream into a directory, and the readers and writers that are here to compare with.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use blast::wire::Offer;

use crate::sink_feed::{Feed, Outcome, deliver};

/// Unpack a stream into a destination, which may be missing if it ends in a slash.
pub fn unpack_stream(stream: &[u8], dest: &Path) -> Outcome {
    let mut feed = Feed::new();
    feed.slices(stream);
    deliver(&feed, dest, &Offer::Stream)
}

/// Whether a program is here, said loudly if not.
pub fn has(program: &str, is: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    let here = version.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains(is));
    if !here {
        eprintln!("SKIPPED: there is no {is} here; scripts/test installs it");
    }
    here
}

/// Run a program in a directory, where nothing depends on who or where we are. Its warnings are its own.
pub fn run_in(dir: &Path, program: &str, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).current_dir(dir).env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
    let output = command.output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// What a program writes to its standard output.
pub fn made_by(dir: &Path, program: &str, args: &[&str]) -> Vec<u8> {
    run_in(dir, program, args).stdout
}

/// What GNU tar makes of an archive.
pub fn extract_by_tar(archive: &[u8], dest: &Path) {
    let file = dest.with_extension("tar");
    fs::write(&file, archive).unwrap();
    fs::create_dir(dest).unwrap();
    let args = ["--warning=no-timestamp", "--numeric-owner", "-xpf", file.to_str().unwrap()];
    run_in(dest, "tar", &args);
}

/// Have a program unpack an archive into a new directory; false, said loudly, if it is not here.
pub fn unpacked_by(program: &str, args: &[&str], archive: &Path, dest: &Path) -> bool {
    if !has(program, program) {
        return false;
    }
    fs::create_dir(dest).unwrap();
    run_in(dest, program, &[args, &[archive.to_str().unwrap()]].concat());
    true
}
