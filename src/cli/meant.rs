//! From what was typed to what is meant ([`SendOptions`], [`RecvOptions`], …), command by command. Nothing is opened or
//! resolved here; the one question put to the world, whether a path exists, is asked through a closure. Arguments are
//! bytes: a path is never made text, and only the last operand of `send` is ever read as an address.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ArgMatches;

use super::misuse::Misuse;
use super::target::{Target, target};
use super::typed::{CommonTyped, LinksTyped, RecvTyped, ScheduleTyped, SendTyped, VerifyTyped};
use super::values::{BwlimitTyped, IdRules};
use crate::error::{Error, escape};
use crate::limits;
use crate::options::{
    Destination, FilesFrom, Find, Keep, LinksOptions, Owners, RecvOptions, RuleOption, Schedule, Select, SendOptions,
    SocketOptions, Sources, VerifyOptions,
};
use crate::report::Found;

impl CommonTyped {
    fn sockets(&self) -> SocketOptions {
        SocketOptions { congestion: self.congestion.clone(), dscp: self.dscp }
    }

    fn keep(&self) -> Keep {
        Keep { xattrs: !self.no_xattrs, acls: !self.no_acls }
    }
}

/// What `blast send` was asked for.
pub(super) fn send(typed: SendTyped, exists: &dyn Fn(&Path) -> bool) -> Result<SendOptions, Misuse> {
    const USAGE: &str = "blast send SRC... HOST[:PORT]";
    let mut operands = typed.operands;
    let last = operands.pop().ok_or_else(|| Misuse::new("what to send, and to which machine?", USAGE))?;
    let target = match operands.is_empty() && typed.run.is_none() {
        false => target(&last, exists)?,
        true if typed.dry_run => {
            operands.push(last);
            Target::nowhere()
        }
        true => return Err(one_operand(&last, exists, USAGE)),
    };
    let sources = if let Some(command) = typed.run {
        if !operands.is_empty() {
            let text = "what --run COMMAND writes is sent in place of SRC, and both are here";
            return Err(Misuse::new(text, "blast send --run COMMAND HOST[:PORT]"));
        }
        Sources::Run(shell_command(command)?)
    } else if operands.iter().any(|o| o == "-") {
        if operands.len() > 1 {
            return Err(Misuse::new(
                "standard input (-) can only be sent alone",
                "for a file of the name - type ./- instead",
            ));
        }
        Sources::Stdin
    } else {
        if operands.iter().any(|o| o.is_empty()) {
            return Err(Misuse::new("one SRC is empty", "look for an unset variable on the command line"));
        }
        Sources::Paths(operands.into_iter().map(PathBuf::from).collect())
    };
    let mut options = SendOptions::new(sources, &target.host);
    options.port = target.port;
    if target.auto {
        // who decides is not known here, and until then nobody does
        let choose = Arc::new(|_: &[Found]| Err(Error::Refused("nobody confirmed the receiver".to_owned())));
        options.find = Some(Find { code: typed.code, choose });
    } else if typed.code.is_some() {
        return Err(Misuse::new("--code needs auto in place of HOST", "blast send --code CODE SRC... auto"));
    }
    options.links = typed.links;
    options.streams = typed.streams.and_then(|streams| streams.0);
    options.compress = typed.compress.unwrap_or_default();
    options.schedule = match typed.schedule {
        ScheduleTyped::Pull => Schedule::Pull,
        ScheduleTyped::Rr => Schedule::RoundRobin,
    };
    for BwlimitTyped { link, rate } in typed.bwlimits {
        options.bwlimit.set(link, rate);
    }
    options.sparse = !typed.no_sparse;
    options.trust.plain = typed.common.trust.no_encrypt;
    options.sockets = typed.common.sockets();
    options.timeout = typed.common.timeout.unwrap_or(options.timeout);
    options.window_chunks = typed.common.window;
    options.keep = typed.common.keep();
    options.manifest = typed.common.manifest;
    Ok(options)
}

/// What is chosen, the rules in the order in which they were typed.
pub(super) fn select(typed: &mut SendTyped, matches: Option<&ArgMatches>) -> Select {
    let places = |id| matches.and_then(|matches| matches.indices_of(id)).into_iter().flatten();
    let bytes = OsString::into_encoded_bytes;
    let exclude = std::mem::take(&mut typed.exclude).into_iter().map(|text| RuleOption::Exclude(bytes(text)));
    let include = std::mem::take(&mut typed.include).into_iter().map(|text| RuleOption::Include(bytes(text)));
    let from = std::mem::take(&mut typed.exclude_from).into_iter().map(RuleOption::ExcludeFrom);
    let mut rules: Vec<(usize, RuleOption)> = places("exclude").zip(exclude).collect();
    rules.extend(places("include").zip(include));
    rules.extend(places("exclude_from").zip(from));
    rules.sort_by_key(|(place, _)| *place);
    Select {
        rules: rules.into_iter().map(|(_, rule)| rule).collect(),
        one_file_system: typed.one_file_system,
        exclude_caches: typed.exclude_caches,
        files_from: typed.files_from.take().map(|file| FilesFrom { file, nul: typed.null }),
    }
}

