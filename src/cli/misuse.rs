//! What is said of a command line that cannot be meant.

/// A command line that cannot be meant.
#[derive(Debug, PartialEq, Eq)]
pub struct Misuse {
    /// What is wrong with it; may have several lines.
    pub what: String,
    /// What to type instead.
    pub hint: String,
}

impl Misuse {
    /// What is wrong, and what to type.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Misuse {
        Misuse { what: what.into(), hint: hint.into() }
    }
}
