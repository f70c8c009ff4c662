//! A whole command line, read: which command it is, what its options come to (see [`meant`](super::meant)), and how its
//! result is said.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use super::keys::KeyFile;
use super::meant::{links, recv, select, send, verify};
use super::misuse::Misuse;
use super::typed::{Command, CommonTyped, Typed};
use crate::error::escape;
use crate::options::{LinksOptions, RecvOptions, SendOptions, VerifyOptions};

/// How much is said on standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors, and what was left out.
    Quiet,
    /// Progress, what changed, the report.
    Normal,
    /// Every link that comes up and every note by name as well.
    Verbose,
}

/// How a transfer's result is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A command line as meant.
pub enum Request {
    /// Send something; the observer is not set yet, and no key has been read.
    Send(SendOptions, Verbosity, Form, KeyFile),
    /// Say what would be sent.
    Rehearse(SendOptions, Verbosity, Form),
    /// Receive something; the observer is not set yet, and no key has been read.
    Recv(RecvOptions, Verbosity, Form, KeyFile),
    /// Look at the links; how long would this much take? No key has been read.
    Links(LinksOptions, Option<u64>, Form, KeyFile),
    /// Make a key in that file, or in the usual one.
    Keygen(Option<PathBuf>),
    /// Compare a tree with a manifest.
    Verify(VerifyOptions, Verbosity),
    /// Print this text and be done (`--help`, `--version`).
    Print(String),
}

impl Verbosity {
    fn of(quiet: bool, verbose: bool) -> Verbosity {
        match (quiet, verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }
}

impl CommonTyped {
    fn verbosity(&self) -> Verbosity {
        Verbosity::of(self.quiet, self.verbose)
    }

