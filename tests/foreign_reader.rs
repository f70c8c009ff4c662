//! What bytes mean to the reader of foreign archives: the same however they are cut, whole only if they are, and with
//! one meaning where other readers have been told two.

use blast::archive::foreign::{Ended, Event, ForeignError, Reader};
use blast::archive::{Entry, EntryKind, Timestamp};
use blast::limits::{FOREIGN_EXTENTS_MAX, FOREIGN_META_MAX};

use crate::foreign_feed::{has, made_by};
use crate::sink_feed::scratch;
use crate::sink_forge::{
    BLOCK, GID, LINK, MODE, MTIME, NAME, PREFIX, SIZE, UID, block, content, extended, extended_of, octal, record,
};
use crate::trees::{Set, small};

/// One member as it was read.
#[derive(PartialEq, Eq, Debug, Clone)]
enum Read {
    Member(Entry, Vec<&'static str>),
    /// A file with its content, holes filled with zeros.
    File(Entry, Vec<u8>, Vec<&'static str>),
    Itself(Vec<u8>),
    LeftOut(String, String),
    Beyond(u64, u64, bool),
}

/// Everything in an archive that comes in pieces.
fn read(bytes: &[u8], piece: usize) -> (Vec<Read>, Result<Ended, ForeignError>) {
    let mut reader = Reader::new();
    let mut found: Vec<Read> = Vec::new();
    let mut open: Option<(Entry, Vec<u8>, Vec<&'static str>)> = None;
    for mut input in bytes.chunks(piece.max(1)) {
        loop {
            let event = match reader.next(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(error) => return (found, Err(error)),
            };
            match event {
                Event::Member(member) if matches!(member.entry.kind, EntryKind::File { .. }) => {
                    assert_eq!(member.entry.check(), Ok(()));
                    open = Some((member.entry, Vec::new(), member.flaws));
                }
                Event::Member(member) => {
                    assert_eq!(member.entry.check(), Ok(()));
                    found.push(Read::Member(member.entry, member.flaws));
                }
                Event::Content { offset, bytes } => {
                    let content = &mut open.as_mut().expect("content is a file's").1;
                    assert!(offset >= content.len() as u64 && !bytes.is_empty());
                    content.resize(offset as usize, 0);
                    content.extend_from_slice(bytes);
                }
                Event::FileEnd => {
                    let (entry, mut content, flaws) = open.take().expect("a file ends");
                    content.resize(entry.kind.content_len() as usize, 0);
                    found.push(Read::File(entry, content, flaws));
                }
                Event::LinkToItself { path } => found.push(Read::Itself(path)),
                Event::LeftOut { path, why } => found.push(Read::LeftOut(path.escape_ascii().to_string(), why)),
                Event::Beyond { end, offset, lone } => found.push(Read::Beyond(end, offset, lone)),
            }
        }
        assert!(input.is_empty(), "all is taken");
    }
    (found, reader.finish())
}

const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// What is in an archive of these blocks, its end included, in whatever pieces it comes.
#[track_caller]
fn found(blocks: &[&[u8]]) -> Vec<Read> {
    let bytes = [&blocks.concat()[..], &END].concat();
    let (whole, end) = read(&bytes, usize::MAX);
    assert_eq!(end.expect("it is whole").short, None);
    for piece in [1, 7, 511, 512, 513, 4096] {
        let (again, end) = read(&bytes, piece);
        assert!(end.is_ok() && again == whole, "in pieces of {piece}");
    }
    whole
}

#[track_caller]
fn file_named(read: &Read, name: &str, content: &[u8]) {
    match read {
        Read::File(entry, is, flaws) => {
            assert_eq!((entry.path.escape_ascii().to_string(), flaws.len()), (name.to_owned(), 0));
            assert!(is == content, "content of {name}");
        }
        other => panic!("{other:?} is not the file {name}"),
    }
}

fn file(name: &[u8], bytes: &[u8]) -> Vec<u8> {
    [block(b'0', name, &[(SIZE, &octal(bytes.len() as u64))]), content(bytes)].concat()
}

/// A block whose checksum is put right after a change.
fn mended(mut bytes: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut bytes);
    bytes[148..156].fill(b' ');
    let sum: u32 = bytes[..BLOCK].iter().map(|b| u32::from(*b)).sum();
    bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    bytes
}

fn gnu(bytes: Vec<u8>) -> Vec<u8> {
    mended(bytes, |b| b[257..265].copy_from_slice(b"ustar  \0"))
}

/// A long name or target as GNU has it, with its NUL.
fn long(type_flag: u8, name: &[u8]) -> Vec<u8> {
    let body = [name, b"\0"].concat();
    gnu([block(type_flag, b"././@LongLink", &[(SIZE, &octal(body.len() as u64))]), content(&body)].concat())
}

#[test]
fn whatever_other_tars_make_is_the_same_in_pieces_and_never_whole_when_cut() {
    if !has("tar", "GNU tar") || !has("bsdtar", "bsdtar") {
        return;
    }
    let dir = scratch();
    let set = Set(dir.path());
    set.file("s/a", "content of a");
    set.file(format!("s/{}", "n".repeat(150)), vec![7; 700]);
    set.symlink("t".repeat(150), "s/link");
    set.hard_link("s/a", "s/hard");
    set.fifo("s/fifo");
    let sparse = std::fs::File::create(dir.path().join("s/sparse")).unwrap();
    for i in 0..6u64 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", i * 8192).unwrap();
    }
    for (program, args) in [
        ("tar", &["--format=v7"][..]),
        ("tar", &["--format=ustar"]),
        ("tar", &["--format=gnu", "-S"]),
        ("tar", &["--format=oldgnu", "-S"]),
        ("tar", &["--format=posix", "-S", "--sparse-version=0.0"]),
        ("tar", &["--format=posix", "-S", "--sparse-version=0.1"]),
        ("tar", &["--format=posix", "-S", "--sparse-version=1.0"]),
        ("bsdtar", &["--format=gnutar"]),
        ("bsdtar", &["--format=pax"]),
        ("bsdtar", &["--format=paxr"]),
        ("bsdtar", &["--format=ustar"]),
    ] {
        let rest = if program == "tar" { &["-b1", "-cf", "-", "s"][..] } else { &["-b1", "-cf", "-", "s"] };
        let archive = if ["--format=v7", "--format=ustar"].contains(&args[0]) {
            // They cannot hold the long names, and the programs say so; the older has no FIFOs.
            let names = if args[0].ends_with("v7") { ["s/a", "s/hard"] } else { ["s/a", "s/fifo"] };
            made_by(dir.path(), program, &[args, &["-b1", "-cf", "-"], &names].concat())
        } else {
            made_by(dir.path(), program, &[args, rest].concat())
        };
        let (whole, end) = read(&archive, usize::MAX);
        assert_eq!(end.expect("whole").short, None, "{args:?}");
        assert!(!whole.iter().any(|r| matches!(r, Read::LeftOut(..))), "{args:?}: {whole:?}");
        for piece in [1, 511, 700] {
            assert!(read(&archive, piece).0 == whole, "{args:?} in pieces of {piece}");
        }
        let content = archive.iter().rposition(|b| *b != 0).unwrap();
        let end = (content + 1).next_multiple_of(BLOCK) + 2 * BLOCK;
        for cut in 0..end {
            let result = read(&archive[..cut], usize::MAX).1;
            let is_whole = result.is_ok_and(|ended| ended.short.is_none());
            assert!(!is_whole, "{args:?} cut at {cut} of {end} passes for whole");
        }
        for cut in (end..archive.len()).step_by(100) {
            assert!(read(&archive[..cut], usize::MAX).1.is_ok(), "only zeros are missing");
        }
    }
}

#[test]
fn larger_archives_cut_at_any_block_are_never_whole() {
    if !has("tar", "GNU tar") {
        return;
    }
    let dir = scratch();
    small(dir.path(), 5);
    let archive = made_by(dir.path(), "tar", &["--format=posix", "-b1", "-cf", "-", "."]);
    let blocks = archive.len() / BLOCK;
    for cut in (0..blocks - 1).filter(|n| n % 101 == 0 || blocks - n < 20) {
        for more in [0, 1, 511] {
            let result = read(&archive[..cut * BLOCK + more], usize::MAX).1;
            assert!(!result.is_ok_and(|ended| ended.short.is_none()), "cut at block {cut} and {more}");
        }
    }
}

#[test]
fn what_is_no_archive_is_called_by_its_name() {
    let zip = b"PK\x03\x04".to_vec();
    for (start, words) in [
        (&b"\x1f\x8b\x08"[..], "gzip"),
        (b"\x28\xb5\x2f\xfd\0", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh9", "bzip2"),
        (&zip, "zip archive"),
        (b"070701", "cpio"),
        (b"#!/bin/sh\necho\n", "looks like text"),
        (b"\x7fELF", "as they are"),
        (b"\0\0\0", "cut off"),
    ] {
        for len in [start.len(), 511, 512, 5000] {
            let mut bytes = start.to_vec();
            let fill = if start[0] == b'#' { b'x' } else { start[start.len() - 1] };
            bytes.resize(len.max(start.len()), fill);
            if start[0] == 0 && len >= 512 {
                continue;
            }
            let error = read(&bytes, 100).1.expect_err("no archive");
            if start[0] == 0 {
                assert!(matches!(error, ForeignError::NotAnArchive { .. }));
                continue;
            }
            assert!(error.is_none() && error.to_string().contains(words), "{words}: {error}");
        }
    }
    assert_eq!(read(b"", 1).1, Err(ForeignError::Empty));
}

#[test]
fn an_archive_of_zeros_is_empty_and_says_so() {
    let (found, end) = read(&[0; 10240], 512);
    assert_eq!(found, []);
    assert_eq!(end.unwrap().remarks[0].text, "the archive is empty");
    assert_eq!(read(&[0; 512], 512).1.unwrap().short, Some(0));
}

#[test]
fn a_header_that_is_none_ends_all_belief_and_its_place_is_told() {
    let good = file(b"a", b"x");
    for spoil in [0, 100, 148, 300, 511] {
        let mut bad = block(b'0', b"b", &[]);
        bad[spoil] ^= 0x41;
        let bytes = [&good[..], &bad, &good, &END].concat();
        let (found, end) = read(&bytes, usize::MAX);
        assert_eq!(found.len(), 1);
        assert_eq!(end, Err(ForeignError::Checksum { offset: 1024 }));
    }
}

#[test]
fn bytes_where_the_archive_has_ended_are_told_once_with_their_place() {
    let good = file(b"a", b"x");
    for (tail, expected) in [
        (vec![0; 512], Some(Read::Beyond(1024, 1536, true))),
        (vec![0; 1024], Some(Read::Beyond(1024, 2048, false))),
        (vec![0; 9000], Some(Read::Beyond(1024, 1024 + 9000, false))),
    ] {
        let bytes = [&good[..], &tail, &good, &END, &good].concat();
        for piece in [1, 512, 5000, usize::MAX] {
            let (found, end) = read(&bytes, piece);
            assert_eq!(found.last(), expected.as_ref(), "in pieces of {piece}");
            assert_eq!((found.len(), end.is_ok()), (2, true));
        }
    }
    // One byte, anywhere behind the end.
    let bytes = [&good[..], &END, &[0; 700], b"x"].concat();
    assert_eq!(read(&bytes, 100).0.last(), Some(&Read::Beyond(1024, 2748, false)));
}

#[test]
fn sums_of_signed_bytes_and_numbers_of_every_notation_are_taken() {
    // As old systems summed a name that is not ASCII.
    let mut signed = block(b'0', b"caf\xe9", &[]);
    signed[148..156].fill(b' ');
    let sum: i32 = signed.iter().map(|b| i32::from(*b as i8)).sum();
    signed[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    file_named(&found(&[&signed])[0], "caf\\xe9", b"");

    let wide = block(
        b'0',
        b"wide",
        &[
            (UID, b"\x80\0\0\0\xff\xff\xff\xfe"),
            (GID, b"\x80\0\0\0\0\x2d\xc6\xc0"),
            (MTIME, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xf6"),
            (SIZE, b"\x80\0\0\0\0\0\0\0\0\0\0\x03"),
            (MODE, b" 644 \0"),
        ],
    );
    let Read::File(entry, is, flaws) = &found(&[&wide, &content(b"abc")])[0] else { panic!("a file") };
    assert_eq!((entry.uid, entry.gid, entry.mode), (4294967294, 3000000, 0o644));
    assert_eq!((entry.mtime, &is[..], flaws.len()), (Timestamp { secs: -10, nanos: 0 }, &b"abc"[..], 0));
}

#[test]
fn attributes_that_are_no_numbers_are_flaws_and_a_size_that_is_none_is_the_end() {
    let odd = block(
        b'0',
        b"odd",
        &[(UID, b"nobody"), (GID, b"\xff\xff\xff\xff\xff\xff\xff\xff"), (MTIME, b"9"), (MODE, b"rw")],
    );
    let Read::File(entry, _, flaws) = &found(&[&odd])[0] else { panic!("a file") };
    assert_eq!((entry.uid, entry.gid, entry.mode, flaws.len()), (65534, 65534, 0o600, 4));
    for size in [&b"x"[..], b"-1", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x80\0\0\0\x80\0\0\0\0\0\0\0"]
    {
        let bytes = [&block(b'0', b"odd", &[(SIZE, size)])[..], &END].concat();
        assert_eq!(read(&bytes, usize::MAX).1, Err(ForeignError::Size { offset: 0 }));
    }
}

#[test]
fn the_extended_header_beats_gnus_long_names_and_both_the_block() {
    let path = |name: &str| extended(record("path", name));
    let plain = file(b"block", b"");
    file_named(&found(&[&long(b'L', b"gnu"), &plain])[0], "gnu", b"");
    file_named(&found(&[&path("pax"), &plain])[0], "pax", b"");
    file_named(&found(&[&path("pax"), &long(b'L', b"gnu"), &plain])[0], "pax", b"");
    file_named(&found(&[&long(b'L', b"gnu"), &path("pax"), &plain])[0], "pax", b"");
    file_named(&found(&[&path("one"), &path("two"), &plain])[0], "two", b"");
    file_named(&found(&[&extended([record("path", "one"), record("path", "two")].concat()), &plain])[0], "two", b"");
    let link = block(b'2', b"l", &[(LINK, b"block")]);
    let target = |found: Vec<Read>| match &found[0] {
        Read::Member(entry, _) => entry.kind.target().unwrap().to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!(target(found(&[&long(b'K', b"gnu"), &link])), b"gnu");
    assert_eq!(target(found(&[&long(b'K', b"gnu"), &extended(record("linkpath", "pax")), &link])), b"pax");
    // They are about one member only.
    let both = found(&[&path("pax"), &plain, &plain]);
    file_named(&both[1], "block", b"");
}

/// A size in the extended header is the member's, never that of what stands between them; the block's own is passed
/// over.
#[test]
fn the_size_of_an_extended_header_is_the_members_and_only_one_is_believed() {
    let inner = file(b"smuggled", b"evil");
    let size = extended(record("size", inner.len().to_string()));
    for claim in [0, 1, 512, 100_000] {
        let outer = block(b'0', b"outer", &[(SIZE, &octal(claim))]);
        let is = found(&[&size, &outer, &inner]);
        assert_eq!(is.len(), 1);
        file_named(&is[0], "outer", &inner);
        let is = found(&[&size, &long(b'L', b"long"), &outer, &inner]);
        assert_eq!(is.len(), 1);
        file_named(&is[0], "long", &inner);
    }
}

#[test]
fn a_value_that_looks_like_a_record_stays_a_value() {
    let value = [b"x\n", &record("path", "smuggled")[..]].concat();
    for key in ["comment", "VENDOR.note"] {
        file_named(&found(&[&extended(record(key, &value)), &file(b"honest", b"1")])[0], "honest", b"1");
    }
    let name = std::str::from_utf8(&value).unwrap();
    file_named(&found(&[&extended(record("path", name)), &file(b"x", b"")])[0], &value.escape_ascii().to_string(), b"");
    // Lengths that are not a record's own.
    for body in [&b"6 path=x\n"[..], b"99 path=x\n", b"x path=x\n", b"0 path=x\n", b"10 path=x", b"-9 path=x\n"] {
        let bytes = [&extended(body)[..], &file(b"honest", b""), &END].concat();
        let (found, end) = read(&bytes, usize::MAX);
        assert_eq!((found.len(), end), (0, Err(ForeignError::Record { offset: 512 })), "{}", body.escape_ascii());
    }
}

#[test]
fn a_global_header_names_no_member_and_hides_none() {
    let keys = [
        record("path", "/etc/cron.d/evil"),
        record("linkpath", "evil"),
        record("size", "0"),
        record("GNU.sparse.name", "evil"),
        record("uid", "77"),
    ];
    let global = extended_of(b'g', keys.concat());
    let is = found(&[&global, &file(b"a", b"content"), &block(b'2', b"l", &[(LINK, b"t")]), &file(b"b", b"more")]);
    file_named(&is[0], "a", b"content");
    let Read::Member(link, _) = &is[1] else { panic!("a link") };
    assert_eq!((link.kind.target(), link.uid), (Some(&b"t"[..]), 77));
    file_named(&is[2], "b", b"more");
    let end = read(&[&global[..], &file(b"a", b""), &END].concat(), 9).1.unwrap();
    assert_eq!(end.remarks.len(), 1);
    assert!(end.remarks[0].text.starts_with("4 records of global headers"), "{}", end.remarks[0].text);
}

#[test]
fn a_hard_link_has_content_only_if_no_header_follows() {
    let link = |size: u64| block(b'1', b"l", &[(LINK, b"a"), (SIZE, &octal(size))]);
    let a = file(b"a", b"content");
    // A writer that gives the size of the file, and one that gives its content too.
    for blocks in [&[&a[..], &link(7), &file(b"b", b"")][..], &[&a, &link(7), &content(b"content"), &file(b"b", b"")]] {
        let is = found(blocks);
        assert_eq!(is.len(), 3);
        file_named(&is[2], "b", b"");
    }
    assert_eq!(found(&[&a, &link(7)]).len(), 2);
    assert_eq!(found(&[&a, &link(1000), &content(&[b'x'; 1000])]).len(), 2);
    // What is neither file nor link has none, whatever it says.
    for type_flag in *b"256" {
        let odd = block(type_flag, b"odd", &[(LINK, if type_flag == b'2' { b"t" } else { b"" }), (SIZE, &octal(700))]);
        file_named(&found(&[&odd, &file(b"b", b"")])[1], "b", b"");
    }
}

#[test]
fn prefixes_count_only_where_the_layout_has_one() {
    let with_prefix = block(b'0', b"name", &[(PREFIX, b"some/where")]);
    file_named(&found(&[&with_prefix])[0], "some/where/name", b"");
    file_named(&found(&[&gnu(with_prefix.clone())])[0], "name", b"");
    file_named(&found(&[&mended(with_prefix.clone(), |b| b[257..265].fill(0))])[0], "name", b"");
    // star's is shorter, with times behind it.
    let star = mended(with_prefix, |b| {
        b[476..500].copy_from_slice(b"07237450042 07237450042 ");
        b[508..512].copy_from_slice(b"tar\0");
    });
    file_named(&found(&[&star])[0], "some/where/name", b"");
    let directory = block(b'0', b"v7-directory/", &[]);
    assert!(matches!(&found(&[&directory])[0], Read::Member(entry, _) if entry.kind.is_directory()));
    assert!(
        matches!(&found(&[&mended(directory, |b| b[156] = 0)])[0], Read::Member(entry, _) if entry.kind.is_directory())
    );
}

#[test]
fn names_that_lead_out_are_left_out_and_what_follows_is_not() {
    let evil = file(b"../evil", b"content");
    let after = file(b"after", b"");
    for blocks in [
        vec![evil],
        vec![extended(record("path", "a/../../evil")), file(b"x", b"content")],
        vec![long(b'L', b"/../evil"), file(b"x", b"content")],
        vec![block(b'0', b"evil", &[(PREFIX, b"..")])],
        vec![block(b'5', b"..", &[])],
        vec![block(b'1', b"l", &[(LINK, b"../../etc/passwd")])],
        vec![block(b'1', b"../l", &[(LINK, b"x"), (SIZE, &octal(5))]), content(b"abcde")],
        vec![extended(record("path", b"nul\0../x")), file(b"x", b"1")],
        vec![extended(record("path", "c".repeat(256))), file(b"x", b"1")],
        vec![extended(record("path", "c/".repeat(300_000))), file(b"x", b"1")],
        vec![block(b'0', b"", &[])],
        vec![block(b'0', b".", &[])],
        vec![block(b'2', b"l", &[])],
        vec![block(b'Z', b"unknown", &[(SIZE, &octal(600))]), content(&[1; 600])],
        vec![block(b'M', b"continued", &[(SIZE, &octal(3))]), content(b"abc")],
    ] {
        let is = found(&[&blocks.concat(), &after]);
        assert_eq!(is.len(), 2, "{is:?}");
        assert!(matches!(is[0], Read::LeftOut(..)), "{is:?}");
        file_named(&is[1], "after", b"");
    }
    assert_eq!(found(&[&block(b'1', b"./x", &[(LINK, b"/x")])]), [Read::Itself(b"x".to_vec())]);
}

/// GNU's header of a file with holes.
fn sparse(name: &[u8], stored: u64, real: u64, extents: &[(u64, u64)], more: bool) -> Vec<u8> {
    let header = block(b'S', name, &[(SIZE, &octal(stored))]);
    gnu(mended(header, |b| {
        b[386..500].fill(0);
        for (i, (offset, len)) in extents.iter().enumerate() {
            b[386 + i * 24..][..11].copy_from_slice(&octal(*offset));
            b[398 + i * 24..][..11].copy_from_slice(&octal(*len));
        }
        b[482] = more.into();
        b[483..494].copy_from_slice(&octal(real));
    }))
}

fn map_1_0(map: &str, stored: &[u8], real: u64) -> Vec<u8> {
    let keys = [
        record("GNU.sparse.major", "1"),
        record("GNU.sparse.minor", "0"),
        record("GNU.sparse.name", "real"),
        record("GNU.sparse.realsize", real.to_string()),
    ];
    let body = [&content(map.as_bytes())[..], stored].concat();
    [extended(keys.concat()), file(b"GNUSparseFile.0/real", &body)].concat()
}

fn map_0_1(map: &str, stored: &[u8], real: u64) -> Vec<u8> {
    let keys =
        [record("GNU.sparse.map", map), record("GNU.sparse.size", real.to_string()), record("GNU.sparse.name", "real")];
    [extended(keys.concat()), file(b"GNUSparseFile.0/real", stored)].concat()
}

#[test]
fn files_with_holes_in_every_form() {
    let whole = [&b"abc"[..], &[0; 997], b"de"].concat();
    let zero = [
        record("GNU.sparse.size", "1002"),
        record("GNU.sparse.numblocks", "2"),
        record("GNU.sparse.offset", "0"),
        record("GNU.sparse.numbytes", "3"),
        record("GNU.sparse.offset", "1000"),
        record("GNU.sparse.numbytes", "2"),
    ];
    for blocks in [
        [sparse(b"real", 5, 1002, &[(0, 3), (1000, 2)], false), content(b"abcde")].concat(),
        [sparse(b"real", 5, 1002, &[(0, 3), (1000, 2), (1002, 0)], false), content(b"abcde")].concat(),
        map_1_0("2\n0\n3\n1000\n2\n", b"abcde", 1002),
        map_1_0("3\n0\n3\n1000\n2\n1002\n0\n", b"abcde", 1002),
        map_0_1("0,3,1000,2", b"abcde", 1002),
        map_0_1("0,3,1000,2,", b"abcde", 1002),
        [extended(zero.concat()), file(b"real", b"abcde")].concat(),
    ] {
        let is = found(&[&blocks, &file(b"after", b"")]);
        assert_eq!(is.len(), 2, "{is:?}");
        file_named(&is[0], "real", &whole);
        file_named(&is[1], "after", b"");
    }
    // A map that goes on in blocks of its own.
    let first: Vec<_> = (0..4).map(|i| (i * 10, 1)).collect();
    let mut more = vec![0; BLOCK];
    for i in 0..21usize {
        more[i * 24..][..11].copy_from_slice(&octal(40 + i as u64 * 10));
        more[i * 24 + 12..][..11].copy_from_slice(&octal(1));
    }
    let is = found(&[&sparse(b"real", 25, 300, &first, true), &more, &content(&[b'x'; 25]), &file(b"after", b"")]);
    let mut whole = vec![0; 300];
    (0..25).for_each(|i| whole[i * 10] = b'x');
    file_named(&is[0], "real", &whole);
    file_named(&is[1], "after", b"");
}

#[test]
fn maps_that_make_no_sense_cost_the_file_and_no_other() {
    let future = [record("GNU.sparse.major", "2"), record("GNU.sparse.minor", "0"), record("GNU.sparse.realsize", "9")];
    let half = [record("GNU.sparse.size", "9"), record("GNU.sparse.offset", "0")];
    let solaris = record("SUN.holesdata", " 0 5 ");
    let wide = format!("{}\n0\n5\n", FOREIGN_EXTENTS_MAX + 1);
    for blocks in [
        [sparse(b"n", 5, 10, &[(0, 5), (3, 5)], false), content(b"abcde")].concat(),
        [sparse(b"n", 5, 10, &[(0, 4)], false), content(b"abcde")].concat(),
        [sparse(b"n", 5, 4, &[(0, 5)], false), content(b"abcde")].concat(),
        [sparse(b"../n", 5, 9, &[(0, 1), (2, 1), (4, 1), (6, 1)], true), vec![0; BLOCK], content(b"abcde")].concat(),
        [mended(sparse(b"n", 5, 10, &[(0, 5)], false), |b| b[386] = b'x'), content(b"abcde")].concat(),
        [mended(sparse(b"n", 5, 10, &[(0, 5)], false), |b| b[483] = b'x'), content(b"abcde")].concat(),
        // No map of GNU's in a block that is not its own.
        [
            mended(sparse(b"n", 5, 10, &[(0, 5)], false), |b| b[257..265].copy_from_slice(b"ustar\x0000")),
            content(b"abcde"),
        ]
        .concat(),
        map_1_0("", b"", 5),
        map_1_0("1\n0\n", b"abcde", 5),
        map_1_0("1\n0\nx\n", b"abcde", 5),
        map_1_0("1\n\n5\n", b"abcde", 5),
        map_1_0("1\n0\n6\n", b"abcde", 6),
        map_1_0("2\n0\n5\n3\n2\n", b"abcdefg", 7),
        map_1_0("18446744073709551615\n0\n5\n", b"abcde", 5),
        map_1_0("1\n18446744073709551615\n5\n", b"abcde", 5),
        map_1_0(&wide, b"abcde", 5),
        map_0_1("0,3,1000", b"abcde", 1002),
        map_0_1("0,5,x,1", b"abcde", 1002),
        map_0_1("9223372036854775807,5", b"abcde", 1002),
        [extended(future.concat()), file(b"n", b"abcde")].concat(),
        [extended(half.concat()), file(b"n", b"abcde")].concat(),
        [extended(record("GNU.sparse.new", "1")), file(b"n", b"abcde")].concat(),
        [extended(solaris), file(b"n", b"abcde")].concat(),
    ] {
        let is = found(&[&blocks, &file(b"after", b"")]);
        assert_eq!(is.len(), 2, "{is:?}");
        assert!(matches!(is[0], Read::LeftOut(..)), "{is:?}");
        file_named(&is[1], "after", b"");
    }
}

#[test]
fn nothing_grows_by_what_a_header_claims() {
    for type_flag in *b"xgLKX" {
        for claim in [FOREIGN_META_MAX + 1, 1 << 30, 0o77777777777] {
            let bytes = block(type_flag, b"././@PaxHeader", &[(SIZE, &octal(claim))]);
            let end = read(&bytes, usize::MAX).1;
            assert_eq!(end, Err(ForeignError::TooLong { offset: 0, len: claim }));
        }
    }
    // Nor by many of them before one member.
    let half = extended(record("comment", "c".repeat(FOREIGN_META_MAX as usize / 2)));
    let bytes = [&half[..], &half, &file(b"a", b"")].concat();
    assert!(matches!(read(&bytes, usize::MAX).1, Err(ForeignError::TooLong { .. })));
    found(&[&half, &file(b"a", b""), &half, &file(b"b", b"")]);
}

#[test]
fn what_is_said_about_a_member_that_does_not_come_is_told() {
    let is = found(&[&file(b"a", b""), &extended(record("path", "lost"))]);
    assert_eq!(is[1], Read::LeftOut("lost".into(), "its header is missing".into()));
    let name_only = block(b'0', b"x", &[(NAME, b"named")]);
    file_named(&found(&[&name_only])[0], "named", b"");
}
