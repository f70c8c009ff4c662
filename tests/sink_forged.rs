//! Hostile archives by the hundred, from tables of what can be wrong with one. Each is refused, or does no more than
//! make entries inside the destination; a tree outside is compared whole after each.

use blast::Error;
use blast::archive::{Entry, EntryKind};
use blast::limits::CHUNK_LEN;

use crate::foreign_feed::unpack_stream;
use crate::sink_feed::*;
use crate::sink_forge::{
    BLOCK, GID, LINK, MODE, MTIME, NAME, PREFIX, SIZE, UID, block, content, extended, extended_of, octal, record,
};
use crate::sink_hostile::Canary;

/// What may come of an archive.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    /// It ends the transfer.
    Refused,
    /// It may also end well or with notes; nothing outside has changed.
    Harmless,
}
use Verdict::{Harmless, Refused};

/// What follows an honest beginning. The canary is given for absolute paths.
type Build = Box<dyn Fn(&Canary) -> Vec<u8>>;

/// Where a link leads; the canary is given for absolute paths.
type Target = fn(&Canary) -> String;

struct Case {
    name: String,
    build: Build,
    verdict: Verdict,
}

fn case(name: impl Into<String>, verdict: Verdict, build: impl Fn(&Canary) -> Vec<u8> + 'static) -> Case {
    Case { name: name.into(), build: Box::new(build), verdict }
}

const TYPES: &[u8; 5] = b"01256";

/// Character and block devices, which have numbers as well.
const DEVICES: [u8; 2] = *b"34";

fn of_type(type_flag: u8, name: &[u8]) -> Vec<u8> {
    let target: &[u8] = if b"12".contains(&type_flag) { b"t" } else { b"" };
    let slash: &[u8] = if type_flag == b'5' && name.len() < 100 { b"/" } else { b"" };
    block(type_flag, &[name, slash].concat(), &[(LINK, target)])
}

/// Names, in the plain block and in an extended header.
fn names() -> Vec<Case> {
    let names: [&[u8]; 14] = [
        b"..",
        b"../outside/file",
        b"../../../../../../etc/blast-was-here",
        b"t/../../outside/new",
        b"t/..",
        b"/",
        b"/blast-was-here",
        b"//blast-was-here",
        b"./x",
        b"x/.",
        b"a//x",
        b"x//",
        b".",
        b"..\0x",
    ];
    let mut cases = Vec::new();
    for name in names {
        for type_flag in *TYPES {
            let title = format!("'{}' as {}", name.escape_ascii(), type_flag as char);
            // A block's name ends at its NUL, and a directory of no name but a dot is the root, which came already.
            cases.push(case(title.clone(), Refused, move |_| of_type(type_flag, name)));
            cases.push(case(title.clone() + ", extended", Refused, move |_| {
                [extended(record("path", name)), of_type(type_flag, b"honest")].concat()
            }));
            let long = [&b"n".repeat(200), &b"/../"[..], name].concat();
            cases.push(case(title + ", long", Refused, move |_| {
                let cut = &long[..100];
                [extended(record("path", &long)), of_type(type_flag, cut)].concat()
            }));
        }
    }
    for type_flag in *TYPES {
        cases.push(case(format!("absolute, as {}", type_flag as char), Refused, move |canary| {
            of_type(type_flag, canary.outside("new").as_bytes())
        }));
        cases.push(case(format!("absolute by prefix, as {}", type_flag as char), Refused, move |canary| {
            let outside = canary.outside("");
            let prefix = outside.trim_end_matches('/').as_bytes();
            block(type_flag, b"new", &[(PREFIX, prefix), (LINK, if b"12".contains(&type_flag) { b"t" } else { b"" })])
        }));
        cases.push(case(format!("dots by prefix, as {}", type_flag as char), Refused, move |_| {
            block(
                type_flag,
                b"outside",
                &[(PREFIX, b".."), (LINK, if b"12".contains(&type_flag) { b"t" } else { b"" })],
            )
        }));
    }
    cases.push(case("a component of 256 bytes", Refused, |_| {
        let long = b"n".repeat(256);
        [extended(record("path", &long)), block(b'0', &long, &[])].concat()
    }));
    cases.push(case("a path of 400 KiB", Refused, |_| {
        let long = b"n/".repeat(200 << 10);
        [extended(record("path", &long[..long.len() - 1])), block(b'0', &long[..100], &[])].concat()
    }));
    for name in
        [&b"new\nline"[..], b"\x1b[31m", b"..a", b"a..", b"...", b" ", b"-rf", b"~", b"\xff\xfe", b"c:\\x", b"*"]
    {
        cases.push(case(format!("'{}'", name.escape_ascii()), Harmless, move |_| of_type(b'0', name)));
    }
    cases
}

