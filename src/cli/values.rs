//! The values of options: one function each, from what was typed to what is meant.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::ids::InstanceCode;
use crate::limits;
use crate::options::{Compress, LinkSpec};

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

pub fn link(text: &str) -> Result<LinkSpec, String> {
    let inner = unbracketed(text);
    if let Ok(address) = inner.parse::<IpAddr>() {
        return Ok(LinkSpec::Address(address));
    }
    if inner.contains('%') && v6(inner).is_some() {
        return Err("name the interface instead of an address with a zone".to_owned());
    }
    match interface_name(text) {
        Some(name) => Ok(LinkSpec::Interface(name.to_owned())),
        None => Err("neither an interface's name nor an address".to_owned()),
    }
}

pub fn streams(text: &str) -> Result<u16, String> {
    let most = limits::LINKS_MAX as u16;
    text.parse().ok().filter(|n| (1..=most).contains(n)).ok_or_else(|| format!("not a number from 1 to {most}"))
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

pub fn listen(text: &str) -> Result<IpAddr, String> {
    unbracketed(text).parse().map_err(|_| "not an IP address (the port goes into --port)".to_owned())
}

pub fn code(text: &str) -> Result<InstanceCode, String> {
    text.parse().map_err(|_| "not a code like 7KQ-4M2, which 'blast recv' shows".to_owned())
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

/// Bytes with a suffix, as whole chunks: K, M and G are 1024s as in GNU tools, KB, MB and GB are 1000s.
pub fn window(text: &str) -> Result<u32, String> {
    let wrong = || {
        let most = (limits::WINDOW_MAX as usize * limits::CHUNK_LEN) >> 30;
        format!("not a size from 1M to {most}G: type bytes, or 64M, 1G")
    };
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(unit_at);
    let bytes_each: u64 = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(bytes_each)).ok_or_else(wrong)?;
    let chunks = bytes / limits::CHUNK_LEN as u64;
    u32::try_from(chunks).ok().filter(|c| (1..=limits::WINDOW_MAX).contains(c)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
