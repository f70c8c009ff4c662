//! Properties over entries of every kind: what is written is read back, in exactly the bytes announced, and the `tar`
//! crate's reader, as far as it can be believed, sees the same.

use std::io::Read;
use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use crate::limits::{PATH_LEN_MAX, TARGET_LEN_MAX};

#[test]
fn a_full_last_block_gets_no_padding() {
    assert_eq!([0, 1, 511, 512, 513, 1024].map(padding), [0, 511, 1, 0, 511, 0]);
    assert_eq!(padding(u64::MAX), 1);
}

#[test]
fn the_longest_header_fits_a_chunk() {
    let path = b"d/".repeat(PATH_LEN_MAX / 2 - 1);
    let entry = Entry {
        path: [&path[..], b"\xffa"].concat(),
        kind: EntryKind::Hardlink { target: [&path[..], b"bb"].concat() },
        mode: 0o7777,
        uid: u32::MAX - 1,
        gid: u32::MAX - 1,
        mtime: Timestamp { secs: i64::MIN, nanos: 1 },
        extras: None,
    };
    assert!(header_len(&entry) <= crate::limits::CHUNK_LEN);
    let out = written(&entry);
    assert_eq!(Parser::new().next(&out), Ok(Some(Parsed { entry, header_len: out.len() })));
}

fn written(entry: &Entry) -> Vec<u8> {
    let mut out = vec![0xaa; header_len(entry)];
    assert_eq!(write_header(entry, &mut out), out.len());
    out
}

/// A length around the edges of the block's fields, up to `max`.
fn length(max: usize) -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1..=12usize, 2 => 96..=103usize, 1 => 150..=158usize, 1 => 250..=260usize, 1 => 1..=max]
        .prop_map(move |len| len.min(max))
}

/// Bytes as names have them: letters, text of any script, anything.
fn name_bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
    let letters = length(max).prop_flat_map(|len| vec(b'a'..=b'z', len));
    let text = length(max / 4).prop_flat_map(|len| vec(any::<char>(), len)).prop_map(|c| c.iter().collect::<String>());
    let anything = length(max).prop_flat_map(|len| vec(any::<u8>(), len));
    let odd = prop_oneof![Just("..."), Just("15 path=evil.x\n"), Just(" "), Just("\n"), Just("a=b")];
    prop_oneof![4 => letters, 1 => text.prop_map(String::into_bytes), 1 => anything, 1 => odd.prop_map(|s| s.into())]
        .prop_map(|bytes| bytes.into_iter().map(|b| if b == 0 { b'0' } else { b }).collect())
}

fn component() -> impl Strategy<Value = Vec<u8>> {
    name_bytes(255).prop_map(|mut name| {
        name.iter_mut().filter(|b| **b == b'/').for_each(|b| *b = b'_');
        if name == b"." || name == b".." { b"dots".to_vec() } else { name }
    })
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![9 => vec(component(), 1..5), 1 => vec(component(), 1..40)].prop_map(|parts| parts.join(&b'/'))
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_000u64, 8_589_934_590..8_589_934_594u64, 0..=i64::MAX as u64]
}

fn kind() -> impl Strategy<Value = EntryKind> {
    prop_oneof![
        size().prop_map(|size| EntryKind::File { size }),
        (size(), size()).prop_map(|(size, packed)| EntryKind::Sparse { size: size.max(1), packed: packed.max(512) }),
        Just(EntryKind::Directory),
        name_bytes(TARGET_LEN_MAX).prop_map(|target| EntryKind::Symlink { target }),
        path().prop_map(|target| EntryKind::Hardlink { target }),
        Just(EntryKind::Fifo),
        (any::<bool>(), 0..4096u32, 0..1_048_576u32).prop_map(|(block, major, minor)| EntryKind::Device {
            block,
            major,
            minor
        }),
    ]
}

fn id() -> impl Strategy<Value = u32> {
    prop_oneof![0..70_000u32, 2_097_150..2_097_154u32, 0..u32::MAX]
}

fn mtime() -> impl Strategy<Value = Timestamp> {
    let secs = prop_oneof![0..4_000_000_000i64, -3..3i64, 8_589_934_590..8_589_934_594i64, any::<i64>()];
    let nanos = prop_oneof![Just(0), (0..1000u32).prop_map(|ms| ms * 1_000_000), 0..1_000_000_000u32];
    (secs, nanos).prop_map(|(secs, nanos)| Timestamp { secs, nanos })
}

/// Attributes of any bytes, a record that looks like a path among them.
fn xattrs() -> impl Strategy<Value = Vec<Xattr>> {
    let namespace = prop_oneof![4 => Just("user."), 1 => Just("trusted."), 1 => Just("security.")];
    let name = (namespace, name_bytes(240)).prop_map(|(namespace, name)| [namespace.as_bytes(), &name].concat());
    let value = prop_oneof![
        8 => vec(any::<u8>(), 0..40),
        2 => Just(b"x\n15 path=evil.x\n".to_vec()),
        1 => vec(any::<u8>(), 400..700),
    ];
    btree_map(name, value, 0..4)
        .prop_map(|xattrs| xattrs.into_iter().map(|(name, value)| Xattr { name, value }).collect())
}

/// What an entry of this kind may have.
fn extras(kind: &EntryKind) -> impl Strategy<Value = Option<Arc<Extras>>> + use<> {
    let may_have = !matches!(kind, EntryKind::Hardlink { .. });
    let acl = |here: bool| {
        if here { proptest::option::of(super::acl::tests::acl()).boxed() } else { Just(None).boxed() }
    };
    let access = acl(may_have && !matches!(kind, EntryKind::Symlink { .. }));
    let name = || proptest::option::of("[a-z\u{e9}\n=\\\\]{1,40}".prop_map(String::into_bytes));
    (any::<bool>(), xattrs(), access, acl(kind.is_directory()), name(), name()).prop_map(
        move |(any, xattrs, access_acl, default_acl, uname, gname)| {
            let extras = Extras { xattrs, access_acl, default_acl, uname, gname };
            (any && may_have && !extras.is_empty()).then(|| Arc::new(extras))
        },
    )
}

