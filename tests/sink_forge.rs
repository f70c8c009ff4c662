//! Archives block by block, as no honest writer makes them: every field and record can lie, the checksum never does.
//! Made without the product's own writer, so that a mistake there cannot hide one here.

/// Bytes of a block.
pub const BLOCK: usize = 512;

/// A field of a block: where it is and how long.
pub type Field = (usize, usize);

pub const NAME: Field = (0, 100);
pub const MODE: Field = (100, 8);
pub const UID: Field = (108, 8);
pub const GID: Field = (116, 8);
pub const SIZE: Field = (124, 12);
pub const MTIME: Field = (136, 12);
pub const LINK: Field = (157, 100);
pub const PREFIX: Field = (345, 155);

/// A block of this type; `changes` are put in its fields, cut to what fits.
pub fn block(type_flag: u8, name: &[u8], changes: &[(Field, &[u8])]) -> Vec<u8> {
    let mut out = vec![0; BLOCK];
    let id = super::sink_feed::uid().min(0o7777777);
    put(&mut out, NAME, name);
    put(&mut out, MODE, if type_flag == b'5' { b"0000755" } else { b"0000640" });
    put(&mut out, UID, format!("{id:07o}").as_bytes());
    put(&mut out, GID, format!("{id:07o}").as_bytes());
    put(&mut out, SIZE, b"00000000000");
    put(&mut out, MTIME, b"07237450042");
    out[156] = type_flag;
    out[257..265].copy_from_slice(b"ustar\x0000");
    put(&mut out, (329, 8), b"0000000");
    put(&mut out, (337, 8), b"0000000");
    for (field, bytes) in changes {
        out[field.0..field.0 + field.1].fill(0);
        put(&mut out, *field, bytes);
    }
    out[148..156].fill(b' ');
    let sum: u32 = out.iter().map(|b| u32::from(*b)).sum();
    out[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out
}

fn put(block: &mut [u8], field: Field, bytes: &[u8]) {
    let len = bytes.len().min(field.1);
    block[field.0..field.0 + len].copy_from_slice(&bytes[..len]);
}

/// The text of a size field.
pub fn octal(n: u64) -> Vec<u8> {
    format!("{n:011o}").into_bytes()
}

/// One record of an extended header, of the right length.
pub fn record(key: &str, value: impl AsRef<[u8]>) -> Vec<u8> {
    let rest = [b" ", key.as_bytes(), b"=", value.as_ref(), b"\n"].concat();
    let mut len = rest.len() + 1;
    while len != rest.len() + len.to_string().len() {
        len = rest.len() + len.to_string().len();
    }
    [len.to_string().as_bytes(), &rest].concat()
}

/// An extended header with this body, padded.
pub fn extended(body: impl AsRef<[u8]>) -> Vec<u8> {
    extended_of(b'x', body)
}

pub fn extended_of(type_flag: u8, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let zero: &[u8] = b"0000000";
    let fields = [(MODE, &b"0000644"[..]), (UID, zero), (GID, zero), (MTIME, b"00000000000")];
    let size = octal(body.len() as u64);
    let mut out = block(type_flag, b"././@PaxHeader", &[&fields[..], &[(SIZE, &size)]].concat());
    out.extend_from_slice(body);
    pad(&mut out);
    out
}

/// Content as it follows a header.
pub fn content(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    pad(&mut out);
    out
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}
