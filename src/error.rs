//! The one error type of the public edge, its variants what a user can act on, and the exit codes.

use std::io;
use std::path::PathBuf;

use crate::child::Exit;

/// What a process exits with; the same meaning on both ends (it travels in Abort and Commit).
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum ExitCode {
    /// Every entry is on the receiver's disk, synced and verified.
    Whole = 0,
    /// Finished, but some entries were left out or changed while read, each named.
    Partial = 1,
    /// The command line cannot be meant, or what was to be sent cannot be read.
    Usage = 2,
    /// Refused: key, policy, destination not empty, other version.
    Refused = 3,
    /// The network was lost or never reached; can be resumed.
    Network = 4,
    /// The destination failed (full, I/O); can be resumed.
    Destination = 5,
    /// Verification failed.
    Verification = 6,
    /// Interrupted; can be resumed.
    Interrupted = 7,
    /// A bug in blast.
    Bug = 70,
}

impl ExitCode {
    /// The code for a byte that a peer sent; unknown ones count as a bug.
    pub fn from_wire(code: u8) -> ExitCode {
        use ExitCode::*;
        [Whole, Partial, Usage, Refused, Network, Destination, Verification, Interrupted]
            .into_iter()
            .find(|c| *c as u8 == code)
            .unwrap_or(Bug)
    }
}

/// Why a transfer did not finish. `Display` is "what went wrong: cause"; [`Error::hint`] is what to try.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    /// The request contradicts itself or names something that is not there.
    #[error("{0}")]
    Usage(String),
    /// A path of the source could not be used at all.
    #[error("cannot read {}: {source}", escape(path.as_os_str().as_encoded_bytes()))]
    Source {
        /// The path as given.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// One side refused to begin.
    #[error("refused: {0}")]
    Refused(String),
    /// The receiver was never reached, or every link was lost.
    #[error("{0}")]
    Network(String),
    /// No receiver was found, or not the one that was asked for.
    #[error("{0}")]
    NotFound(String),
    /// Several receivers were found, and which is meant is not known; each is listed with what to type.
    #[error("{0}")]
    Several(String),
    /// The destination could not be written.
    #[error("{what}: {source}")]
    Destination {
        /// What was being done, to which path (escaped), and how far it had come.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The command that was to make or to take the stream failed.
    #[error("{what}")]
    Command {
        /// Which (escaped), how it ended, and how far it had come.
        what: String,
        /// Whether it was to make the stream.
        producer: bool,
        /// How it ended; `None` if it only closed its end of the pipe.
        exit: Option<Exit>,
    },
    /// The peer broke the protocol, or what arrived is not what was sent.
    #[error("verification failed: {0}")]
    Verification(String),
    /// The archive of another program that the sender was given is damaged.
    #[error("the archive is damaged: {0}")]
    Archive(String),
    /// A signal asked us to stop.
    #[error("interrupted: {0}")]
    Interrupted(String),
    /// The peer ended the session and said why.
    #[error("the other side stopped: {reason}")]
    Peer {
        /// The peer's exit code.
        code: ExitCode,
        /// The peer's words, escaped.
        reason: String,
    },
    /// An invariant of ours does not hold.
    #[error("this is a bug in blast: {0}")]
    Bug(String),
}

impl Error {
    /// The exit code both ends use for this failure.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Error::Usage(_) | Error::Source { .. } | Error::Several(_) => ExitCode::Usage,
            // What was to be sent cannot be read.
            Error::Command { producer: true, .. } => ExitCode::Usage,
            Error::Command { producer: false, .. } => ExitCode::Destination,
            Error::Refused(_) => ExitCode::Refused,
            Error::Network(_) | Error::NotFound(_) => ExitCode::Network,
            Error::Destination { .. } => ExitCode::Destination,
            Error::Verification(_) | Error::Archive(_) => ExitCode::Verification,
            Error::Interrupted(_) => ExitCode::Interrupted,
            // nobody stops for that: the peer lies
            Error::Peer { code: ExitCode::Whole | ExitCode::Partial, .. } => ExitCode::Verification,
            Error::Peer { code, .. } => *code,
            Error::Bug(_) => ExitCode::Bug,
        }
    }

    /// The reason as the peer is told, cut to what a frame carries.
    pub fn reason(&self) -> String {
        let mut reason = self.to_string();
        let end = reason.floor_char_boundary(crate::limits::REASON_MAX);
        reason.truncate(end);
        reason
    }

    /// What the user can try next, if there is something to try.
    pub fn hint(&self) -> Option<&'static str> {
        match self.exit_code() {
            _ if matches!(self, Error::Several(_)) => None,
            _ if matches!(self, Error::NotFound(_)) => Some(
                "is 'blast recv' running there, without --hidden, and does a firewall on either machine stop UDP port \
                 7411? otherwise name the machine: blast send SRC... HOST",
            ),
            _ if matches!(self, Error::Command { .. }) => {
                Some("see what the command itself says, above, and run both commands again once it works alone")
            }
            _ if matches!(self, Error::Source { .. }) => {
                Some("see whether it is there, whether this user may read it, and whether its disk is sound")
            }
            _ if matches!(self, Error::Archive(_)) => Some(
                "see whether the program that makes the archive ends well, empty the destination, then run both \
                 commands again",
            ),
            ExitCode::Usage => Some("see 'blast --help'"),
            ExitCode::Network => {
                Some("check that 'blast recv' is running there and that its port is open, then run both commands again")
            }
            ExitCode::Destination => {
                Some("free space or mend the disk there, empty the destination, then run both commands again")
            }
            ExitCode::Verification => {
                Some("run both commands again; if it happens again, suspect memory or a network card on either machine")
            }
            ExitCode::Interrupted => Some("empty the destination, then run both commands again"),
            _ => None,
        }
    }
}

