//! The program around the library: arguments, progress, reports, exit codes. The only room that prints, and the only
//! one that reads the command line or the environment.
//!
//! Data owns standard output in `blast recv -`, and a command's words in `blast recv --run`; the report then goes to
//! standard error. Everywhere else the report is the result and goes to standard output, and all that is said meanwhile
//! goes to standard error. With `--json` the report, or the failure, is one JSON object in the same place.

mod args;
mod choose;
mod events;
mod exit;
mod json;
mod keys;
mod limited;
mod links;
mod meant;
mod misuse;
mod notes;
mod numbers;
mod progress;
mod rehearsal;
mod render;
mod target;
mod typed;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::error::{Error, ExitCode, escape};
use crate::options::{Destination, Find, LinksOptions, Observer, RecvOptions, SendOptions, VerifyOptions};
use crate::report::{Event, Found, Rehearsed, Report};
use crate::stats::{Phase, Stats};
use args::{Form, Request, Verbosity};
use choose::choose;
use keys::KeyFile;
use misuse::Misuse;
use progress::{Progress, Screen};
use render::Side;

/// Run the program; the process exits with what this returns.
pub fn main() -> process::ExitCode {
    exit::end_on_panic();
    let args: Vec<OsString> = std::env::args_os().collect();
    let json = args::wants_json(&args);
    let code = match args::parse(args.iter().cloned(), &|path| path.symlink_metadata().is_ok()) {
        Ok(Request::Print(text)) => {
            out(&text);
            ExitCode::Whole
        }
        Ok(Request::Send(mut options, verbosity, form, key)) => {
            run(Side::Send, verbosity, form, |observer, stats, screen| {
                options.trust.key = key.load()?;
                let find = options.find.map(|find| {
                    let screen = screen.clone();
                    let choose =
                        move |found: &[Found]| choose(found, find.code, &args, |question| screen.ask(question));
                    Find { choose: Arc::new(choose), ..find }
                });
                crate::send::run(SendOptions { observer, find, ..options }, stats)
            })
        }
        Ok(Request::Rehearse(options, verbosity, form)) => rehearse(&options, verbosity, form),
        Ok(Request::Recv(mut options, verbosity, form, key)) => {
            let to_stdout = options.destination == Destination::Stdout;
            if to_stdout && io::stdout().is_terminal() {
                let misuse = Misuse {
                    what: "standard output is a terminal, and 'recv -' writes raw bytes to it".to_owned(),
                    hint: "send them into a pipe or a file: blast recv - | COMMAND".to_owned(),
                };
                misused(&misuse, json)
            } else {
                let side = Side::Recv(options.destination.clone());
                run(side, verbosity, form, |observer, stats, _| {
                    options.trust.key = key.load()?;
                    crate::recv::run(RecvOptions { observer, ..options }, stats)
                })
            }
        }
        Ok(Request::Links(options, size, form, key)) => look_at_links(options, size, form, &key),
        Ok(Request::Keygen(file)) => keygen(file),
        Ok(Request::Verify(options, verbosity)) => verify(&options, verbosity),
        Err(misuse) => misused(&misuse, json),
    };
    exit::code(code)
}

/// Run one transfer with everything that is shown around it.
fn run(
    side: Side,
    verbosity: Verbosity,
    form: Form,
    transfer: impl FnOnce(Observer, Arc<Stats>, &Arc<Screen>) -> Result<Report, Error>,
) -> ExitCode {
    let stats = Arc::new(Stats::default());
    let screen = Arc::new(Screen::new(verbosity));
    let observer: Observer = {
        let (screen, down) = (screen.clone(), Mutex::new(BTreeMap::new()));
        Arc::new(move |event| {
            let news = is_news(&event, &mut down.lock().unwrap_or_else(|e| e.into_inner()));
            if let Some(said) = events::said(&event, verbosity).filter(|_| news || verbosity == Verbosity::Verbose) {
                screen.say(&said);
            }
        })
    };
    let sending = side == Side::Send;
    // What arrives, that is; what is said must go elsewhere.
    let to_stdout = matches!(&side, Side::Recv(destination) if destination.takes_stdout());
    let progress = Progress::start(screen.clone(), stats.clone(), sending);
    let outcome = transfer(observer, stats.clone(), &screen);
    drop(progress);
    match outcome {
        Ok(report) => {
            if report.empty_stdin && verbosity > Verbosity::Quiet {
                let what =
                    if report.command.is_some() { "the command wrote nothing" } else { "standard input was empty" };
                screen.say(&format!("warning: {what}: a stream of 0 bytes was sent"));
            }
            match (&side, verbosity) {
                _ if form == Form::Json => say_json(&json::report(&report, &side), to_stdout),
                (_, Verbosity::Quiet) if report.code == ExitCode::Whole => {}
                (_, Verbosity::Quiet) => screen.say(&render::partial(&report, &side)),
                _ if to_stdout => err(&render::report(&report, &side, verbosity)),
                _ => out(&render::report(&report, &side, verbosity)),
            }
            report.code
        }
        Err(e) => {
            if form == Form::Text || !to_stdout {
                screen.say(&render::failure(&e.to_string(), how_far(&e, &stats, sending), e.hint()));
            }
            if form == Form::Json {
                say_json(&json::failed(&e), to_stdout);
            }
            e.exit_code()
        }
    }
}