/// What `blast recv` was asked for.
pub(super) fn recv(typed: RecvTyped) -> Result<RecvOptions, Misuse> {
    const USAGE: &str = "blast recv DEST";
    let mut operands = typed.operands;
    let destination = match (operands.pop(), operands.is_empty(), typed.run) {
        (None, _, Some(command)) => Destination::Run(shell_command(command)?),
        (Some(_), _, Some(_)) => {
            let text = "--run COMMAND reads what arrives in place of DEST, and both are here";
            return Err(Misuse::new(text, "blast recv --run COMMAND"));
        }
        (Some(one), true, None) if one.is_empty() => {
            return Err(Misuse::new("DEST is empty", "look for an unset variable on the command line"));
        }
        (Some(one), true, None) if one == "-" => Destination::Stdout,
        (Some(one), true, None) => Destination::Path(one.into()),
        (None, _, None) => return Err(Misuse::new("DEST is missing: where should it go?", USAGE)),
        (Some(_), false, None) => return Err(Misuse::new("recv takes one DEST", USAGE)),
    };
    if typed.sparse && destination.takes_stdout() {
        return Err(Misuse::new("--sparse is for a file or a block device: a pipe has no holes", USAGE));
    }
    let mut options = RecvOptions::new(destination);
    options.sparse = typed.sparse;
    let (bind, port) = typed.bind.unzip();
    options.port = match (port.flatten(), typed.port) {
        (Some(a), Some(b)) if a != b => {
            return Err(Misuse::new(format!("--bind says port {a} and --port says {b}"), "say it once"));
        }
        (a, b) => a.or(b).unwrap_or(limits::PORT),
    };
    options.bind = bind;
    options.verify = typed.verify;
    options.trust.plain = typed.common.trust.no_encrypt;
    options.from = typed.from;
    options.sockets = typed.common.sockets();
    options.hidden = typed.hidden;
    options.allow = typed.allow.unwrap_or_default();
    let rules = |typed: Vec<IdRules>| typed.into_iter().flat_map(|IdRules(rules)| rules).collect();
    options.owners = Owners { by_name: typed.by_name, users: rules(typed.owner_map), groups: rules(typed.group_map) };
    options.keep = typed.common.keep();
    options.timeout = typed.common.timeout.unwrap_or(options.timeout);
    options.window_chunks = typed.common.window;
    options.manifest = typed.common.manifest;
    Ok(options)
}

/// A shell that is given nothing does nothing, successfully.
fn shell_command(command: OsString) -> Result<OsString, Misuse> {
    if command.as_bytes().trim_ascii().is_empty() {
        return Err(Misuse::new("the COMMAND of --run is empty", "look for an unset variable on the command line"));
    }
    Ok(command)
}

/// What `blast links` was asked for.
pub(super) fn links(typed: LinksTyped) -> Result<LinksOptions, Misuse> {
    const USAGE: &str = "blast links [HOST[:PORT]]";
    let mut operands = typed.operands;
    let target = match (operands.pop(), operands.is_empty()) {
        (Some(host), true) => Some(target(&host, &|_| false)?),
        (Some(_), false) => return Err(Misuse::new("links takes one HOST at most", USAGE)),
        (None, _) => None,
    };
    if target.as_ref().is_some_and(|target| target.auto) {
        return Err(Misuse::new("links needs the receiver's name or address, not auto", USAGE));
    }
    let mut options = SendOptions::new(Sources::Stdin, target.as_ref().map_or("", |target| &target.host));
    options.port = target.as_ref().map_or(limits::PORT, |target| target.port);
    options.links = typed.links;
    options.streams = Some(1);
    options.trust.plain = typed.trust.no_encrypt;
    let time = typed.time.unwrap_or(limits::MEASURE_TIME);
    Ok(LinksOptions { send: options, measure: target.is_some(), time })
}

/// What `blast verify` was asked for.
pub(super) fn verify(typed: VerifyTyped) -> Result<VerifyOptions, Misuse> {
    const USAGE: &str = "blast verify DIR --manifest FILE";
    let mut operands = typed.operands;
    let dir = match (operands.pop(), operands.is_empty()) {
        (Some(one), true) if !one.is_empty() => one,
        (Some(_), true) => return Err(Misuse::new("DIR is empty", "look for an unset variable on the command line")),
        (None, _) => return Err(Misuse::new("DIR is missing: which files should be compared?", USAGE)),
        (Some(_), false) => return Err(Misuse::new("verify takes one DIR", USAGE)),
    };
    let Some(manifest) = typed.manifest else {
        return Err(Misuse::new("--manifest is missing: what should the files be?", USAGE));
    };
    Ok(VerifyOptions { dir: dir.into(), manifest, extra: typed.verbose })
}

/// `blast send X`: say which half is missing.
fn one_operand(only: &OsStr, exists: &dyn Fn(&Path) -> bool, usage: &str) -> Misuse {
    let shown = escape(only.as_bytes());
    let is_source = only == "-" || only.as_bytes().contains(&b'/') || exists(Path::new(only));
    if is_source || target(only, &|_| false).is_err() {
        Misuse::new(format!("HOST is missing: to which machine should '{shown}' go?"), usage)
    } else {
        Misuse::new(format!("SRC is missing: what should go to '{shown}'? (there is no file of that name here)"), usage)
    }
}