    fn form(&self) -> Form {
        if self.json { Form::Json } else { Form::Text }
    }
}

/// Where the failure of a command line that cannot be meant is wanted as JSON, and whether standard output is for data.
pub fn wants_json(args: &[OsString]) -> Option<bool> {
    let mut options = args.iter().skip(1).take_while(|arg| *arg != "--");
    let takes_stdout = |arg: &OsString| arg == "-" || arg == "--run" || arg.as_bytes().starts_with(b"--run=");
    let data = args.get(1).is_some_and(|arg| arg == "recv") && args.iter().any(takes_stdout);
    options.any(|arg| arg == "--json").then_some(data)
}

/// Read a whole command line, the program's name first. `exists` says whether a path names anything here, following no
/// link.
pub fn parse(args: impl IntoIterator<Item = OsString>, exists: &dyn Fn(&Path) -> bool) -> Result<Request, Misuse> {
    let matched = Typed::command().try_get_matches_from(args);
    let parsed = matched.and_then(|matches| Ok((Typed::from_arg_matches(&matches)?, matches)));
    let (typed, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(e) => return from_clap(&e),
    };
    match typed.command {
        Command::Send(mut typed) => {
            let (verbosity, form) = (typed.common.verbosity(), typed.common.form());
            let select = select(&mut typed, matches.subcommand().map(|(_, matches)| matches));
            let (is_rehearsal, key) = (typed.dry_run, KeyFile(typed.common.trust.key_file.clone()));
            let options = SendOptions { select, ..send(typed, exists)? };
            Ok(if is_rehearsal {
                Request::Rehearse(options, verbosity, form)
            } else {
                Request::Send(options, verbosity, form, key)
            })
        }
        Command::Recv(typed) => {
            let (verbosity, form) = (typed.common.verbosity(), typed.common.form());
            let key = KeyFile(typed.common.trust.key_file.clone());
            Ok(Request::Recv(recv(typed)?, verbosity, form, key))
        }
        Command::Links(typed) => {
            let (size, form) = (typed.size, if typed.json { Form::Json } else { Form::Text });
            let key = KeyFile(typed.trust.key_file.clone());
            Ok(Request::Links(links(typed)?, size, form, key))
        }
        Command::Verify(typed) => {
            let verbosity = Verbosity::of(typed.quiet, typed.verbose);
            Ok(Request::Verify(verify(typed)?, verbosity))
        }
        Command::Keygen(typed) => {
            let mut operands = typed.operands;
            match (operands.pop(), operands.is_empty()) {
                (Some(file), true) if file.is_empty() => {
                    Err(Misuse::new("FILE is empty", "look for an unset variable on the command line"))
                }
                (Some(file), true) => Ok(Request::Keygen(Some(file.into()))),
                (Some(_), false) => Err(Misuse::new("keygen takes one FILE at most", "blast keygen [FILE]")),
                (None, _) => Ok(Request::Keygen(None)),
            }
        }
    }
}

/// clap's complaint in our words: no "error:" in front, its usage and tips kept, foreign bytes escaped.
fn from_clap(e: &clap::Error) -> Result<Request, Misuse> {
    let text = e.render().to_string();
    match e.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Ok(Request::Print(text)),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            return Err(Misuse::new("say whether to send or to receive", "blast send SRC... HOST, or blast recv DEST"));
        }
        _ => {}
    }
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let lines = text
        .lines()
        .take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more"))
        .filter(|l| !l.trim().is_empty());
    let what = lines.map(|l| escape(l.trim_end().as_bytes())).collect::<Vec<_>>().join("\n");
    Err(Misuse::new(what, "see 'blast --help', 'blast send --help' or 'blast recv --help'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;
    use crate::options::{
        Allow, Bind, Bwlimit, Compress, Destination, From, Keep, LinkSpec, Schedule, SocketOptions, Sources,
    };
    use std::num::NonZeroU64;
    use std::os::unix::ffi::OsStringExt;

    fn run(line: &[&[u8]]) -> Result<Request, Misuse> {
        let args = std::iter::once(&b"blast"[..]).chain(line.iter().copied());
        parse(args.map(|a| OsString::from_vec(a.to_vec())), &|p| p == Path::new("data"))
    }

    fn words(line: &str) -> Result<Request, Misuse> {
        run(&line.split_whitespace().map(str::as_bytes).collect::<Vec<_>>())
    }

    fn sent(line: &str) -> SendOptions {
        match words(line) {
            Ok(Request::Send(options, ..)) => options,
            Ok(_) => panic!("{line}: not a send"),
            Err(e) => panic!("{line}: {e:?}"),
        }
    }

    fn received(line: &str) -> RecvOptions {
        match words(line) {
            Ok(Request::Recv(options, ..)) => options,
            Ok(_) => panic!("{line}: not a recv"),
            Err(e) => panic!("{line}: {e:?}"),
        }
    }

    fn refused(line: &str) -> Misuse {
        match words(line) {
            Err(e) => e,
            Ok(_) => panic!("{line}: was taken"),
        }
    }

    #[test]
    fn the_last_operand_is_the_address_and_nothing_else_is() {
        for (line, host, port) in [
            ("send data h", "h", 7411),
            ("send data h:80", "h", 80),
            ("send data h:65535", "h", 65535),
            ("send data 10.0.0.2", "10.0.0.2", 7411),
            ("send data 10.0.0.2:9", "10.0.0.2", 9),
            ("send data fd00::1", "fd00::1", 7411),
            ("send data ::1", "::1", 7411),
            ("send data [fd00::1]", "fd00::1", 7411),
            ("send data [fd00::1]:9", "fd00::1", 9),
            ("send data fe80::1%eth0", "fe80::1%eth0", 7411),
            ("send data [fe80::1%eth0]:9", "fe80::1%eth0", 9),
            ("send data data:7411", "data", 7411),
            ("send x:9 h", "h", 7411),
            ("send ./x:9 host:/path:9 h:1", "h", 1),
            ("send -- -rf h", "h", 7411),
            ("send -q -- --help h", "h", 7411),
            ("send data auto.", "auto.", 7411),
            ("send data auto.:9", "auto.", 9),
            ("send auto h", "h", 7411),
        ] {
            let options = sent(line);
            assert_eq!((options.host.as_str(), options.port), (host, port), "{line}");
            assert!(options.find.is_none(), "{line}");
        }
        assert_eq!(sent("send x:9 h").sources, Sources::Paths(vec!["x:9".into()]));
        assert_eq!(sent("send -- -rf h").sources, Sources::Paths(vec!["-rf".into()]));
        assert_eq!(sent("send a b/ c h").sources, Sources::Paths(vec!["a".into(), "b/".into(), "c".into()]));
        assert_eq!(sent("send - h").sources, Sources::Stdin);
        assert_eq!(sent("send -- - h").sources, Sources::Stdin);
        assert_eq!(sent("send ./- h").sources, Sources::Paths(vec!["./-".into()]));
    }

    #[test]
    fn everything_is_kept_unless_told_otherwise_on_either_side() {
        for (line, xattrs, acls) in [("", true, true), (" --no-xattrs", false, true), (" --no-acls", true, false)] {
            assert_eq!(sent(&format!("send{line} data h")).keep, Keep { xattrs, acls });
            assert_eq!(received(&format!("recv{line} d")).keep, Keep { xattrs, acls });
        }
    }

    #[test]
    fn what_is_allowed_is_named_and_nothing_else_is_taken() {
        assert!(!received("recv d").allow.shared);
        assert!(
            received("recv --allow shared d").allow.shared && received("recv --allow shared,shared d").allow.shared
        );
        let allow = received("recv --allow suid,devices,caps,trusted d").allow;
        assert_eq!(allow, Allow::default().to_a_known_sender());
        assert!(received("recv --allow labels d").allow.labels && !allow.labels);
        for wrong in ["setuid", "shared,", "all", "Shared", "shared suid", ","] {
            let misuse = refused(&format!("recv --allow {wrong} d"));
            assert!(misuse.what.contains("--allow") || wrong.contains(' '), "{wrong}: {misuse:?}");
        }
        assert!(refused("send --allow shared data h").what.contains("--allow"));
    }

    #[test]
    fn a_command_takes_the_place_of_src_or_of_dest_and_not_both() {
        let sending = run(&[b"send", b"--run", b"zfs send p@\xff | cat", b"h:9"]);
        let Ok(Request::Send(options, ..)) = sending else { panic!("not taken") };
        assert_eq!(options.sources, Sources::Run(OsString::from_vec(b"zfs send p@\xff | cat".to_vec())));
        assert_eq!((options.host.as_str(), options.port), ("h", 9));
        assert_eq!(sent("send --run=cmd auto").sources, Sources::Run("cmd".into()));
        assert_eq!(received("recv --run cmd").destination, Destination::Run("cmd".into()));
        assert_eq!(received("recv -p 0 --run=-").destination, Destination::Run("-".into()));
        for (line, what) in [
            ("send --run cmd data h", "in place of SRC"),
            ("send --run cmd - h", "in place of SRC"),
            ("send --run cmd", "which machine"),
            ("recv --run cmd d", "in place of DEST"),
            ("recv --run cmd -", "in place of DEST"),
            ("recv --run", "--run"),
        ] {
            assert!(refused(line).what.contains(what), "{line}: {:?}", refused(line));
        }
        for empty in [&b""[..], b" \n"] {
            let lines: [&[&[u8]]; 2] = [&[b"send", b"--run", empty, b"h"], &[b"recv", b"--run", empty]];
            for line in lines {
                let Err(misuse) = run(line) else { panic!("{line:?} was taken") };
                assert!(misuse.what.contains("is empty"), "{misuse:?}");
            }
        }
        let json = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(json("blast recv --json --run cmd"), Some(true));
        assert_eq!(json("blast recv --json --run=cmd"), Some(true));
        assert_eq!(json("blast send --json --run cmd h"), Some(false));
    }

    #[test]
    fn zeros_are_left_out_where_something_can_have_holes() {
        assert!(received("recv --sparse d").sparse && !received("recv d").sparse);
        for line in ["recv --sparse -", "recv --sparse --run cmd"] {
            assert!(refused(line).what.contains("--sparse is for"), "{line}");
        }
    }

    #[test]
    fn auto_asks_to_find_the_receiver_and_a_code_says_which() {
        assert!(sent("send data auto").find.is_some_and(|find| find.code.is_none()));
        for typed in ["7KQ-4M2", "7kq4m2"] {
            let find = sent(&format!("send data --code {typed} auto")).find;
            assert_eq!(find.and_then(|find| find.code), "7KQ-4M2".parse().ok(), "{typed}");
        }
        assert!(received("recv --hidden d").hidden && !received("recv d").hidden);
        let here =
            |line: [&str; 3]| parse(["blast"].iter().chain(&line).map(OsString::from), &|p| p == Path::new("auto"));
        let Err(misuse) = here(["send", "a", "auto"]) else { panic!("the file was overlooked") };
        assert!(
            misuse.what.contains("'auto' is a file or directory here") && misuse.hint.contains("./auto"),
            "{misuse:?}"
        );
    }

    #[test]
    fn an_address_that_cannot_be_meant_is_refused_with_what_to_type() {
        for (line, what, hint) in [
            ("send", "what to send", "blast send SRC"),
            ("send data", "HOST is missing", "blast send SRC"),
            ("send /data", "HOST is missing", "blast send SRC"),
            ("send -", "HOST is missing", "blast send SRC"),
            ("send h:7411", "SRC is missing", "blast send SRC"),
            ("send a data", "'data' is a file or directory here", "data:7411"),
            ("send auto", "SRC is missing", "blast send SRC"),
            ("send a auto:7411", "auto finds the receiver with its port", "auto.:7411"),
            ("send a auto:/x", "cannot start the receiver over ssh", "on auto type"),
            ("send a h --code 7KQ-4M2", "--code needs auto", "blast send --code CODE SRC... auto"),
            ("send a auto --code 7KQ", "a code like 7KQ-4M2", "--help"),
            ("send a /b", "'/b' is a path", "blast send SRC"),
            ("send a ./b", "is a path", "blast send SRC"),
            ("send a .", "is a path", "blast send SRC"),
            ("send a -", "standard input", "blast send SRC"),
            ("send - a h", "only be sent alone", "./-"),
            ("send a :80", "names none", "blast send SRC"),
            ("send a h:0", "'0' is no port", "1 to 65535"),
            ("send a h:65536", "'65536' is no port", "1 to 65535"),
            ("send a h:99999999999999999999", "is no port", "1 to 65535"),
            ("send a h:/restore", "cannot start the receiver over ssh", "on h type 'blast recv /restore'"),
            ("send a root@h:/restore", "cannot start the receiver over ssh", "on h type 'blast recv /restore'"),
            ("send a h:", "cannot start the receiver over ssh", "blast recv DEST"),
            ("send a h:80x", "cannot start the receiver over ssh", "blast recv 80x"),
            ("send a root@h", "no meaning without ssh", "type h alone"),
            ("send a root@h:80", "no meaning without ssh", "type h alone"),
            ("send a [fd00::1", "no IPv6 address in brackets", "[fd00::1]"),
            ("send a [h]:80", "no IPv6 address in brackets", "[fd00::1]"),
            ("send a [fd00::1]80", "only :PORT can follow", "blast send SRC"),
            ("send a [fd00::1]:/x", "cannot start the receiver over ssh", "on [fd00::1] type"),
            ("send --nonsense a h", "--nonsense", "--help"),
            ("send a h --streams 0", "--streams", "--help"),
            ("send a h --streams 65", "--streams", "--help"),
            ("send a h --compress 23", "--compress", "--help"),
            ("send a h --schedule fair", "--schedule", "--help"),
            ("send a h --timeout 0", "one second", "--help"),
            ("send a h --timeout 10y", "not a time", "--help"),
            ("send a h --timeout -1", "'-1'", "--help"),
            ("send a h --window 1000", "1M to 1G", "--help"),
            ("send a h --window 1025M", "1M to 1G", "--help"),
            ("send a h --window 99999999999G", "1M to 1G", "--help"),
            ("send a h --link a/b", "neither an interface", "--help"),
            ("send a h --bwlimit fast", "--bwlimit", "--help"),
            ("send a h --bwlimit a/b=1M", "neither an interface", "--help"),
            ("send a h --dscp 64", "--dscp", "--help"),
            ("recv --congestion a/b a", "--congestion", "--help"),
            ("recv --bwlimit 1M a", "--bwlimit", "--help"),
            ("send -q -v a h", "cannot be used with", "--help"),
            ("recv", "DEST is missing", "blast recv DEST"),
            ("recv a b", "one DEST", "blast recv DEST"),
            ("links a b", "one HOST", "blast links"),
            ("links auto", "not auto", "blast links"),
            ("links --for 0 h", "not a size", "--help"),
            ("verify --manifest m", "DIR is missing", "blast verify DIR"),
            ("verify a b --manifest m", "one DIR", "blast verify DIR"),
            ("verify a", "--manifest is missing", "blast verify DIR"),
            ("recv --bind a/b a", "neither an IP address", "--help"),
            ("recv --bind 10.0.0.2:9 --port 8 a", "port 9", "say it once"),
            ("recv --bind fe80::1 a", "needs its interface", "--help"),
            ("recv --port 70000 a", "70000", "--help"),
            ("", "send or to receive", "blast recv DEST"),
            ("copy a h", "copy", "--help"),
        ] {
            let misuse = refused(line);
            assert!(misuse.what.contains(what), "{line}: {misuse:?}");
            assert!(misuse.hint.contains(hint), "{line}: {misuse:?}");
            assert!(!misuse.what.starts_with("error"), "{line}: {misuse:?}");
        }
    }

    #[test]
    fn options_keep_their_meaning() {
        let options =
            sent("send --link eth1 --link 10.0.0.1 --link [fd00::1] --streams 4 --compress 3 --schedule rr a h");
        let links = ["10.0.0.1", "fd00::1"].map(|a| LinkSpec::Address(a.parse().expect("an address")));
        assert_eq!(options.links[0], LinkSpec::Interface("eth1".into()));
        assert_eq!(options.links[1..], links);
        assert_eq!(
            (options.streams, options.compress, options.schedule),
            (Some(4), Compress::Level(3), Schedule::RoundRobin)
        );
        assert_eq!(sent("send --streams auto a h").streams, None);
        let bare = sent("send a h");
        assert_eq!((bare.streams, bare.compress, bare.schedule), (None, Compress::Auto, Schedule::Pull));
        assert_eq!((bare.timeout, bare.window_chunks), (limits::TIMEOUT_DEFAULT, None));
        assert_eq!(sent("send --compress -5 a h").compress, Compress::Level(-5));
        assert_eq!(sent("send --compress auto a h").compress, Compress::Auto);
        for off in ["off", "0"] {
            assert_eq!(sent(&format!("send --compress {off} a h")).compress, Compress::Off);
        }
        let limited =
            sent("send --bwlimit 1M --bwlimit l1=5 --bwlimit [fd00::1]=80kbit --bwlimit l1=0 --bwlimit 2M a h");
        assert_eq!(limited.bwlimit.whole, NonZeroU64::new(2 << 20));
        assert_eq!(
            limited.bwlimit.links,
            [(links[1].clone(), NonZeroU64::new(10_000)), (LinkSpec::Interface("l1".into()), None)]
        );
        assert_eq!(bare.bwlimit, Bwlimit::default());
        let sockets = SocketOptions { congestion: Some("bbr".into()), dscp: Some(46) };
        assert_eq!(sent("send --congestion bbr --dscp ef a h").sockets, sockets);
        assert_eq!(received("recv --congestion bbr --dscp 46 a").sockets, sockets);
        let options = received("recv --bind 10.0.0.2 -p 0 --timeout 2h --window 64M /restore/");
        assert_eq!(options.bind, Some(Bind::Address([10, 0, 0, 2].into(), None)));
        assert_eq!(received("recv --listen [fd00::1]:9 a").port, 9);
        assert_eq!((options.port, options.timeout.as_secs(), options.window_chunks), (0, 7200, Some(64)));
        assert_eq!(options.destination, Destination::Path("/restore/".into()));
        assert_eq!(options.manifest, None);
        assert_eq!(sent("send a h --manifest m").manifest, Some("m".into()));
        assert_eq!(received("recv --manifest=/x/m a").manifest, Some("/x/m".into()));
        assert_eq!(received("recv -").destination, Destination::Stdout);
        assert_eq!(received("recv -- -").destination, Destination::Stdout);
        assert!(bare.trust.key.is_none() && !bare.trust.plain && options.from.is_empty());
        assert!(sent("send --no-encrypt a h").trust.plain && received("recv --no-encrypt a").trust.plain);
        let from = [From::Any, From::Network([10, 0, 0, 0].into(), 8)];
        assert_eq!(received("recv --from any a --from 10.0.0.0/8").from, from);
        let key = |line: &str| match words(line) {
            Ok(Request::Send(.., key) | Request::Recv(.., key) | Request::Links(.., key)) => key,
            _ => panic!("{line}: was not taken"),
        };
        for line in ["send --key-file k a h", "recv a --key-file=k", "links --key-file k h"] {
            assert_eq!(key(line), KeyFile(Some("k".into())), "{line}");
        }
        assert_eq!(key("recv a"), KeyFile(None));
        assert!(matches!(words("keygen k"), Ok(Request::Keygen(Some(path))) if path == Path::new("k")));
        assert!(matches!(words("keygen"), Ok(Request::Keygen(None))));
        assert!(words("keygen a b").is_err() && words("recv --from 10.0.0.0/99 a").is_err());
        assert_eq!(received("recv x:9").destination, Destination::Path("x:9".into()));
    }

    #[test]
    fn bytes_that_are_no_text_are_paths_and_never_hosts() {
        let Ok(Request::Send(options, ..)) = run(&[b"send", b"\xff\x1b[31m", b"h"]) else { panic!("not taken") };
        let Sources::Paths(paths) = options.sources else { panic!("not paths") };
        assert_eq!(paths[0].as_os_str().as_bytes(), b"\xff\x1b[31m");
        let Ok(Request::Recv(options, ..)) = run(&[b"recv", b"\xff"]) else { panic!("not taken") };
        assert_eq!(options.destination, Destination::Path(OsString::from_vec(b"\xff".to_vec()).into()));
        for line in [
            &[&b"send"[..], b"a", b"\xff\x1b[31m"][..],
            &[b"send", b"a", b"h\x1b[31m"],
            &[b"send", b"--\xff\x1b[31m", b"a", b"h"],
            &[b"send", b"--streams", b"\x1b[31m\r", b"a", b"h"],
            &[b"send", b"--link", b"\x1b[31m\r", b"a", b"h"],
            &[b"\x1b[31m\r"],
        ] {
            let Err(misuse) = run(line) else { panic!("{line:?}: was taken") };
            let said = misuse.what + &misuse.hint;
            assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
        }
    }

    #[test]
    fn help_and_version_are_printed_and_not_errors() {
        for line in [
            "--help",
            "-h",
            "send --help",
            "recv --help",
            "links --help",
            "verify --help",
            "keygen --help",
            "--version",
        ] {
            let Ok(Request::Print(text)) = words(line) else { panic!("{line}: not printed") };
            assert!(text.contains("blast"), "{line}: {text}");
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
        assert!(matches!(words("send --json a h"), Ok(Request::Send(_, Verbosity::Normal, Form::Json, _))));
        let wants = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(wants("blast send --json - --x h"), Some(false));
        assert_eq!(wants("blast recv - --json x"), Some(true), "standard output is not ours");
        assert_eq!(wants("blast send -- --json h"), None);
        assert_eq!(wants("blast"), None);
        assert!(matches!(words("send -q a h"), Ok(Request::Send(_, Verbosity::Quiet, Form::Text, _))));
        assert!(matches!(words("recv -v a"), Ok(Request::Recv(_, Verbosity::Verbose, Form::Text, _))));
        let Ok(Request::Verify(options, Verbosity::Verbose)) = words("verify -v a --manifest m") else {
            panic!("not taken");
        };
        assert_eq!(options, VerifyOptions { dir: "a".into(), manifest: "m".into(), extra: true });
    }
}
