//! The values of options: one function each, from what was typed to what is meant.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU64;
use std::time::Duration;

use crate::ids::InstanceCode;
use crate::limits;
use crate::options::{Allow, Bind, Compress, From, IdRule, LinkSpec, MapFrom, MapTo};

/// An IPv6 address, with a zone (`fe80::1%eth0`) or without.
pub fn v6(text: &str) -> Option<&str> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    let zone_is_name = zone.is_none_or(|zone| interface_name(zone).is_some());
    (address.parse::<Ipv6Addr>().is_ok() && zone_is_name).then_some(text)
}

/// An interface's name as Linux allows it: at most 15 bytes, no slash, no space, no colon.
pub fn interface_name(text: &str) -> Option<&str> {
    let fits = (1..=15).contains(&text.len()) && text != "." && text != "..";
    let clean = !text.chars().any(|c| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    (fits && clean).then_some(text)
}

pub fn unbracketed(text: &str) -> &str {
    text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text)
}

/// `IFACE`, `ADDRESS`, `ADDRESS%IFACE`, `IFACE=REMOTE`, or `!IFACE`.
pub fn link(text: &str) -> Result<LinkSpec, String> {
    let wrong = || "neither an interface's name nor an address".to_owned();
    let name = |name: &str| interface_name(name).map(str::to_owned).ok_or_else(wrong);
    if let Some(left_out) = text.strip_prefix('!') {
        return Ok(LinkSpec::Not(name(left_out)?));
    }
    if let Some((interface, remote)) = text.split_once('=') {
        let (remote, zone) = zoned(unbracketed(remote)).ok_or("not an address after the =")?;
        if zone.is_some_and(|zone| zone != interface) {
            return Err("the address is on another interface than the one before the =".to_owned());
        }
        return Ok(LinkSpec::Pair { interface: name(interface)?, remote });
    }
    match zoned(unbracketed(text)) {
        Some((address, None)) => Ok(LinkSpec::Address(address)),
        Some((remote, Some(zone))) => Ok(LinkSpec::Pair { interface: zone.to_owned(), remote }),
        None if text.contains('%') => Err(wrong()),
        None => Ok(LinkSpec::Interface(name(text)?)),
    }
}

/// An address, with the zone of an IPv6 one.
fn zoned(text: &str) -> Option<(IpAddr, Option<&str>)> {
    match text.split_once('%') {
        Some((address, zone)) => {
            let address: Ipv6Addr = v6(text).and(address.parse().ok())?;
            Some((address.into(), Some(zone)))
        }
        None => Some((text.parse().ok()?, None)),
    }
}

/// `--streams`; nothing for `auto`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Streams(pub Option<u16>);

pub fn streams(text: &str) -> Result<Streams, String> {
    if text == "auto" {
        return Ok(Streams(None));
    }
    let most = limits::LINKS_MAX as u16;
    let number = text.parse().ok().filter(|n| (1..=most).contains(n));
    number.map(|n| Streams(Some(n))).ok_or_else(|| format!("neither auto nor a number from 1 to {most}"))
}

pub fn compress(text: &str) -> Result<Compress, String> {
    match text {
        "auto" => return Ok(Compress::Auto),
        "off" | "0" => return Ok(Compress::Off),
        _ => {}
    }
    let level = text.parse().ok().filter(|n| (-7..=22).contains(n));
    level.map(Compress::Level).ok_or_else(|| "type auto, off, or a level from -7 to 22".to_owned())
}

