//! Fields in order, out of a payload whose length is already known to be bounded.

use super::WireError;

/// Reads a payload from front to back. Never reads past its end and never allocates.
pub(super) struct Fields<'a> {
    message: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Over the payload of a message of that name; the name is for errors.
    pub fn of(message: &'static str, payload: &'a [u8]) -> Fields<'a> {
        Fields { message, rest: payload }
    }

    pub fn malformed(&self, why: &'static str) -> WireError {
        WireError::Malformed { message: self.message, why }
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.malformed("it ends early"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        Ok(self.bytes(N)?.try_into().expect("as many bytes as were asked for"))
    }

    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count or length, at most `max`.
    pub fn count(&mut self, what: &'static str, max: usize) -> Result<usize, WireError> {
        let len = self.u16()?;
        bounded(what, len.into(), max)
    }

    /// `N` reserved bytes, which are zero.
    pub fn zeros<const N: usize>(&mut self) -> Result<(), WireError> {
        if self.array::<N>()? == [0; N] { Ok(()) } else { Err(WireError::Reserved(self.message)) }
    }

    /// Everything that is left, at most `max` bytes.
    pub fn remainder(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
        bounded(what, self.rest.len() as u64, max)?;
        Ok(std::mem::take(&mut self.rest))
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.malformed("bytes are left over")) }
    }
}

/// A length that a peer claims, if it is at most `max`.
pub(super) fn bounded(what: &'static str, len: u64, max: usize) -> Result<usize, WireError> {
    if len > max as u64 {
        return Err(WireError::TooLong { what, len, max: max as u64 });
    }
    Ok(len as usize)
}

/// The length that still keeps whole UTF-8 sequences if `bytes` is cut to at most `max` (bytes that are not UTF-8 are
/// cut anywhere).
pub(super) fn cut(bytes: &[u8], max: usize) -> usize {
    if bytes.len() <= max {
        return bytes.len();
    }
    let is_boundary = |at: &usize| bytes[*at] & 0xc0 != 0x80;
    (max.saturating_sub(3)..=max).rev().find(is_boundary).unwrap_or(max)
}

/// A reason as it travels: cut to [`crate::limits::REASON_MAX`].
pub(super) fn put_reason(reason: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&reason.as_bytes()[..cut(reason.as_bytes(), crate::limits::REASON_MAX)]);
}

/// A reason as it arrived, at most [`crate::limits::REASON_MAX`] bytes. Bytes that are not UTF-8 are replaced: it is
/// for people, and half of it is better than none. Escape it before printing.
pub(super) fn reason(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
