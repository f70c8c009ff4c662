//! Whatever bytes a peer calls an archive, the parser neither panics nor accepts anything that our writer would not have
//! written. The corpus holds one archive for each known way to mislead a tar reader (`bad_*`, all refused) and each
//! form that ours takes (`good_*`, all read). Each input is taken twice: as it is, and with its checksums put right.

use std::fs;
use std::path::Path;

use blast::archive::{ArchiveError, BLOCK_LEN, Parser, check_padding, header_len, padding, write_header};

use crate::replay::replay;

#[test]
fn archives_never_panic_and_have_one_encoding() {
    replay("archive", |input| {
        let _ = read(input);
        let _ = read(&mended(input));
    });
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

/// Read to the end as the receiver does, skipping content.
fn read(bytes: &[u8]) -> Result<(), ArchiveError> {
    let (mut parser, mut at) = (Parser::new(), 0);
    while let Some(parsed) = parser.next(&bytes[at..])? {
        let entry = &parsed.entry;
        assert_eq!(entry.check(), Ok(()));
        assert_eq!(header_len(entry), parsed.header_len);
        let mut again = vec![0; parsed.header_len];
        write_header(entry, &mut again);
        assert_eq!(again, bytes[at..at + parsed.header_len]);
        at += parsed.header_len;
        let Some(end) = usize::try_from(entry.kind.content_len()).ok().and_then(|len| at.checked_add(len)) else {
            break;
        };
        // Content that is not there travels elsewhere.
        let Some(zeros) = bytes.get(end..).and_then(|rest| rest.get(..padding(entry.kind.content_len()))) else {
            break;
        };
        check_padding(zeros)?;
        at = end + zeros.len();
    }
    Ok(())
}

fn mended(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for block in bytes.chunks_exact_mut(BLOCK_LEN).filter(|block| block[257..].starts_with(b"ustar")) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    bytes
}
