//! Sparse files from a peer: a map that cannot be meant is named and ends the transfer, before anything is made of it
//! and without memory for what it claims; every map that can be meant gives the file it describes, however it is cut.

use std::os::unix::fs::{FileExt, MetadataExt};

use blast::archive::{Entry, EntryKind, Extent, SparseMap, header_len, padding, write_header};
use blast::chunk::ChunkKind;
use blast::limits::CHUNK_LEN;
use proptest::prelude::*;

use crate::sink_feed::{Feed, bytes, deliver, entry, file, scratch};
use crate::sink_hostile::{Canary, assert_verification};
use blast::wire::Offer;

fn header(entry: &Entry) -> Vec<u8> {
    let mut out = vec![0; header_len(entry)];
    write_header(entry, &mut out);
    out
}

fn padded(text: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = text.as_ref().to_vec();
    out.resize(out.len() + padding(out.len() as u64), 0);
    out
}

/// What follows a sparse file's header, and what is wrong with it.
fn hostile() -> Vec<(&'static str, u64, Vec<u8>)> {
    let with = |text: &str, data: usize| [padded(text), bytes(data, 7)].concat();
    let many = |count: usize| {
        let places: String = (0..count).map(|i| format!("{}\n512\n", i * 1024)).collect();
        format!("{count}\n{places}")
    };
    vec![
        ("overlap or are out of order", 1 << 20, with("2\n4096\n1024\n4608\n512\n", 1536)),
        ("overlap or are out of order", 1 << 20, with("2\n8192\n512\n4096\n512\n", 1024)),
        ("beyond the file's end", 8192, with("1\n8192\n512\n", 512)),
        ("beyond the file's end", 8192, with("1\n4096\n9223372036854775807\n", 512)),
        ("beyond the file's end", 8192, with("1\n18446744073709551104\n512\n", 512)),
        ("too large", 8192, with("1\n99999999999999999999\n512\n", 512)),
        ("too many extents", 1 << 40, with("2000000\n", 0)),
        ("too many extents", 1 << 40, with(&many(2_000_000)[..CHUNK_LEN], 0)),
        ("too many extents", 1 << 40, with("18446744073709551615\n", 0)),
        ("more or less data than there is", 1 << 20, with("2\n4096\n512\n1048576\n0\n", 1024)),
        ("more or less data than there is", 1 << 20, with("2\n4096\n1024\n1048576\n0\n", 512)),
        ("does not end in its entry", 1 << 20, with(&("900\n".to_owned() + &"1\n".repeat(254)), 0)),
        ("not made of decimal numbers", 1 << 20, with("900\n4096\n1024\n", 0)),
        ("not made of decimal numbers", 1 << 20, vec![b'1'; 1]),
        ("has no hole", 1024, with("1\n0\n1024\n", 1024)),
        ("no hole between", 1 << 20, with("2\n0\n512\n512\n512\n", 1024)),
        ("empty extent", 1 << 20, with("2\n512\n0\n1024\n512\n", 512)),
        ("not made of blocks", 1 << 20, with("1\n4097\n512\n", 512)),
        ("not written as the dialect has it", 1 << 20, with("1\n4096\n512\n", 512)),
        ("not written as the dialect has it", 1 << 20, with("2\n04096\n512\n1048576\n0\n", 512)),
        ("not made of decimal numbers", 1 << 20, with("1\n-1\n512\n", 512)),
        ("not made of decimal numbers", 1 << 20, with("GNUSparse", 512)),
    ]
}

#[test]
fn a_map_that_cannot_be_meant_ends_the_transfer_and_makes_no_file() {
    for (n, (reason, size, packed)) in hostile().into_iter().enumerate() {
        for apart in [false, true] {
            let canary = Canary::new();
            let wrong = entry("sparse", EntryKind::Sparse { size, packed: (packed.len() as u64).max(512) });
            let mut feed = Feed::new();
            feed.entry(&file("before", 5), &bytes(5, 1));
            feed.raw(&header(&wrong));
            if apart {
                // Header, map and data each in chunks of their own, as large files travel.
                feed.cut();
                packed.chunks(700).for_each(|piece| _ = feed.chunk(ChunkKind::Mixed, piece));
            } else if packed.len() + header_len(&wrong) > CHUNK_LEN {
                continue;
            } else {
                feed.raw(&padded(&packed));
            }
            feed.end();
            let outcome = deliver(&feed, &canary.dest(), &Offer::Tree { sources: 1 });
            let error = outcome.error();
            // What ends a chunk too early or too late may be told as just that.
            let cut = ["does not end in its chunk", "does not end with its chunk", "the archive has no end"];
            let text = error.to_string();
            assert!(text.contains(reason) || cut.iter().any(|cut| text.contains(cut)), "case {n}, {reason}: {text}");
            assert_verification(error, "");
            assert!(!canary.dest().join("sparse").exists(), "case {n}, {reason}");
            canary.assert_outside_unchanged();
        }
    }
}