fn entry() -> BoxedStrategy<Entry> {
    let root = Just((Vec::new(), EntryKind::Directory));
    let placed = prop_oneof![1 => root, 30 => (path(), kind())].boxed();
    (placed, 0..=0o7777u32, id(), id(), mtime())
        .prop_flat_map(|(placed, mode, uid, gid, mtime)| {
            let extras = extras(&placed.1);
            (Just((placed, mode, uid, gid, mtime)), extras)
        })
        .prop_map(|(((path, kind), mode, uid, gid, mtime), extras)| Entry { path, kind, mode, uid, gid, mtime, extras })
        .prop_filter("a hard link to itself", |entry| entry.kind.target() != Some(&entry.path))
        .boxed()
}

/// Entries whose content is there: as many bytes as the file's size, which is small.
fn small_entry() -> impl Strategy<Value = Entry> {
    (entry(), 0..1500u64).prop_map(|(mut entry, len)| {
        match &mut entry.kind {
            EntryKind::File { size } => *size = len,
            EntryKind::Sparse { packed, .. } => *packed = 512 + len,
            _ => {}
        }
        entry
    })
}

fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        out.extend(written(entry));
        let content = entry.kind.content_len();
        out.resize(out.len() + content as usize, b'c');
        out.resize(out.len() + padding(content), 0);
    }
    out.extend(END);
    out
}

/// What the `tar` crate splits at newlines, and then reads wrongly or not at all; and it knows no sparse files.
fn misread_by_tar_crate(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::Sparse { .. })
        || header_len(entry) > BLOCK_LEN
            && (entry.path.contains(&b'\n')
                || entry.extras.is_some()
                || entry.kind.target().is_some_and(|target| target.contains(&b'\n')))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn what_is_written_is_read_back(entry in entry(), more in vec(any::<u8>(), 0..600)) {
        prop_assert_eq!(entry.check(), Ok(()));
        let mut out = written(&entry);
        let len = out.len();
        prop_assert_eq!(len % BLOCK_LEN, 0);
        // Whatever follows is not looked at, and the memory need not be clean.
        out.extend(more);
        prop_assert_eq!(Parser::new().next(&out), Ok(Some(Parsed { entry, header_len: len })));
    }

    #[test]
    fn a_stream_is_read_to_its_end(entries in vec(small_entry(), 0..12)) {
        let bytes = archive(&entries);
        prop_assert_eq!(bytes.len() % BLOCK_LEN, 0);
        let (mut parser, mut at, mut found) = (Parser::new(), 0, Vec::new());
        while let Some(parsed) = parser.next(&bytes[at..])? {
            let content = parsed.entry.kind.content_len();
            let end = at + parsed.header_len + content as usize;
            check_padding(&bytes[end..end + padding(content)])?;
            at = end + padding(content);
            found.push(parsed.entry);
        }
        prop_assert!(parser.ended());
        prop_assert_eq!(at + END.len(), bytes.len());
        prop_assert_eq!(found, entries);
    }

    #[test]
    fn the_tar_crate_reads_the_same(entries in vec(small_entry(), 0..12)) {
        let entries = entries.into_iter().filter(|entry| !misread_by_tar_crate(entry)).collect::<Vec<_>>();
        let bytes = archive(&entries);
        let mut reader = tar::Archive::new(&bytes[..]);
        let mut found = 0;
        for item in reader.entries()? {
            let mut item = item?;
            let entry = &entries[found];
            found += 1;
            let slash: &[u8] = match entry.kind {
                EntryKind::Directory if entry.path.is_empty() => b"./",
                EntryKind::Directory => b"/",
                _ => b"",
            };
            prop_assert_eq!(&item.path_bytes()[..], [&entry.path, slash].concat());
            let target = item.link_name_bytes();
            prop_assert_eq!(target.as_deref(), entry.kind.target());
            prop_assert_eq!(item.size(), entry.kind.content_len());
            let kind = match entry.kind {
                EntryKind::File { .. } | EntryKind::Sparse { .. } => tar::EntryType::Regular,
                EntryKind::Directory => tar::EntryType::Directory,
                EntryKind::Symlink { .. } => tar::EntryType::Symlink,
                EntryKind::Hardlink { .. } => tar::EntryType::Link,
                EntryKind::Fifo => tar::EntryType::Fifo,
                EntryKind::Device { block: false, .. } => tar::EntryType::Char,
                EntryKind::Device { block: true, .. } => tar::EntryType::Block,
            };
            prop_assert_eq!(item.header().entry_type(), kind);
            let mut content = Vec::new();
            item.read_to_end(&mut content)?;
            prop_assert!(content.len() as u64 == entry.kind.content_len() && content.iter().all(|b| *b == b'c'));
        }
        prop_assert_eq!(found, entries.len());
    }

    #[test]
    fn what_is_accepted_has_one_encoding(entry in entry(), at in any::<prop::sample::Index>(), flip in 1..=255u8, mend: bool) {
        let mut bytes = written(&entry);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if mend {
            let block = &mut bytes[at / BLOCK_LEN * BLOCK_LEN..][..BLOCK_LEN];
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        if let Ok(Some(parsed)) = Parser::new().next(&bytes) {
            prop_assert_eq!(parsed.entry.check(), Ok(()));
            prop_assert_eq!(written(&parsed.entry), &bytes[..parsed.header_len]);
        }
    }
}
