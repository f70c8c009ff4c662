//! Notes as Notes and Commit carry them. Paths and details are cut so that any note fits any frame.

use super::WireError;
use super::codec::{Fields, bounded, cut};
use crate::limits::{CONTROL_MAX, NOTE_PATH_MAX, NOTES_PER_FRAME_MAX, REASON_MAX};
use crate::report::{Note, NoteKind};

/// Bytes of one note besides its path and detail.
const FIXED_LEN: usize = 6;

/// Room for notes in a frame; the rest is for what stands before them.
pub(super) const NOTES_LEN: usize = CONTROL_MAX - 1024;

/// Ends a path or detail that was cut.
const CUT_MARK: &str = "…";

const _: () = assert!(FIXED_LEN + NOTE_PATH_MAX + REASON_MAX <= NOTES_LEN);

/// How many of these notes one frame holds, counted from the first. At least one, if there is one.
pub fn notes_that_fit(notes: &[Note]) -> usize {
    let mut room = NOTES_LEN;
    let fits = |note: &&Note| {
        let len = FIXED_LEN + note.path.len().min(NOTE_PATH_MAX) + note.detail.len().min(REASON_MAX);
        let fits = len <= room;
        room = room.saturating_sub(len);
        fits
    };
    notes.iter().take(NOTES_PER_FRAME_MAX).take_while(fits).count()
}

/// The count and as many of the notes as fit.
pub(super) fn put_notes(notes: &[Note], out: &mut Vec<u8>) {
    let count = notes_that_fit(notes);
    out.extend_from_slice(&(count as u16).to_le_bytes());
    for note in &notes[..count] {
        out.extend_from_slice(&[note.kind as u8, 0]);
        let len_at = out.len();
        out.extend_from_slice(&[0; 4]);
        let path_len = put_cut(&note.path, NOTE_PATH_MAX, out);
        let detail_len = put_cut(note.detail.as_bytes(), REASON_MAX, out);
        out[len_at..len_at + 2].copy_from_slice(&path_len.to_le_bytes());
        out[len_at + 2..len_at + 4].copy_from_slice(&detail_len.to_le_bytes());
    }
}

pub(super) fn notes(fields: &mut Fields) -> Result<Vec<Note>, WireError> {
    let count = fields.count("list of notes", NOTES_PER_FRAME_MAX)?;
    (0..count).map(|_| note(fields)).collect()
}

fn note(fields: &mut Fields) -> Result<Note, WireError> {
    let kind = fields.u8()?;
    let kind = NoteKind::from_wire(kind).ok_or(WireError::Kind { what: "note", kind })?;
    fields.zeros::<1>()?;
    let path_len = bounded("note's path", fields.u16()?.into(), NOTE_PATH_MAX)?;
    let detail_len = bounded("note's detail", fields.u16()?.into(), REASON_MAX)?;
    let path = fields.bytes(path_len)?.to_vec();
    let detail = String::from_utf8_lossy(fields.bytes(detail_len)?).into_owned();
    Ok(Note { kind, path, detail })
}

/// Append at most `max` bytes, the last of them a mark if some had to go, and say how many.
fn put_cut(bytes: &[u8], max: usize, out: &mut Vec<u8>) -> u16 {
    let start = out.len();
    if bytes.len() <= max {
        out.extend_from_slice(bytes);
    } else {
        out.extend_from_slice(&bytes[..cut(bytes, max - CUT_MARK.len())]);
        out.extend_from_slice(CUT_MARK.as_bytes());
    }
    (out.len() - start) as u16
}