/// `ADDRESS`, `ADDRESS%IFACE` or `IFACE`, and `:PORT` after an IPv4 address or a bracket.
pub fn bind(text: &str) -> Result<(Bind, Option<u16>), String> {
    let wrong = || "neither an IP address nor an interface's name".to_owned();
    let (place, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let (place, rest) = inner.split_once(']').ok_or_else(wrong)?;
            (place, (!rest.is_empty()).then_some(rest))
        }
        None => match text.split_once(':') {
            // one colon is a port's, several are an IPv6 address's
            Some((place, rest)) if !rest.contains(':') => (place, Some(&text[text.len() - rest.len() - 1..])),
            _ => (text, None),
        },
    };
    let port = match port.map(|rest| rest.strip_prefix(':').and_then(|digits| digits.parse().ok())) {
        Some(None) => return Err("only :PORT can follow the address".to_owned()),
        Some(port) => port,
        None => None,
    };
    match zoned(place) {
        Some((ip, None)) if matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()) => {
            Err(format!("a link-local address needs its interface: {ip}%eth0"))
        }
        Some((ip, zone)) => Ok((Bind::Address(ip, zone.map(str::to_owned)), port)),
        None => Ok((Bind::Interface(interface_name(place).ok_or_else(wrong)?.to_owned()), port)),
    }
}

pub fn code(text: &str) -> Result<InstanceCode, String> {
    text.parse().map_err(|_| "not a code like 7KQ-4M2, which 'blast recv' shows".to_owned())
}

/// `any`, an address, or an address and how many bits of it count.
pub fn from(text: &str) -> Result<From, String> {
    if text == "any" {
        return Ok(From::Any);
    }
    let wrong = || "neither any nor a network such as 10.1.0.0/16 or fd00::/8".to_owned();
    let (ip, prefix) = match text.split_once('/') {
        Some((ip, prefix)) => (ip, Some(prefix)),
        None => (text, None),
    };
    let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
    let width = if ip.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().map_err(|_| wrong())?,
        Some(_) => return Err(wrong()),
        None => width,
    };
    if prefix > width { Err(wrong()) } else { Ok(From::Network(ip, prefix)) }
}

/// Words with commas between them.
pub fn allow(text: &str) -> Result<Allow, String> {
    let mut allow = Allow::default();
    for word in text.split(',') {
        match word {
            "shared" => allow.shared = true,
            "suid" => allow.suid = true,
            "devices" => allow.devices = true,
            "caps" => allow.caps = true,
            "trusted" => allow.trusted = true,
            "labels" => allow.labels = true,
            _ => return Err("the words are suid, devices, caps, trusted, labels, shared".to_owned()),
        }
    }
    Ok(allow)
}

/// Rules of one `--owner-map` or `--group-map`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdRules(pub Vec<IdRule>);

/// `FROM:TO`, with commas between several. FROM is a number, `LOW-HIGH`, a name or `*`, TO a number or a name.
pub fn id_rules(text: &str) -> Result<IdRules, String> {
    text.split(',').map(id_rule).collect::<Option<_>>().map(IdRules).ok_or_else(|| {
        "type FROM:TO[,FROM:TO...]: FROM a number, LOW-HIGH, a name or *, TO a number or a name".to_owned()
    })
}

fn id_rule(text: &str) -> Option<IdRule> {
    // The highest number is no id.
    let id = |text: &str| text.parse().ok().filter(|id| *id != u32::MAX);
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let is_range = |text: &str| text.split_once('-').is_some_and(|(low, high)| is_number(low) && is_number(high));
    let (from, to) = text.split_once(':').filter(|(from, to)| !from.is_empty() && !to.is_empty())?;
    let from = match from {
        "*" => MapFrom::Any,
        from if is_number(from) => id(from).map(|id| MapFrom::Ids(id..=id))?,
        from if is_range(from) => {
            let (low, high) = from.split_once('-')?;
            MapFrom::Ids(id(low)?..=id(high)?)
        }
        from => MapFrom::Name(from.as_bytes().to_vec()),
    };
    let to = match to {
        to if to.contains(':') || to.contains('*') => return None,
        to if is_number(to) => MapTo::Id(id(to)?),
        to => MapTo::Name(to.as_bytes().to_vec()),
    };
    Some(IdRule { from, to })
}