/// Targets of links.
fn targets() -> Vec<Case> {
    let mut cases = Vec::new();
    for target in
        ["..", "../outside/file", "/etc/passwd", "t/../../outside/file", "./t", "t/", "", "h", "//t", "t/.", "."]
    {
        cases.push(case(format!("a hard link to '{target}'"), Refused, move |_| {
            block(b'1', b"h", &[(LINK, target.as_bytes())])
        }));
    }
    cases.push(case("a hard link to the canary", Refused, |canary| {
        block(b'1', b"h", &[(LINK, canary.outside("file").as_bytes())])
    }));
    for target in ["missing", "t/x", "d/../t"] {
        cases.push(case(format!("a hard link to '{target}', then a file of its name"), Harmless, move |_| {
            let link = block(b'1', b"h", &[(LINK, target.as_bytes())]);
            [link, block(b'0', b"h", &[(SIZE, &octal(1))]), content(b"x")].concat()
        }));
    }
    for target in [&b""[..], b"\0"] {
        cases.push(case("a symbolic link to nothing", Refused, move |_| block(b'2', b"s", &[(LINK, target)])));
    }
    cases.push(case("a symbolic link to 4096 bytes", Refused, |_| {
        let long = b"t".repeat(4096);
        [extended(record("linkpath", &long)), block(b'2', b"s", &[(LINK, &long)])].concat()
    }));
    cases.push(case("a symbolic link to a NUL", Refused, |_| {
        let long = [&b"t".repeat(120)[..], b"\0x"].concat();
        [extended(record("linkpath", &long)), block(b'2', b"s", &[(LINK, &long)])].concat()
    }));
    cases
}

/// A symbolic link, then something of its name or below it.
fn through_links() -> Vec<Case> {
    let mut cases = Vec::new();
    let targets: [(&str, Target); 5] = [
        ("the canary", |canary| canary.outside("")),
        ("its file", |canary| canary.outside("file")),
        ("what is beside", |_| "../outside".into()),
        ("itself", |_| "link".into()),
        ("the destination", |_| ".".into()),
    ];
    for (to, target) in targets {
        for type_flag in *TYPES {
            for (name, verdict) in [(&b"link"[..], Harmless), (b"link/file", Refused), (b"link/sub/new", Refused)] {
                let title = format!("a link to {to}, then '{}' as {}", name.escape_ascii(), type_flag as char);
                cases.push(case(title, verdict, move |canary| {
                    let link = block(b'2', b"link", &[(LINK, target(canary).as_bytes())]);
                    [link, of_type(type_flag, name)].concat()
                }));
            }
        }
    }
    cases
}

/// Two entries of one name, of any two types, and one below both.
fn conflicts() -> Vec<Case> {
    let mut cases = Vec::new();
    for first in *TYPES {
        for second in *TYPES {
            let title = format!("one name as {} and as {}", first as char, second as char);
            cases.push(case(title, Harmless, move |_| [of_type(first, b"n"), of_type(second, b"n")].concat()));
        }
        if first != b'5' {
            cases.push(case(format!("a name below what is {}", first as char), Refused, move |_| {
                [of_type(first, b"n"), of_type(b'0', b"n/x")].concat()
            }));
        }
    }
    cases
}

