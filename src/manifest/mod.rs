//! The manifest: one line for each regular file with its BLAKE3, as `b3sum` writes them and `b3sum --check` reads them.
//!
//! ```text
//! <64 hexadecimal digits>  <path>
//! \<64 hexadecimal digits>  <path with \\, \n and \r for backslash, newline and carriage return>
//! ```
//!
//! The path is that inside the transfer; `-` is a stream, and a file of that name is written `./-`, as one has to type
//! it for `b3sum`. Every name of a file with several has a line. Lines come in the transfer's order; files that were
//! left out have none, and of a file that changed while it was read the line tells what was sent, so that it verifies
//! at the destination.
//!
//! Names that are not UTF-8, or hold the replacement character U+FFFD, cannot be written so that `b3sum` finds the
//! file: it fails on its own lines of that kind, and it has no comments to hide them in. They are escaped with one more
//! form, `\xNN` for each such byte, so that no line is lost and the manifest stays text. `b3sum --check` names such a
//! line ("Invalid backslash escape"), checks all others, and fails; `blast verify` reads it. They are counted, and the
//! count is in the report.
//!
//! The format does no I/O; [`Draft`] is the file that it is written to, under another name until all of it is there.

mod draft;
mod line;

pub use draft::{Draft, Pen};
pub use line::{Line, Lines, Malformed, parse_line};
