//! What bytes look like that are no tar archive, so that whoever sent them knows what to do.

/// What the first bytes of something are, in words.
pub(super) fn looks_like(start: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 15] = [
        (b"\x1f\x8b", "it is compressed with gzip: decompress it first (gzip -dc)"),
        (b"\x28\xb5\x2f\xfd", "it is compressed with zstd: decompress it first (zstd -dc)"),
        (b"\xfd7zXZ\0", "it is compressed with xz: decompress it first (xz -dc)"),
        (b"BZh", "it is compressed with bzip2: decompress it first (bzip2 -dc)"),
        (b"\x04\x22\x4d\x18", "it is compressed with lz4: decompress it first (lz4 -dc)"),
        (b"LZIP", "it is compressed with lzip: decompress it first (lzip -dc)"),
        (b"\x1f\x9d", "it is compressed with compress: decompress it first (gzip -dc)"),
        (b"\x5d\0\0", "it looks like something compressed with lzma: decompress it first (xz -dc)"),
        (b"\x89LZO\0", "it is compressed with lzop: decompress it first (lzop -dc)"),
        (b"PK\x03\x04", "it is a zip archive: unpack it first"),
        (b"7z\xbc\xaf\x27\x1c", "it is a 7-Zip archive: unpack it first"),
        (b"07070", "it is a cpio archive: unpack it first (cpio -i)"),
        (b"\xc7\x71", "it is a cpio archive: unpack it first (cpio -i)"),
        (b"!<arch>\n", "it is an ar archive: unpack it first"),
        (b"\xed\xab\xee\xdb", "it is an RPM package: unpack it first (rpm2cpio)"),
    ];
    const ELSE: &str = "to receive the bytes as they are, name a file or '-'";
    match KNOWN.iter().find(|(magic, _)| start.starts_with(magic)) {
        Some((_, words)) => words,
        None if !start.is_empty() && start.iter().all(|b| matches!(b, b'\t' | b'\n' | b'\r' | b' '..=b'~')) => {
            "it looks like text; to receive the bytes as they are, name a file or '-'"
        }
        None => ELSE,
    }
}
