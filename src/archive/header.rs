//! One 512-byte ustar block, to bytes and back. The fields' places and the magic are the `tar` crate's; numbers and
//! the checksum are ours, since a block has one form only and is written once for each small file.

use std::ffi::CStr;
use std::sync::LazyLock;

use super::{ArchiveError, BLOCK_LEN};

/// The largest number in a field of eleven digits (size, mtime) and of seven (mode, ids).
pub(super) const OCTAL_11_MAX: u64 = 0o77777777777;
pub(super) const OCTAL_7_MAX: u64 = 0o7777777;

/// Bytes in `name` and `linkname`, and in `prefix`.
pub(super) const NAME_FIELD_LEN: usize = 100;
pub(super) const PREFIX_FIELD_LEN: usize = 155;

/// What a block says.
pub(super) struct Fields<'a> {
    pub(super) type_flag: u8,
    /// Without its final slash.
    pub(super) name: &'a [u8],
    /// Whether a slash ends the name.
    pub(super) slash: bool,
    pub(super) prefix: &'a [u8],
    pub(super) linkname: &'a [u8],
    pub(super) mode: u64,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) size: u64,
    pub(super) mtime: u64,
    /// Major and minor number.
    pub(super) device: (u64, u64),
}

/// What all blocks have in common. The checksum is spaces, as they count while it is computed. Made once: the crate
/// formats a number for it, which would cost as much as all else here.
static BLANK: LazyLock<tar::Header> = LazyLock::new(|| {
    let mut header = tar::Header::new_ustar();
    let ustar = header.as_ustar_mut().expect("this header is one");
    ustar.cksum = [b' '; 8];
    header
});

/// Write a block to `out`, which is one block long. Every field must fit.
pub(super) fn write_block(fields: &Fields<'_>, out: &mut [u8]) {
    let mut header = BLANK.clone();
    let ustar = header.as_ustar_mut().expect("this header is one");
    ustar.name[..fields.name.len()].copy_from_slice(fields.name);
    if fields.slash {
        ustar.name[fields.name.len()] = b'/';
    }
    ustar.prefix[..fields.prefix.len()].copy_from_slice(fields.prefix);
    ustar.linkname[..fields.linkname.len()].copy_from_slice(fields.linkname);
    ustar.typeflag = [fields.type_flag];
    write_octal(fields.mode, &mut ustar.mode);
    write_octal(fields.uid, &mut ustar.uid);
    write_octal(fields.gid, &mut ustar.gid);
    write_octal(fields.size, &mut ustar.size);
    write_octal(fields.mtime, &mut ustar.mtime);
    write_octal(fields.device.0, &mut ustar.dev_major);
    write_octal(fields.device.1, &mut ustar.dev_minor);
    let sum = sum(header.as_bytes());
    let ustar = header.as_ustar_mut().expect("this header is one");
    write_octal(sum, &mut ustar.cksum[..7]);
    out.copy_from_slice(header.as_bytes());
}

/// Read a block. Only what [`write_block`] writes passes for a number; the rest of the block is not looked at.
pub(super) fn read_block(block: &[u8; BLOCK_LEN]) -> Result<Fields<'_>, ArchiveError> {
    let ustar = tar::Header::from_byte_slice(block).as_ustar().ok_or(ArchiveError::NotUstar)?;
    let in_field: u64 = ustar.cksum.iter().map(|b| u64::from(*b)).sum();
    let expected = sum(block) - in_field + 8 * u64::from(b' ');
    if read_octal(&ustar.cksum[..7]) != Some(expected) || ustar.cksum[7] != b' ' {
        return Err(ArchiveError::Checksum);
    }
    let name = text(&ustar.name);
    let (name, slash) = name.strip_suffix(b"/").map_or((name, false), |name| (name, true));
    let number = |field, bytes| read_octal(bytes).ok_or(ArchiveError::Number { field });
    Ok(Fields {
        type_flag: ustar.typeflag[0],
        name,
        slash,
        prefix: text(&ustar.prefix),
        linkname: text(&ustar.linkname),
        mode: number("mode", &ustar.mode)?,
        uid: number("uid", &ustar.uid)?,
        gid: number("gid", &ustar.gid)?,
        size: number("size", &ustar.size)?,
        mtime: number("mtime", &ustar.mtime)?,
        device: (number("device number", &ustar.dev_major)?, number("device number", &ustar.dev_minor)?),
    })
}

/// The sum of a block's bytes, in 32 lanes of which none can overflow; said so, the loop needs no checks and becomes
/// vector instructions.
fn sum(block: &[u8; BLOCK_LEN]) -> u64 {
    let mut lanes = [0u16; 32];
    for bytes in block.as_chunks::<32>().0 {
        for (lane, b) in lanes.iter_mut().zip(bytes) {
            *lane = lane.wrapping_add(u16::from(*b));
        }
    }
    lanes.iter().map(|lane| u64::from(*lane)).sum()
}

/// A field's text: up to the first NUL, or all of it.
fn text(field: &[u8]) -> &[u8] {
    CStr::from_bytes_until_nul(field).map_or(field, CStr::to_bytes)
}

fn write_octal(mut n: u64, field: &mut [u8]) {
    let (nul, digits) = field.split_last_mut().expect("no field is empty");
    *nul = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (n & 7) as u8;
        n >>= 3;
    }
    debug_assert_eq!(n, 0, "the number fits the field");
}

fn read_octal(field: &[u8]) -> Option<u64> {
    let (0, digits) = field.split_last()? else { return None };
    let mut n = 0;
    for b in digits {
        let digit = b.wrapping_sub(b'0');
        if digit > 7 {
            return None;
        }
        n = n << 3 | u64::from(digit);
    }
    Some(n)
}
