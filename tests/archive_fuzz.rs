//! Whatever bytes a peer calls an archive, the parser neither panics nor accepts anything that our writer would not
//! have written. The corpus holds one archive for each known way to mislead a tar reader (`bad_*`, all refused) and
//! each form that ours takes (`good_*`, all read). Each input is taken twice: as it is, and with its checksums put
//! right.

use std::fs;
use std::path::Path;

use crate::replay::replay;
use crate::targets::{archives, entries, foreign_archives, read, sparse_maps};

#[test]
fn archives_never_panic_and_have_one_encoding() {
    replay("archive", archives);
}

#[test]
fn archives_of_other_tars_never_panic_and_mean_the_same_however_they_are_cut() {
    replay("foreign_archive", foreign_archives);
}

#[test]
fn maps_of_sparse_files_never_panic_and_have_one_text() {
    replay("sparse_map", sparse_maps);
}

#[test]
fn every_entry_that_may_be_written_is_read_back_as_it_was() {
    replay("entry", entries);
}

#[test]
fn every_way_to_mislead_a_reader_is_refused() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/archive");
    for file in fs::read_dir(dir).unwrap().map(|file| file.unwrap()) {
        let name = file.file_name().into_string().unwrap();
        let verdict = read(&fs::read(file.path()).unwrap());
        match name.split_once('_') {
            Some(("good", _)) => assert_eq!(verdict, Ok(()), "{name}"),
            Some(("bad", _)) => assert!(verdict.is_err(), "{name}"),
            _ => {}
        }
    }
}
