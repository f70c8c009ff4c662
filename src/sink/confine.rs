//! Confines the receiver with Landlock, so that what the jail is there for holds for mistakes of ours too: from then on
//! this thread, and every thread that it starts, creates, writes, renames, links, truncates and removes below the
//! destination only. Reading is left as it is: interfaces, `/proc` and the peer's files are looked at everywhere.
//!
//! Best effort. It needs Linux 5.19 (ABI 2): before that, hard links between directories could not be allowed. What is
//! open already stays writable, so a file that is received under a temporary name, standard output and the manifest's
//! draft need no rule for their bytes.
//!
//! What Landlock knows are directories with all that is below them. So the parent of a file that is received may get
//! new files and lose files at any depth, though none that exists can be written to; and the parent of a directory that
//! we have made may lose empty directories, since ours goes again if nothing came into it.

use std::os::fd::{BorrowedFd, OwnedFd};

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, make_bitflags,
};

/// What may be done below one directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leave {
    /// Everything.
    All,
    /// Give names to files, and take names away.
    Names,
    /// Make files and write to them as well.
    Files,
    /// Remove directories that are empty.
    EmptyDirectories,
}

impl Leave {
    fn access(self) -> BitFlags<AccessFs> {
        match self {
            Leave::All => AccessFs::from_write(HANDLED),
            Leave::Names => make_bitflags!(AccessFs::{MakeReg | RemoveFile}),
            Leave::Files => Leave::Names.access() | AccessFs::WriteFile,
            Leave::EmptyDirectories => AccessFs::RemoveDir.into(),
        }
    }
}

/// Truncation came with ABI 3; later ones add nothing that concerns files below a directory.
const HANDLED: ABI = ABI::V3;

/// Confine this thread and all that it starts to these directories. Says why if it cannot be done; then nothing has
/// changed.
pub(super) fn confine(leave: &[(BorrowedFd<'_>, Leave)]) -> Result<(), String> {
    let confined = || -> Result<RulesetStatus, RulesetError> {
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_write(ABI::V2))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_write(HANDLED))?
            .create()?;
        for (directory, leave) in leave {
            rules = rules.add_rule(PathBeneath::new(directory, leave.access()))?;
        }
        if let Ok(null) = PathFd::new("/dev/null") {
            rules = rules.add_rule(PathBeneath::new(null, AccessFs::WriteFile))?;
        }
        Ok(rules.restrict_self()?.ruleset)
    };
    match confined() {
        Ok(RulesetStatus::NotEnforced) => Err("this kernel has no Landlock".into()),
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

/// Where else this process must be able to write, and who is told what came of it.
pub(super) struct Confinement {
    pub also: Vec<OwnedFd>,
    pub tell: Box<dyn FnOnce(Result<(), String>) + Send>,
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    /// Run `test` in a thread of its own, confined; nothing, said loudly, where that cannot be done.
    fn confined(leave: &[(&Path, Leave)], test: impl FnOnce() + Send) {
        let opened: Vec<(File, Leave)> =
            leave.iter().map(|(path, leave)| (File::open(path).unwrap(), *leave)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let leave: Vec<_> = opened.iter().map(|(file, leave)| (file.as_fd(), *leave)).collect();
                match confine(&leave) {
                    Ok(()) => test(),
                    Err(why) => eprintln!("SKIPPED: Landlock: {why}"),
                }
            });
        });
    }

    fn denied<T>(result: std::io::Result<T>) {
        let error = result.err().expect("denied").raw_os_error();
        assert!([Some(libc::EACCES), Some(libc::EXDEV)].contains(&error), "{error:?}");
    }

    #[test]
    fn below_the_destination_all_goes_on_and_outside_nothing_can_be_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
        for place in [&inside, &outside] {
            fs::create_dir_all(place.join("empty")).unwrap();
            fs::write(place.join("file"), "before").unwrap();
        }
        symlink(&outside, inside.join("out")).unwrap();
        confined(&[(&inside, Leave::All)], || {
            // A thread started later is confined too.
            std::thread::spawn({
                let file = outside.join("new");
                move || denied(File::create(file))
            })
            .join()
            .unwrap();
            for outside in [&outside, &inside.join("out")] {
                denied(File::create(outside.join("new")));
                denied(OpenOptions::new().append(true).open(outside.join("file")));
                denied(fs::remove_file(outside.join("file")));
                denied(fs::remove_dir(outside.join("empty")));
                denied(fs::create_dir(outside.join("new")));
                denied(symlink("x", outside.join("new")));
                denied(fs::hard_link(inside.join("file"), outside.join("new")));
                denied(fs::hard_link(outside.join("file"), inside.join("new")));
                denied(fs::rename(outside.join("file"), inside.join("new")));
                denied(fs::rename(inside.join("file"), outside.join("new")));
                assert_eq!(fs::read(outside.join("file")).unwrap(), b"before");
            }
            fs::create_dir(inside.join("d")).unwrap();
            fs::write(inside.join("d/f"), "x").unwrap();
            fs::hard_link(inside.join("d/f"), inside.join("g")).unwrap();
            fs::rename(inside.join("g"), inside.join("d/h")).unwrap();
            File::options().write(true).open(inside.join("d/h")).unwrap().set_len(0).unwrap();
            symlink("x", inside.join("s")).unwrap();
            rustix::fs::mknodat(
                rustix::fs::CWD,
                inside.join("p"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR,
                0,
            )
            .unwrap();
            fs::remove_dir_all(inside.join("d")).unwrap();
            fs::write("/dev/null", "x").unwrap();
        });
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"before");
        // This thread is not confined.
        fs::write(outside.join("new"), "x").unwrap();
    }

    #[test]
    fn where_one_file_is_received_no_other_is_written_to() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("other"), "before").unwrap();
        let received = File::create(dir.path().join("temporary")).unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        confined(&[(dir.path(), Leave::Names)], || {
            denied(OpenOptions::new().write(true).open(dir.path().join("other")));
            denied(fs::create_dir(dir.path().join("new")));
            denied(fs::remove_dir(dir.path().join("d")));
            std::io::Write::write_all(&mut &received, b"received").unwrap();
            received.set_len(3).unwrap();
            fs::rename(dir.path().join("temporary"), dir.path().join("name")).unwrap();
        });
        assert_eq!(fs::read(dir.path().join("other")).unwrap(), b"before");
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join("made")).unwrap();
        fs::write(parent.path().join("f"), "x").unwrap();
        confined(&[(parent.path(), Leave::EmptyDirectories)], || {
            denied(fs::remove_file(parent.path().join("f")));
            denied(fs::create_dir(parent.path().join("new")));
            fs::remove_dir(parent.path().join("made")).unwrap();
        });
    }
}
