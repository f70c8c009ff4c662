//! What was received, read again from the disk after all of it was synced, and before anybody hears of success.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use crate::error::{Error, escape};
use crate::manifest::Line;
use crate::read_back;
use crate::report::{Difference, DifferenceKind, ReadBack};
use crate::sink::{Readable, Recorder, SinkEnd};
use crate::stats::{Phase, Stage, Stats, timed};

/// Files that differ and are named one by one.
const NAMES_MAX: usize = 100;

/// Read everything that `end` is about, and compare it with what has come.
///
/// # Errors
/// Something is not on the disk as it was sent, or cannot be read there; each such file is named.
pub(super) fn run(readable: &Readable, recorder: &Recorder, end: SinkEnd, stats: &Stats) -> Result<SinkEnd, Error> {
    stats.enter(Phase::ReadingBack);
    // As the sync, it is time of the receiver's disk after everything has arrived.
    let (compared, time) = timed(|| compare(readable, recorder, &end, stats));
    stats.watch(Stage::Sync).busy.add(time);
    Ok(SinkEnd { read_back: Some(compared?), ..end })
}

fn compare(readable: &Readable, recorder: &Recorder, end: &SinkEnd, stats: &Stats) -> Result<ReadBack, Error> {
    let progress = |_, bytes| {
        stats.read_back.fetch_add(bytes, Relaxed);
    };
    match readable {
        Readable::Below(root) => {
            let differences = Mutex::new(Vec::new());
            let tell = |difference: Difference| {
                let mut named = differences.lock().expect("no thread panics while it holds this lock");
                if named.len() < NAMES_MAX {
                    named.push(difference);
                }
            };
            let lines = |visit: &mut dyn FnMut(Line)| {
                recorder.each_file(visit).map_err(|source| Error::Destination {
                    what: "the digests of what was received are lost, so it cannot be read back".into(),
                    source,
                })
            };
            let verified = read_back::compare(root, lines, &progress, &tell)?;
            let differ = verified.counts.iter().sum::<u64>();
            if differ > 0 {
                let named = differences.into_inner().expect("no thread panics while it holds this lock");
                return Err(differs(differ, named));
            }
            Ok(ReadBack { files: verified.files, bytes: verified.bytes })
        }
        Readable::Device(fd) => {
            let digest = read_back::device(fd, end.content_bytes, &progress);
            let digest = digest.map_err(|why| not_as_sent(&format!("the device cannot be read: {why}")))?;
            if Some(digest) != end.stream_digest {
                return Err(not_as_sent("the device"));
            }
            Ok(ReadBack { files: 1, bytes: end.content_bytes })
        }
    }
}

fn not_as_sent(what: &str) -> Error {
    Error::Verification(format!("read back from the disk, this is not what was sent: {what}"))
}

/// In the order of their paths.
fn differs(differ: u64, mut named: Vec<Difference>) -> Error {
    named.sort_by(|a, b| a.path.cmp(&b.path));
    let names = named.iter().map(|Difference { kind, path, detail }| {
        let why = match kind {
            DifferenceKind::Content | DifferenceKind::Extra => "",
            DifferenceKind::Missing => " (it is gone)",
            DifferenceKind::Unreadable => " (it cannot be read)",
            DifferenceKind::Irregular => " (something else has its name)",
        };
        let detail = if detail.is_empty() { String::new() } else { format!(": {}", escape(detail.as_bytes())) };
        format!("'{}'{why}{detail}", escape(path))
    });
    let more = match differ - named.len() as u64 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let files = if differ == 1 { "1 file" } else { &format!("{differ} files") };
    not_as_sent(&format!("{files}: {}{more}", names.collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;

    use super::*;
    use crate::ids::Digest;
    use crate::manifest::Pen;

    fn told(error: Error) -> String {
        assert!(matches!(error, Error::Verification(_)), "{error}");
        error.to_string()
    }

    /// A directory with files of these names, each with its name as content, and who has recorded them.
    fn received(names: &[&str]) -> (tempfile::TempDir, Readable, Arc<Recorder>) {
        let dir = tempfile::tempdir().unwrap();
        let mut pen = Pen::unnamed(None).unwrap();
        for name in names {
            std::fs::write(dir.path().join(name), name).unwrap();
            pen.file(Digest(blake3::hash(name.as_bytes()).into()), name.as_bytes());
        }
        let root = std::fs::File::open(dir.path()).unwrap().into();
        (dir, Readable::Below(root), Recorder::new(pen))
    }

    #[test]
    fn what_the_disk_has_is_compared_with_what_came() {
        let (dir, readable, recorder) = received(&["a", "b\n", "c"]);
        let stats = Stats::default();
        let end = SinkEnd { entries: 9, ..SinkEnd::default() };
        let end = run(&readable, &recorder, end, &stats).unwrap();
        assert_eq!((end.entries, end.read_back), (9, Some(ReadBack { files: 3, bytes: 4 })));
        assert_eq!(stats.read_back.load(Relaxed), 4);
        std::fs::write(dir.path().join("b\n"), "x\n").unwrap();
        std::fs::remove_file(dir.path().join("c")).unwrap();
        std::fs::create_dir(dir.path().join("c")).unwrap();
        let error = told(run(&readable, &recorder, SinkEnd::default(), &stats).unwrap_err());
        let right = "verification failed: read back from the disk, this is not what was sent: 2 files: 'b\\n', 'c' \
                     (something else has its name): a directory";
        assert_eq!(error, right);
    }

    #[test]
    fn of_many_that_differ_the_first_are_named_and_the_rest_counted() {
        let names: Vec<String> = (0..NAMES_MAX + 5).map(|i| format!("f{i:03}")).collect();
        let (dir, readable, recorder) = received(&names.iter().map(String::as_str).collect::<Vec<_>>());
        names.iter().for_each(|name| std::fs::remove_file(dir.path().join(name)).unwrap());
        let error = told(run(&readable, &recorder, SinkEnd::default(), &Stats::default()).unwrap_err());
        assert!(error.contains(": 105 files: 'f0") && error.ends_with("(it is gone) and 5 more"), "{error}");
    }

    #[test]
    fn of_a_device_only_what_came_is_compared() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"what came, and what was there before", 0).unwrap();
        let digest = Some(Digest(blake3::hash(b"what came").into()));
        let end = SinkEnd { content_bytes: 9, stream_digest: digest, ..SinkEnd::default() };
        let device = |file: &std::fs::File| Readable::Device(file.try_clone().unwrap().into());
        let recorder = Recorder::new(Pen::unnamed(None).unwrap());
        let reopened =
            std::fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap();
        let read = run(&device(&reopened), &recorder, end.clone(), &Stats::default()).unwrap().read_back;
        assert_eq!(read, Some(ReadBack { files: 1, bytes: 9 }));
        file.write_all_at(b"W", 0).unwrap();
        let reopened =
            std::fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap();
        let error = told(run(&device(&reopened), &recorder, end, &Stats::default()).unwrap_err());
        assert!(error.ends_with("not what was sent: the device"), "{error}");
    }
}