/// `90`, `90s`, `10m`, `2h`, `1d`: at least a second.
pub fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let seconds_each = match unit {
        "" | "s" | "sec" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("not a time: type seconds, or 90s, 10m, 2h".to_owned()),
    };
    // A hundred years at most, so that adding it to a clock never overflows.
    let seconds = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(seconds_each));
    match seconds.filter(|s| (1..=3_155_760_000).contains(s)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("not a time from one second on: type seconds, or 90s, 10m, 2h".to_owned()),
    }
}

/// Bytes with a suffix, as whole chunks.
pub fn window(text: &str) -> Result<u32, String> {
    let wrong = || {
        let most = (limits::WINDOW_MAX as usize * limits::CHUNK_LEN) >> 30;
        format!("not a size from 1M to {most}G: type bytes, or 64M, 1G")
    };
    let chunks = bytes(text).ok_or_else(wrong)? / limits::CHUNK_LEN as u64;
    u32::try_from(chunks).ok().filter(|c| (1..=limits::WINDOW_MAX).contains(c)).ok_or_else(wrong)
}

/// Bytes with a suffix, at least one.
pub fn size(text: &str) -> Result<u64, String> {
    bytes(text).filter(|n| *n > 0).ok_or_else(|| "not a size: type bytes, or 500G, 8T, 8TB".to_owned())
}

/// K, M, G and T are 1024s as in GNU tools, KB, MB, GB and TB are 1000s.
fn bytes(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let bytes_each: u64 = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1 << 40,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(bytes_each)
}

/// One `--bwlimit`: for a link or the whole; no rate is no limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BwlimitTyped {
    pub link: Option<LinkSpec>,
    pub rate: Option<NonZeroU64>,
}

/// `RATE`, or `IFACE=RATE`. A name may have a `=` in it, a rate has none.
pub fn bwlimit(text: &str) -> Result<BwlimitTyped, String> {
    let (name, typed) = text.rsplit_once('=').map_or((None, text), |(name, rate)| (Some(name), rate));
    let link = name.map(link).transpose()?;
    if matches!(link, Some(LinkSpec::Not(_))) {
        return Err("a link that is left out needs no limit".to_owned());
    }
    Ok(BwlimitTyped { link, rate: rate(typed)? })
}

/// Bytes a second as rsync's `--bwlimit` has them: a bare number is KiB, K, M and G are 1024s, KB, MB and GB are 1000s,
/// fractions are allowed, 0 is no limit. And kbit, mbit and gbit, 1000s of bits, as tc has them.
fn rate(text: &str) -> Result<Option<NonZeroU64>, String> {
    let wrong = || "not a rate: type KiB a second, or 1.5M, 2MB, 80mbit, or 0 for no limit".to_owned();
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let bytes_each = match unit.to_ascii_lowercase().as_str() {
        "b" => 1.0,
        "" | "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kbit" => 1e3 / 8.0,
        "mbit" => 1e6 / 8.0,
        "gbit" => 1e9 / 8.0,
        _ => return Err(wrong()),
    };
    let bytes = number.parse::<f64>().map_err(|_| wrong())? * bytes_each;
    if bytes == 0.0 {
        return Ok(None);
    }
    // Beyond it, a rate is no limit that anybody means.
    if bytes.round() < limits::BWLIMIT_MIN as f64 || bytes > 1e15 {
        return Err("not a rate from 1K on (0 is no limit)".to_owned());
    }
    Ok(NonZeroU64::new(bytes.round() as u64))
}

/// The name of a congestion control, as Linux allows it: at most 15 bytes.
pub fn congestion(text: &str) -> Result<String, String> {
    let fits = (1..=15).contains(&text.len());
    let clean = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if fits && clean { Ok(text.to_owned()) } else { Err("not the name of a congestion control".to_owned()) }
}