/// Foreign bytes made safe to print and reversible: printable UTF-8 stays, everything else (control bytes, invalid
/// UTF-8, bidirectional and zero-width marks, the backslash itself) becomes a backslash escape.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for part in bytes.utf8_chunks() {
        part.valid().chars().for_each(|c| if c == '\\' { out.push_str("\\\\") } else { push_visible(&mut out, c) });
        for b in part.invalid() {
            out.push_str(&format!("\\x{b:02x}"));
        }
    }
    out
}

/// A peer's words made safe to print. Names in them were escaped where they came from, so a backslash stays as it is.
pub fn escape_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push_visible(&mut out, c));
    out
}

fn push_visible(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_control() || is_invisible(c) => {
            let mut utf8 = [0; 4];
            for b in c.encode_utf8(&mut utf8).bytes() {
                out.push_str(&format!("\\x{b:02x}"));
            }
        }
        c => out.push(c),
    }
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{061c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_below_space_is_escaped_and_text_stays() {
        let all: Vec<u8> = (0..=255).collect();
        let out = escape(&all);
        assert!(out.chars().all(|c| !c.is_control()), "{out:?}");
        assert_eq!(escape("café 日本".as_bytes()), "café 日本");
        assert_eq!(escape(b"\xff\x1b[31m\\"), "\\xff\\x1b[31m\\\\");
        assert_eq!(escape("a\u{202e}b\u{85}".as_bytes()), "a\\xe2\\x80\\xaeb\\xc2\\x85");
    }

    #[test]
    fn a_peers_words_are_not_escaped_twice_and_cannot_reach_the_terminal() {
        let all: String = (0..=0xff).map(char::from).collect();
        assert!(escape_words(&all).chars().all(|c| !c.is_control()));
        assert_eq!(escape_words(&format!("cannot write '{}'", escape(b"a\nb\\"))), "cannot write 'a\\nb\\\\'");
        assert_eq!(escape_words("\u{1b}[31m\u{202e}"), "\\x1b[31m\\xe2\\x80\\xae");
    }

    #[test]
    fn codes_from_the_wire_keep_their_meaning() {
        for code in 0..=7u8 {
            assert_eq!(ExitCode::from_wire(code) as u8, code);
        }
        assert_eq!(ExitCode::from_wire(8), ExitCode::Bug);
        let lying = Error::Peer { code: ExitCode::Whole, reason: String::new() };
        assert_ne!(lying.exit_code(), ExitCode::Whole, "an abort is never success");
    }
}