/// Fields of the plain block.
fn fields() -> Vec<Case> {
    let mut cases = Vec::new();
    let numbers = [("mode", MODE), ("uid", UID), ("gid", GID), ("size", SIZE), ("mtime", MTIME)];
    let texts: [&[u8]; 9] = [
        b"",
        b"-1",
        b" 1",
        b"8",
        b"0x1",
        b"1",
        b"\x80\0\0\0\0\0\0\x01",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"77777777777777",
    ];
    for (name, field) in numbers {
        for text in texts {
            let title = format!("{name} '{}'", text.escape_ascii());
            cases.push(case(title, Refused, move |_| block(b'0', b"n", &[(field, text)])));
        }
    }
    cases.push(case("a mode of 16 bits", Refused, |_| block(b'0', b"n", &[(MODE, b"0100644")])));
    for (at, text) in
        [(257, &b"ustar  \0"[..]), (257, b"USTAR"), (263, b"01"), (265, b"root"), (329, b"0000001"), (500, b"x")]
    {
        let title = format!("'{}' at {at}", text.escape_ascii());
        cases.push(case(title, Refused, move |_| block(b'0', b"n", &[((at, text.len()), text)])));
    }
    for text in ["x", "n\0x", "n\0/../x"] {
        let title = format!("a name of '{}', and more behind it", text.escape_default());
        cases.push(case(title, Refused, move |_| block(b'0', b"n", &[(NAME, format!("n\0{text}").as_bytes())])));
    }
    for type_flag in
        (0..=255).filter(|t| !TYPES.contains(t) && !DEVICES.contains(t) && (t.is_ascii_graphic() || *t % 64 == 0))
    {
        let title = format!("type {}", type_flag.escape_ascii());
        cases.push(case(title, Refused, move |_| block(type_flag, b"n", &[])));
    }
    for type_flag in DEVICES {
        for device in [4096, 0o7777777] {
            let number = format!("{device:07o}\0").into_bytes();
            cases.push(case(format!("device {device} of type {}", type_flag as char), Refused, move |_| {
                block(type_flag, b"n", &[((329, 8), &number)])
            }));
        }
    }
    for (type_flag, size) in [(b'1', 1), (b'2', 1), (b'3', 1), (b'4', 1), (b'5', 1), (b'6', 1), (b'5', 1 << 30)] {
        cases.push(case(format!("{size} bytes of a {}", type_flag as char), Refused, move |_| {
            block(type_flag, b"n", &[(SIZE, &octal(size)), (LINK, b"t")])
        }));
    }
    for size in [2, 511, 513, 1 << 20, 0o77777777777] {
        cases.push(case(format!("a file of {size} bytes of which 512 are there"), Refused, move |_| {
            [block(b'0', b"n", &[(SIZE, &octal(size))]), content(&[b'x'; 512])].concat()
        }));
    }
    cases.push(case("a wrong checksum", Refused, |_| {
        let mut block = block(b'0', b"n", &[]);
        block[0] = b'm';
        block
    }));
    cases
}

