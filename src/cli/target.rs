//! `HOST[:PORT]` or `auto`, the last operand of `send`.

use std::ffi::OsStr;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::misuse::Misuse;
use super::values::v6;
use crate::error::escape;
use crate::limits;

/// The word in place of a host that asks to find the receiver. A machine of that name is `auto.` or an address.
const AUTO: &str = "auto";

/// Where to connect: a name or an address without brackets, and a port.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// Nowhere in particular: find it.
    pub auto: bool,
    /// Without brackets; an IPv6 address may have a zone.
    pub host: String,
    /// Where it listens.
    pub port: u16,
}

impl Target {
    /// For what needs no machine.
    pub fn nowhere() -> Target {
        Target { auto: false, host: String::new(), port: limits::PORT }
    }
}

/// Read `HOST`, `HOST:PORT`, `[V6]`, `[V6]:PORT` or a bare IPv6 address. After a colon digits are a port and anything
/// else is a path.
pub fn target(operand: &OsStr, exists: &dyn Fn(&Path) -> bool) -> Result<Target, Misuse> {
    const USAGE: &str = "blast send SRC... HOST[:PORT]";
    let shown = escape(operand.as_bytes());
    let no_host = |why: &str| Misuse::new(format!("HOST is missing: '{shown}' {why}"), USAGE);
    if operand == "-" {
        return Err(no_host("is standard input, and comes first"));
    }
    let Some(text) = operand.to_str() else {
        return Err(no_host("is no machine's name (it is not text)"));
    };
    if let Some(address) = v6(text) {
        return Ok(Target { auto: false, host: address.to_owned(), port: limits::PORT });
    }
    let (host, rest) = if let Some(inner) = text.strip_prefix('[') {
        let closed = inner.split_once(']').and_then(|(host, rest)| Some((v6(host)?, rest)));
        let Some((host, rest)) = closed else {
            return Err(Misuse::new(
                format!("'{shown}' is no IPv6 address in brackets"),
                "type it like [fd00::1] or [fd00::1]:7411",
            ));
        };
        match (rest, rest.strip_prefix(':')) {
            ("", _) => (host, None),
            (_, Some(rest)) => (host, Some(rest)),
            _ => return Err(Misuse::new(format!("'{shown}': only :PORT can follow the bracket"), USAGE)),
        }
    } else {
        match text.split_once(':') {
            Some((host, rest)) => (host, Some(rest)),
            None => (text, None),
        }
    };
    if host.contains('/') || host == "." || host == ".." {
        return Err(no_host("is a path"));
    }
    let (user, name) = match host.rsplit_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, host),
    };
    if name.is_empty() {
        return Err(no_host("names none"));
    }
    if name.starts_with('-') || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(no_host("is no machine's name"));
    }
    let path = rest.filter(|rest| rest.is_empty() || !rest.bytes().all(|b| b.is_ascii_digit()));
    if user.is_some() || path.is_some() {
        return Err(wants_ssh(&shown, user, name, path));
    }
    let port = match rest {
        None => limits::PORT,
        Some(digits) => match digits.parse::<u16>() {
            Ok(0) | Err(_) => {
                return Err(Misuse::new(
                    format!("'{digits}' is no port to send to"),
                    "a port is a number from 1 to 65535, the one that 'blast recv' printed",
                ));
            }
            Ok(port) => port,
        },
    };
    if host == AUTO && rest.is_some() {
        return Err(Misuse::new(
            format!("'{shown}': auto finds the receiver with its port"),
            format!("type auto alone; for a machine that is named auto type auto.:{port}"),
        ));
    }
    if host == AUTO && exists(Path::new(operand)) {
        return Err(Misuse::new(
            "HOST is missing: 'auto' is a file or directory here",
            "to send it type ./auto and HOST after it; to find a receiver run this in another directory",
        ));
    }
    if rest.is_none() && host.parse::<IpAddr>().is_err() && exists(Path::new(operand)) {
        return Err(Misuse::new(
            format!("HOST is missing: '{shown}' is a file or directory here"),
            format!("if a machine has that name, type {shown}:{} to mean it", limits::PORT),
        ));
    }
    Ok(Target { auto: host == AUTO, host: name.to_owned(), port })
}

/// `[USER@]HOST:/DEST` asks for a receiver started over ssh. Say what to type instead.
fn wants_ssh(shown: &str, user: Option<&str>, name: &str, path: Option<&str>) -> Misuse {
    let name = escape(name.as_bytes());
    let name = if name.contains(':') { format!("[{name}]") } else { name };
    match (path, user) {
        (Some(path), _) => {
            let dest = if path.is_empty() { "DEST".to_owned() } else { escape(path.as_bytes()) };
            Misuse::new(
                format!("'{shown}': this version cannot start the receiver over ssh"),
                format!("on {name} type 'blast recv {dest}', then here 'blast send SRC... {name}'"),
            )
        }
        (None, _) => Misuse::new(
            format!("'{shown}': a user's name has no meaning without ssh, which this version cannot use"),
            format!("start 'blast recv DEST' on {name}, then type {name} alone"),
        ),
    }
}
