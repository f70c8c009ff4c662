//! How the process ends: the code for each outcome, and what a panic turns into.

use std::io::Write;
use std::panic::PanicHookInfo;
use std::process;

use super::render::printable;
use crate::error::ExitCode;

/// The code as the system takes it.
pub fn code(code: ExitCode) -> process::ExitCode {
    process::ExitCode::from(code as u8)
}

/// From here on a panic in any thread says that it is a bug and ends the process with code 70. It does not unwind into
/// a transfer whose other threads would wait for the one that is gone: a bug must never hang, and never be success.
pub fn end_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        let _ = writeln!(std::io::stderr(), "{}", printable(&bug(info)));
        process::exit(ExitCode::Bug as i32);
    }));
}

fn bug(info: &PanicHookInfo<'_>) -> String {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let what = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("it panicked");
    let place = info.location().map(|l| format!(" ({}:{})", l.file(), l.line())).unwrap_or_default();
    format!(
        "blast: this is a bug in blast: {what}{place}\ntry: run both commands again, and report this line with what \
         'blast --version' prints"
    )
}
