//! Arguments, progress, exit codes, rendering of reports; the only printing.

/// Run the program; the process exits with what this returns.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(70)
}