/// Extended headers.
fn records() -> Vec<Case> {
    let mut cases = Vec::new();
    let whole = |body: Vec<u8>| move |_: &Canary| [extended(&body), block(b'0', b"n", &[])].concat();
    let bodies: [&[u8]; 16] = [
        b"",
        b"6 a=b",
        b"6 a=bc",
        b"5 a=b\n",
        b"7 a=b\n",
        b"06 a=b\n",
        b"-6 a=b\n",
        b"4 ab\n",
        b" a=b\n",
        b"0 a=b\n",
        b"99999999999999999999 a=b\n",
        b"18446744073709551615 path=x\n",
        b"9223372036854775807 path=x\n",
        b"10 path=x\n",
        b"12 path=x\n",
        b"\0\0\0\0",
    ];
    for body in bodies {
        cases.push(case(format!("records '{}'", body.escape_ascii()), Refused, whole(body.to_vec())));
    }
    let keys = [
        "size",
        "uid",
        "gid",
        "mtime",
        "path",
        "linkpath",
        "hdrcharset",
        "atime",
        "ctime",
        "comment",
        "charset",
        "SCHILY.xattr.system.posix_acl_access",
        "SCHILY.xattr.x",
        "SCHILY.acl.access",
        "SCHILY.fflags",
        "SCHILY.devmajor",
        "SCHILY.realsize",
        "LIBARCHIVE.xattr.user.x",
        "GNU.sparse.name",
        "GNU.sparse.realsize",
        "RHT.security.selinux",
        "",
        "path\0",
        "PATH",
    ];
    for key in keys {
        for value in ["", "1", "-1", "../outside/file", "18446744073709551616"] {
            cases.push(case(format!("record '{}={value}'", key.escape_default()), Refused, whole(record(key, value))));
        }
    }
    cases.push(case("a record twice", Refused, whole([record("uid", "3000000"), record("uid", "3000001")].concat())));
    for claim in [1, 10, 511, 513, 100_000, 0o77777777777] {
        cases.push(case(format!("an extended header that claims {claim} bytes"), Refused, move |_| {
            let body = record("path", "smuggled");
            let header = block(b'x', b"././@PaxHeader", &[(SIZE, &octal(claim))]);
            [header, content(&body), block(b'0', b"n", &[])].concat()
        }));
    }
    cases.push(case("an extended header for nothing", Refused, |_| extended(record("path", b"n".repeat(200)))));
    cases.push(case("a global header", Refused, |_| {
        [extended_of(b'g', record("path", "../x")), block(b'0', b"n", &[])].concat()
    }));
    cases.push(case("padding that is not zero", Refused, |_| {
        let long = b"n".repeat(200);
        let mut header = extended(record("path", &long));
        let last = header.len() - 1;
        header[last] = 1;
        [header, block(b'0', &long, &[])].concat()
    }));
    cases
}

/// Streams whose parts do not fit together.
fn streams() -> Vec<Case> {
    let mut cases = Vec::new();
    for cut in [1, 100, 257, 511] {
        cases.push(case(format!("a header cut after {cut} bytes"), Refused, move |_| {
            block(b'0', b"n", &[])[..cut].to_vec()
        }));
    }
    for zeros in [1, 511, 512, 513, 1023] {
        cases.push(case(format!("{zeros} zeros, then an entry"), Refused, move |_| {
            [vec![0; zeros], block(b'0', b"smuggled", &[])].concat()
        }));
    }
    for last in [&b"x"[..], &[0xff; BLOCK]] {
        cases.push(case("bytes after the end", Refused, move |_| [&[0; 2 * BLOCK], last].concat()));
    }
    cases.push(case("the root twice", Refused, |_| block(b'5', b"./", &[])));
    cases.push(case("the root as a file", Refused, |_| block(b'0', b"./", &[])));
    cases.push(case("a directory that was left", Refused, |_| {
        [of_type(b'5', b"a"), of_type(b'5', b"b"), of_type(b'0', b"a/x")].concat()
    }));
    cases.push(case("fifty directories inside each other", Harmless, |_| {
        let path = |depth| ["d"; 50][..depth].join("/").into_bytes();
        (1..=50).flat_map(|depth| of_type(b'5', &path(depth)[..])).collect()
    }));
    cases
}