/// Say what would be sent. That is the result and goes to standard output, with `-v` every name as it is found.
fn rehearse(options: &SendOptions, verbosity: Verbosity, form: Form) -> ExitCode {
    let stats = Arc::new(Stats::default());
    let screen = Arc::new(Screen::new(verbosity));
    let progress = Progress::start(screen.clone(), stats.clone(), true);
    let by_name = verbosity == Verbosity::Verbose && form == Form::Text;
    let told = screen.clone();
    let tell = move |found: Rehearsed<'_>| {
        if by_name {
            told.aside(|| out(&rehearsal::line(&found)));
        }
    };
    let outcome = crate::send::rehearse(options, &stats, Arc::new(tell));
    drop(progress);
    match outcome {
        Ok(found) => {
            match form {
                Form::Json => out(&json::rehearsal(&found)),
                Form::Text => out(&rehearsal::text(&found, verbosity)),
            }
            found.exit_code()
        }
        Err(e) => {
            screen.say(&render::failure(&e.to_string(), None, e.hint()));
            if form == Form::Json {
                out(&json::failure(&e.to_string(), e.exit_code(), e.hint()));
            }
            e.exit_code()
        }
    }
}

/// Show the links.
fn look_at_links(mut options: LinksOptions, size: Option<u64>, form: Form, key: &KeyFile) -> ExitCode {
    let screen = Screen::new(Verbosity::Normal);
    let time = options.time;
    let tell = |what: &str| {
        if form == Form::Text {
            screen.say(&format!("measuring {} for {}", escape(what.as_bytes()), numbers::span(time)));
        }
    };
    let surveyed = key.load().and_then(|key| {
        options.send.trust.key = key;
        crate::send::measure::run(&options, &tell)
    });
    match surveyed {
        Ok(survey) => {
            match form {
                Form::Text => out(&links::text(&survey, size)),
                Form::Json => out(&links::to_json(&survey, size)),
            }
            ExitCode::Whole
        }
        Err(e) => {
            screen.say(&render::failure(&e.to_string(), None, e.hint()));
            if form == Form::Json {
                out(&json::failure(&e.to_string(), e.exit_code(), e.hint()));
            }
            e.exit_code()
        }
    }
}

fn keygen(file: Option<PathBuf>) -> ExitCode {
    match keys::generate(file) {
        Ok(advice) => {
            out(&advice);
            ExitCode::Whole
        }
        Err(e) => {
            err(&format!("blast: {}\n", render::failure(&e.to_string(), None, None)));
            e.exit_code()
        }
    }
}

/// Compare with a manifest. What differs is the result and goes to standard output, as it is found.
fn verify(options: &VerifyOptions, verbosity: Verbosity) -> ExitCode {
    let stats = Arc::new(Stats::default());
    let screen = Arc::new(Screen::new(verbosity));
    let began = Instant::now();
    let progress = Progress::start(screen.clone(), stats.clone(), true);
    let outcome = crate::verify::run(options, &stats, &|difference| {
        screen.aside(|| out(&render::difference(&difference)));
    });
    drop(progress);
    match outcome {
        Ok(verified) => {
            let code = verified.exit_code();
            if verbosity > Verbosity::Quiet {
                out(&render::verified(&verified, began.elapsed()));
            } else if code != ExitCode::Whole {
                screen.say(render::verified(&verified, began.elapsed()).trim_end());
            }
            code
        }
        Err(e) => {
            screen.say(&render::failure(&e.to_string(), None, e.hint()));
            e.exit_code()
        }
    }
}

/// How far a transfer had come that failed for a reason that does not tell it itself, as lost links and signals do.
fn how_far(e: &Error, stats: &Stats, sending: bool) -> Option<String> {
    let untold = matches!(e, Error::Destination { .. } | Error::Peer { .. } | Error::Source { .. });
    let begun = stats.phase() != Phase::Waiting;
    let total = stats.found_all.load(Relaxed).then(|| stats.bytes_found.load(Relaxed));
    (untold && begun).then(|| render::incomplete(progress::done(stats, sending), total))
}

/// Whether an event is worth a line without `-v`. A link that is down is said once for each number of links that
/// remain, not for each attempt to dial it again that fails in another way.
fn is_news(event: &Event, down: &mut BTreeMap<String, usize>) -> bool {
    match event {
        Event::LinkDown { name, remaining, .. } => down.insert(name.clone(), *remaining) != Some(*remaining),
        Event::LinkUp { name, .. } => {
            down.remove(name);
            true
        }
        _ => true,
    }
}

/// `json` as [`args::wants_json`] has it.
fn misused(misuse: &Misuse, json: Option<bool>) -> ExitCode {
    if json != Some(true) {
        err(&format!("blast: {}\n", render::failure(&misuse.what, None, Some(&misuse.hint))));
    }
    if let Some(to_stdout) = json {
        say_json(&json::failure(&misuse.what, ExitCode::Usage, Some(&misuse.hint)), to_stdout);
    }
    ExitCode::Usage
}

/// The result as JSON, where it is not among the data.
fn say_json(line: &str, data_on_stdout: bool) {
    if data_on_stdout { err(line) } else { out(line) }
}

/// Whoever reads our output may have gone (`| head`); that changes nothing about the transfer.
fn out(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(render::printable(text).as_bytes()).and_then(|()| out.flush());
}

fn err(text: &str) {
    let _ = io::stderr().write_all(render::printable(text).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_stays_down_is_told_once() {
        let mut known = BTreeMap::new();
        let mut news = |event| is_news(&event, &mut known);
        let down = |reason: &str, remaining| Event::LinkDown { name: "l1".into(), reason: reason.into(), remaining };
        assert!(news(down("silent for 10 s", 1)));
        assert!(!news(down("unreachable", 1)), "another way to fail is no news");
        assert!(!news(down("silent for 10 s", 1)));
        assert!(news(down("reset", 0)), "that no link remains is");
        assert!(news(Event::LinkUp { name: "l1".into(), after: Some(std::time::Duration::ZERO) }));
        assert!(news(down("reset", 0)));
    }
}