#[test]
fn data_that_does_not_end_with_the_map_is_refused() {
    let map = SparseMap::new(1 << 20, vec![Extent { offset: 4096, len: 1024 }]).unwrap();
    let sparse = entry("sparse", EntryKind::Sparse { size: 1 << 20, packed: map.packed_len() });
    let mut text = vec![0; map.map_len() as usize];
    map.writer().write(&mut text);
    for (data, reason) in [(1023, "a sparse file"), (1025, "does not end with its chunk")] {
        let canary = Canary::new();
        let mut feed = Feed::new();
        feed.raw(&header(&sparse)).chunk(ChunkKind::Mixed, &text).chunk(ChunkKind::Mixed, &bytes(data, 3)).end();
        let error = deliver(&feed, &canary.dest(), &Offer::Tree { sources: 1 }).error();
        assert!(error.to_string().contains(reason) || data < 1024, "{error}");
        assert!(!canary.dest().join("sparse").exists());
    }
    // A slice of a dense file in its place.
    let canary = Canary::new();
    let mut feed = Feed::new();
    feed.raw(&header(&sparse)).chunk(ChunkKind::Data { offset: 0, sole: true }, &text).end();
    let error = deliver(&feed, &canary.dest(), &Offer::Tree { sources: 1 }).error();
    assert_verification(error, "a slice of a file came where no file is open");
}

/// A map of blocks of 4 KiB, small enough to be compared byte by byte.
fn map() -> impl Strategy<Value = SparseMap> {
    let places = prop::collection::vec((1..40u64, prop_oneof![4 => 1..9u64, 1 => 1..300u64]), 0..40);
    (places, any::<bool>(), 0..30u64, 0..512u64).prop_filter_map("no hole", |(places, leading, tail, odd)| {
        let mut at = 0;
        let mut extents = Vec::new();
        for (n, (hole, data)) in places.into_iter().enumerate() {
            if n > 0 || leading {
                at += hole * 4096;
            }
            extents.push(Extent { offset: at, len: data * 4096 });
            at += data * 4096;
        }
        if tail == 0
            && let Some(last) = extents.last_mut()
        {
            last.len -= odd;
            at -= odd;
        }
        SparseMap::new(at + tail * 4096 + if tail > 0 { odd } else { 0 }, extents).ok()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn every_map_that_can_be_meant_gives_its_file_however_it_is_cut(map in map(), cut in prop_oneof![1..200usize, 1..CHUNK_LEN], apart: bool) {
        let sparse = entry("sparse", EntryKind::Sparse { size: map.size(), packed: map.packed_len() });
        let mut packed = vec![0; map.map_len() as usize];
        map.writer().write(&mut packed);
        let content = bytes(map.data_len() as usize, 5);
        packed.extend_from_slice(&content);
        let mut feed = Feed::new();
        feed.raw(&header(&sparse)).count(1, map.data_len());
        if apart || header_len(&sparse) + packed.len() + 512 > CHUNK_LEN {
            feed.cut();
            // No more chunks than a sink takes at once.
            let cut = cut.max(packed.len() / 900);
            packed.chunks(cut).for_each(|piece| _ = feed.chunk(ChunkKind::Mixed, piece));
            feed.raw(&vec![0; padding(map.packed_len())]);
        } else {
            feed.raw(&padded(&packed));
        }
        feed.entry(&file("after", 9), &bytes(9, 2)).end();
        let dir = scratch();
        let dest = dir.path().join("dest");
        deliver(&feed, &dest, &Offer::Tree { sources: 1 }).whole();
        let mut expected = vec![0; map.size() as usize];
        let mut at = 0;
        for extent in map.extents() {
            let len = extent.len as usize;
            expected[extent.offset as usize..][..len].copy_from_slice(&content[at..at + len]);
            at += len;
        }
        let found = std::fs::File::open(dest.join("sparse")).unwrap();
        prop_assert_eq!(found.metadata().unwrap().len(), map.size());
        let mut is = vec![1; map.size() as usize];
        found.read_exact_at(&mut is, 0).unwrap();
        prop_assert!(is == expected);
        prop_assert!(found.metadata().unwrap().blocks() * 512 <= map.data_len().next_multiple_of(4096));
        prop_assert_eq!(std::fs::read(dest.join("after")).unwrap(), bytes(9, 2));
    }
}