/// So that what is refused below is refused for what is wrong with it.
#[test]
fn what_is_forged_without_a_lie_is_taken() {
    let long = b"n".repeat(200);
    let mut feed = Feed::new();
    feed.entry(&directory(""), b"").entry(&file("t", 1), b"t");
    let canary = Canary::new();
    feed.raw(&of_type(b'0', b"file"))
        .raw(&of_type(b'2', b"link"))
        .raw(&of_type(b'1', b"name"))
        .raw(&of_type(b'6', b"p"));
    feed.raw(&block(b'0', b"more", &[(SIZE, &octal(3))])).raw(&content(b"abc"));
    feed.raw(&extended(record("path", &long))).raw(&block(b'0', &long, &[])).raw(&of_type(b'5', b"dir"));
    let error = unpack(&mut feed, &canary.dest()).error();
    assert_eq!(error.to_string(), "verification failed: 9 entries arrived, the sender says 2");
    let names: Vec<_> = look(&canary.dest()).into_keys().collect();
    assert_eq!(names, [&b""[..], b"dir", b"file", b"link", b"more", b"name", &long, b"p", b"t"]);
    canary.assert_unchanged();
}

#[test]
fn hundreds_of_hostile_archives_are_refused_or_change_nothing_outside() {
    let tables = [names(), targets(), through_links(), conflicts(), fields(), records(), streams()];
    let cases: Vec<Case> = tables.into_iter().flatten().collect();
    let refused = cases.iter().filter(|case| case.verdict == Refused).count();
    println!("{} hostile archives, {refused} to be refused", cases.len());
    assert!(refused >= 600, "{refused} of {} hostile archives", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let canary = Canary::new();
        let mut feed = Feed::new();
        let first: [Entry; 3] = [directory(""), directory("d"), entry("t", EntryKind::File { size: 1 })];
        for (entry, content) in first.iter().zip([&b""[..], b"", b"t"]) {
            feed.entry(entry, content);
        }
        let bytes = (case.build)(&canary);
        assert!(bytes.len() < CHUNK_LEN - 4096, "{}: it fits a chunk", case.name);
        feed.raw(&bytes);
        let outcome = unpack(&mut feed, &canary.dest());
        canary.assert_unchanged();
        for (path, _) in look(&canary.dest()) {
            assert!(!path.windows(8).any(|name| name == b"smuggled"), "{}: it was taken", case.name);
        }
        match (outcome.end, case.verdict) {
            // All of it was taken; that nobody counted what was forged says nothing.
            (Err(Error::Verification(text)), Refused) if text.contains("the sender says") => {
                wrong.push(format!("{}: {text}", case.name));
            }
            (Err(Error::Verification(_)), _) => {}
            (Ok(_), Harmless) => {}
            (Ok(end), Refused) => wrong.push(format!("{}: {} entries, {:?}", case.name, end.entries, end.notes.named)),
            (Err(other), _) => wrong.push(format!("{}: {other}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "of {} archives:\n{}", cases.len(), wrong.join("\n"));
}

/// The same as what another program packed: more of it makes sense then, and still nothing outside changes.
#[test]
fn hundreds_of_hostile_archives_of_other_programs_change_nothing_outside() {
    let tables = [names(), targets(), through_links(), conflicts(), fields(), records(), streams()];
    let (mut whole, mut noted, mut ended) = (0, 0, 0);
    for case in tables.into_iter().flatten() {
        let canary = Canary::new();
        let first = [of_type(b'5', b"./"), of_type(b'5', b"d"), block(b'0', b"t", &[(SIZE, &octal(1))]), content(b"t")];
        let stream = [&first.concat(), &(case.build)(&canary)[..], &[0; 2 * BLOCK]].concat();
        let outcome = unpack_stream(&stream, &canary.dest());
        canary.assert_unchanged();
        for (path, _) in look(&canary.dest()) {
            let behind_zeros = case.name.ends_with("zeros, then an entry");
            assert!(!behind_zeros || !path.windows(8).any(|name| name == b"smuggled"), "{}: it was taken", case.name);
        }
        match outcome.end {
            Ok(end) if end.notes.losses == 0 => whole += 1,
            Ok(_) => noted += 1,
            Err(Error::Archive(_)) => ended += 1,
            Err(other) => panic!("{}: {other}", case.name),
        }
    }
    println!("{whole} whole, {noted} with something left out, {ended} ended");
    assert!(noted > 300 && ended > 30, "{whole} whole, {noted} with something left out, {ended} ended");
}