/// A differentiated services code point by number or by name (RFC 2474, 2597, 3246, 8622).
pub fn dscp(text: &str) -> Result<u8, String> {
    let name = text.to_ascii_lowercase();
    let digits = |prefix: &str| name.strip_prefix(prefix).map(str::as_bytes);
    let value = match (name.as_str(), digits("cs"), digits("af")) {
        ("ef", ..) => Some(46),
        ("le", ..) => Some(1),
        (_, Some([class @ b'0'..=b'7']), _) => Some((class - b'0') * 8),
        (_, _, Some([class @ b'1'..=b'4', drop @ b'1'..=b'3'])) => Some((class - b'0') * 8 + (drop - b'0') * 2),
        _ => name.parse().ok().filter(|value| (0..=63).contains(value) && !name.starts_with('+')),
    };
    value.ok_or_else(|| "type a number from 0 to 63, or cs0 to cs7, af11 to af43, ef, le".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_an_address_and_how_many_bits_of_it_count() {
        let network = |ip: &str, prefix| Ok(From::Network(ip.parse().expect("an address"), prefix));
        assert_eq!(from("any"), Ok(From::Any));
        assert_eq!(from("10.1.0.0/16"), network("10.1.0.0", 16));
        assert_eq!(from("10.1.2.3"), network("10.1.2.3", 32));
        assert_eq!(from("0.0.0.0/0"), network("0.0.0.0", 0));
        assert_eq!(from("fd00::/8"), network("fd00::", 8));
        assert_eq!(from("::1"), network("::1", 128));
        for wrong in [
            "",
            "all",
            "10.1/16",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "::/129",
            "h/8",
            "1.2.3.4/8/8",
        ] {
            assert!(from(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn links_and_places_to_listen() {
        let pair = |interface: &str, remote: &str| {
            Ok(LinkSpec::Pair { interface: interface.into(), remote: remote.parse().expect("an address") })
        };
        for (text, meant) in [
            ("eth1", Ok(LinkSpec::Interface("eth1".into()))),
            ("!eth1", Ok(LinkSpec::Not("eth1".into()))),
            ("10.0.0.1", Ok(LinkSpec::Address([10, 0, 0, 1].into()))),
            ("eth1=10.0.0.1", pair("eth1", "10.0.0.1")),
            ("eth1=[fd00::1]", pair("eth1", "fd00::1")),
            ("eth1=fe80::1%eth1", pair("eth1", "fe80::1")),
            ("fe80::1%eth0", pair("eth0", "fe80::1")),
            ("[fe80::1%eth0]", pair("eth0", "fe80::1")),
            ("fe80::1%2", pair("2", "fe80::1")),
        ] {
            assert_eq!(link(text), meant, "{text}");
        }
        for text in ["", "!", "!a/b", "a/b", "=10.0.0.1", "eth1=", "eth1=host", "eth1=fe80::1%eth2", "10.0.0.1%eth0"] {
            assert!(link(text).is_err(), "{text}: {:?}", link(text));
        }
        let at = |ip: &str, zone: Option<&str>, port| {
            Ok((Bind::Address(ip.parse().expect("an address"), zone.map(str::to_owned)), port))
        };
        for (text, meant) in [
            ("10.0.0.2", at("10.0.0.2", None, None)),
            ("10.0.0.2:7000", at("10.0.0.2", None, Some(7000))),
            ("fd00::1", at("fd00::1", None, None)),
            ("[fd00::1]:7000", at("fd00::1", None, Some(7000))),
            ("fe80::1%eth0", at("fe80::1", Some("eth0"), None)),
            ("[fe80::1%2]:7000", at("fe80::1", Some("2"), Some(7000))),
            ("eth0", Ok((Bind::Interface("eth0".into()), None))),
            ("eth0:7000", Ok((Bind::Interface("eth0".into()), Some(7000)))),
        ] {
            assert_eq!(bind(text), meant, "{text}");
        }
        for text in ["", "a/b", "fe80::1", "10.0.0.2:x", "[fd00::1", "[fd00::1]7", "10.0.0.2:70000", "[fd00::1]:"] {
            assert!(bind(text).is_err(), "{text}: {:?}", bind(text));
        }
    }

    #[test]
    fn times_and_sizes() {
        for (text, seconds) in [("1", 1), ("90", 90), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86_400)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "s", "1.5", "-3", "1w", "99999999999999999999", "213503982334602d"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for (text, chunks) in [
            ("1048576", 1),
            ("1M", 1),
            ("128m", 128),
            ("128MiB", 128),
            ("1G", 1024),
            ("64MB", 61),
            ("1GB", 953),
            ("1024K", 1),
        ] {
            assert_eq!(window(text), Ok(chunks), "{text}");
        }
        for text in ["", "M", "0", "1048575", "1025M", "2G", "1.5G", "1T", "18446744073709551616"] {
            assert!(window(text).is_err(), "{text}");
        }
        for (text, n) in [("1", 1), ("8T", 8 << 40), ("8TB", 8_000_000_000_000), ("500g", 500 << 30)] {
            assert_eq!(size(text), Ok(n), "{text}");
        }
        for text in ["", "0", "8P", "1.5T", "99999999T"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_are_what_rsync_and_tc_call_them() {
        for (text, bytes) in [
            ("1", 1 << 10),
            ("100", 100 << 10),
            ("100k", 100 << 10),
            ("1.5M", 3 << 19),
            ("2MiB", 2 << 20),
            (".5g", 1 << 29),
            ("1G", 1 << 30),
            ("2KB", 2000),
            ("1.25MB", 1_250_000),
            ("10GB", 10_000_000_000),
            ("2000B", 2000),
            ("100kbit", 12_500),
            ("80Mbit", 10_000_000),
            ("2.5gbit", 312_500_000),
        ] {
            assert_eq!(rate(text), Ok(NonZeroU64::new(bytes)), "{text}");
        }
        for text in ["0", "0.0", "0M", "0kbit"] {
            assert_eq!(rate(text), Ok(None), "{text}");
        }
        let wrong =
            ["", "M", ".", "1.2.3", "-1", "+1", "1e9", "inf", "nan", "1T ", "1x", "1 M", "1023B", "8bit", "1kbit"];
        for text in wrong.into_iter().chain(["999999999999999999999999G"]) {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_limit_is_for_the_whole_or_for_one_link() {
        let rate = NonZeroU64::new(1 << 20);
        for (text, link) in [
            ("1M", None),
            ("eth1=1M", Some(LinkSpec::Interface("eth1".into()))),
            ("eth1=10.0.0.1=1M", Some(link("eth1=10.0.0.1").unwrap())),
            ("10.0.0.1=1M", Some(LinkSpec::Address([10, 0, 0, 1].into()))),
            ("[fd00::1]=1M", Some(LinkSpec::Address("fd00::1".parse().unwrap()))),
        ] {
            assert_eq!(bwlimit(text), Ok(BwlimitTyped { link, rate }), "{text}");
        }
        for text in ["=1M", "eth1=", "eth1", "1M=eth1", "!eth1=1M"] {
            assert!(bwlimit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn code_points_have_numbers_and_names() {
        for (text, value) in [
            ("0", 0),
            ("46", 46),
            ("63", 63),
            ("ef", 46),
            ("EF", 46),
            ("le", 1),
            ("cs0", 0),
            ("CS7", 56),
            ("af11", 10),
            ("af21", 18),
            ("af43", 38),
        ] {
            assert_eq!(dscp(text), Ok(value), "{text}");
        }
        for text in ["", "64", "-1", "+1", "cs8", "cs", "af14", "af51", "af1", "be", "0x2e", "256"] {
            assert!(dscp(text).is_err(), "{text}");
        }
        assert_eq!(congestion("bbr"), Ok("bbr".into()));
        for text in ["", "a b", "../x", "0123456789abcdef", "b\u{e9}"] {
            assert!(congestion(text).is_err(), "{text}");
        }
    }
}
