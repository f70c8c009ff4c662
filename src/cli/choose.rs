//! Which of the receivers that were found for `auto` is meant: a person is asked, or has said so before with `--code`.

use std::ffi::OsString;
use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;

use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketType, socket};

use super::events::typed;
use crate::error::{Error, escape};
use crate::ids::InstanceCode;
use crate::report::Found;

/// Addresses of one receiver that are shown.
const ADDRESSES_SHOWN: usize = 4;

/// Choose. `confirmed` is the code that was typed, which `found` has already been searched for; `args` the whole
/// command line; `ask` puts a question to a person, if there is one.
pub fn choose(
    found: &[Found],
    confirmed: Option<InstanceCode>,
    args: &[OsString],
    ask: impl FnOnce(&str) -> Option<String>,
) -> Result<usize, Error> {
    let one = match found {
        [one] => one,
        several => return Err(Error::Several(list(several, confirmed, args))),
    };
    if confirmed.is_some() {
        return Ok(0);
    }
    let who = format!("{} at {}, code {}", name(one), shown(&one.addrs[0]), one.code);
    match ask(&format!("found {who}; is that what its 'blast recv' shows? [y/N] ")) {
        Some(answer) if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) => Ok(0),
        Some(_) => Err(Error::Refused(format!("{} was not confirmed", name(one)))),
        None => Err(Error::Refused(format!(
            "nobody confirmed the receiver that auto found, and there is no terminal to ask on: {who}\nif that is what its \
             'blast recv' shows, type this, or its address in place of auto:\n    {}",
            again(args, one.code)
        ))),
    }
}

fn list(found: &[Found], confirmed: Option<InstanceCode>, args: &[OsString]) -> String {
    let what =
        if confirmed.is_some() { "have that code; name one by its address" } else { "answered; type for the one" };
    let mut said = format!("{} receivers {what}", found.len());
    for one in found {
        let addrs: Vec<String> = one.addrs.iter().take(ADDRESSES_SHOWN).map(shown).collect();
        let _ = write!(said, "\n{}, code {}, at {}", name(one), one.code, addrs.join(", "));
        if confirmed.is_none() {
            let _ = write!(said, "\n    {}", again(args, one.code));
        }
    }
    said
}

fn name(found: &Found) -> String {
    if found.host.is_empty() { "a host without a name".to_owned() } else { escape(&found.host) }
}

/// An address as it can be typed here: the zone is the interface's name, not its number.
fn shown(addr: &SocketAddr) -> String {
    let numbered = typed(addr);
    let SocketAddr::V6(v6) = addr else { return numbered };
    let named = socket(AddressFamily::INET, SocketType::DGRAM, None).and_then(|s| index_to_name(s, v6.scope_id()));
    match named {
        Ok(name) => numbered.replace(&format!("%{}", v6.scope_id()), &format!("%{}", escape(name.as_bytes()))),
        Err(_) => numbered,
    }
}

/// The same command line with that code.
fn again(args: &[OsString], code: InstanceCode) -> String {
    let rest: String = args.iter().skip(2).map(|arg| format!(" {}", quoted(arg))).collect();
    format!("blast send --code {code}{rest}")
}

/// An argument as a shell takes it.
fn quoted(arg: &OsString) -> String {
    let bytes = arg.as_bytes();
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_./:@%+=,".contains(b);
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    // what has to be escaped for the screen is escaped as the shells' $'' has it
    match escape(bytes) {
        same if same.as_bytes() == bytes => format!("'{}'", same.replace('\'', r"'\''")),
        escaped => format!("$'{}'", escaped.replace('\'', r"\'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ExitCode;
    use crate::ids::InstanceId;

    fn found(id: u8, host: &str, addrs: &[&str]) -> Found {
        let addrs = addrs.iter().map(|a| a.parse().unwrap()).collect();
        Found { host: host.into(), addrs, code: InstanceId([id; 16]).code() }
    }

    fn args(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    #[test]
    fn one_receiver_is_taken_only_when_a_person_says_yes_or_has_said_its_code() {
        let one = [found(1, "b\x1b", &["10.0.0.2:7411", "10.0.1.2:7411"])];
        let code = one[0].code;
        let line = args(&["/usr/bin/blast", "send", "data", "auto"]);
        assert_eq!(choose(&one, Some(code), &line, |_| panic!("nobody is asked")).unwrap(), 0);
        for (answer, is_yes) in
            [("y\n", true), ("Y", true), ("yes\n", true), ("", false), ("\n", false), ("n\n", false), ("yo", false)]
        {
            let asked = choose(&one, None, &line, |question| {
                let wanted =
                    format!("found b\\x1b at 10.0.0.2, code {code}; is that what its 'blast recv' shows? [y/N] ");
                assert_eq!(question, wanted);
                Some(answer.to_owned())
            });
            assert_eq!(
                asked.map_err(|e| e.exit_code()),
                if is_yes { Ok(0) } else { Err(ExitCode::Refused) },
                "{answer}"
            );
        }
        let refused = choose(&one, None, &line, |_| None).unwrap_err();
        assert_eq!(refused.exit_code(), ExitCode::Refused);
        assert!(refused.to_string().ends_with(&format!("\n    blast send --code {code} data auto")), "{refused}");
    }

    #[test]
    fn several_are_listed_each_with_the_line_to_type() {
        let two = [found(1, "b", &["10.0.0.2:7411"]), found(2, "", &["10.0.0.3:99", "[fd00::3]:99"])];
        let line = args(&["blast", "send", "--timeout", "2h", "it's a dir", "a\nb", "auto"]);
        let several = choose(&two, None, &line, |_| panic!("nobody is asked")).unwrap_err();
        let (first, second) = (two[0].code, two[1].code);
        let rest = r"--timeout 2h 'it'\''s a dir' $'a\nb' auto";
        assert_eq!(
            several.to_string(),
            format!(
                "2 receivers answered; type for the one\nb, code {first}, at 10.0.0.2\n    blast send --code {first} {rest}\n\
                 a host without a name, code {second}, at 10.0.0.3:99, [fd00::3]:99\n    blast send --code {second} {rest}"
            )
        );
        assert_eq!((several.exit_code(), several.hint()), (ExitCode::Usage, None));
        let same = choose(&two, Some(first), &line, |_| None).unwrap_err();
        assert!(!same.to_string().contains("blast send"), "a code that two have tells nothing: {same}");
    }
}
