//! What `blast links` prints: every interface and what becomes of it, what each link carries, and how long a given size
//! takes at best.

use std::fmt::Write;
use std::time::Duration;

use super::json;
use super::numbers::{bytes, count, rate, span};
use crate::error::escape;
use crate::send::measure::{Carries, Interface, Kind, Measured, Survey, Use};

/// Bytes of Ethernet around a packet: preamble, header, checksum, gap.
const ETHERNET: f64 = 38.0;

/// Bytes of IP and TCP headers in a packet, with timestamps.
const HEADERS: f64 = 52.0;

/// As text. `size` is what one would like to move.
pub fn text(survey: &Survey, size: Option<u64>) -> String {
    let mut out = String::new();
    let measured = survey.together.is_some();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (name, carries, interface) in links(survey) {
        let nominal = interface.map_or_else(|| "?".to_owned(), |i| speed(i.speed_mbit));
        let mtu = interface.map_or(0, |i| i.mtu);
        let mut row = vec![escape(name.as_bytes()), nominal];
        match carries {
            None => row.extend([mtu_shown(mtu), addresses(interface)]),
            Some(Carries { alone, together }) => match alone {
                Some(Ok(m)) => row.extend([
                    rate(m.rate),
                    rate(*together),
                    trip(m.rtt),
                    trip(m.min_rtt),
                    mtu_shown(if mtu == 0 { m.mtu } else { mtu }),
                    count(m.resent),
                ]),
                Some(Err(why)) => row.extend([format!("failed: {}", escape(why.as_bytes()))]),
                None => row.push("not measured".into()),
            },
        }
        rows.push(row);
    }
    let head: &[&str] = match measured {
        true => &["link", "speed", "alone", "together", "RTT", "min", "MTU", "resent"],
        false => &["link", "speed", "MTU", "addresses"],
    };
    if rows.is_empty() {
        out.push_str("no interface here can be a link\n");
    } else {
        table(&mut out, head, &rows);
    }
    if let Some(together) = survey.together {
        let alone: f64 = links(survey).filter_map(|(_, carries, _)| Some(alone(carries?)?.rate)).sum();
        let part = if alone > 0.0 {
            format!(", {:.0} % of the sum of each alone", together / alone * 100.0)
        } else {
            String::new()
        };
        let _ = writeln!(out, "all together: {}{part}", rate(together));
    }
    let left_out: Vec<Vec<String>> = survey
        .interfaces
        .iter()
        .filter_map(|(i, used)| match used {
            Use::No(why) => Some(vec![escape(i.name.as_bytes()), escape(why.as_bytes())]),
            _ => None,
        })
        .collect();
    if !left_out.is_empty() {
        out.push_str("\nnot used:\n");
        table(&mut out, &[], &left_out);
    }
    if let Some(size) = size {
        out.push('\n');
        if let Some(together) = survey.together.filter(|r| *r > 0.0) {
            let _ = writeln!(out, "{} take {} at this rate", bytes(size), took(size, together));
        }
        match best(survey) {
            Some(best) => {
                let _ = writeln!(
                    out,
                    "{} take {} at best: {} over Ethernet of these speeds and MTUs",
                    bytes(size),
                    took(size, best),
                    rate(best)
                );
            }
            None => out.push_str("what is possible at best is not known: an interface does not tell its speed\n"),
        }
    }
    out
}

/// As one JSON object.
pub fn to_json(survey: &Survey, size: Option<u64>) -> String {
    let alone_json = |m: Option<&Measured>| {
        m.map(|m| {
            serde_json::json!({
                "bytes_per_s": m.rate.round(), "rtt_s": m.rtt.as_secs_f64(), "min_rtt_s": m.min_rtt.as_secs_f64(),
                "resent": m.resent, "mtu": m.mtu,
            })
        })
    };
    let carries_json = |carries: &Carries| {
        let why = carries.alone.as_ref().and_then(|alone| alone.as_ref().err());
        serde_json::json!({
            "alone": alone_json(alone(carries)), "together_bytes_per_s": carries.together.round(), "failed": why,
        })
    };
    let interface_json = |(i, used): &(Interface, Use)| {
        let (is_used, why, carries) = match used {
            Use::Possible => (true, None, None),
            Use::No(why) => (false, Some(why.clone()), None),
            Use::Link(carries) => (true, None, Some(carries_json(carries))),
        };
        let addresses: Vec<String> = i.addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
        serde_json::json!({
            "name": i.name, "index": i.index, "kind": kind(&i.kind), "up": i.up, "carrier": i.carrier, "mtu": i.mtu,
            "speed_mbit": (i.speed_mbit > 0).then_some(i.speed_mbit), "addresses": addresses,
            "used": is_used, "why_not": why, "measured": carries,
        })
    };
    let others: Vec<_> = survey
        .others
        .iter()
        .map(|(name, carries)| serde_json::json!({ "name": name, "measured": carries_json(carries) }))
        .collect();
    let seconds = |rate: Option<f64>| size.zip(rate).filter(|(_, r)| *r > 0.0).map(|(size, r)| size as f64 / r);
    json::line(&serde_json::json!({
        "interfaces": survey.interfaces.iter().map(interface_json).collect::<Vec<_>>(),
        "other_links": others,
        "together_bytes_per_s": survey.together.map(f64::round),
        "best_bytes_per_s": best(survey).map(f64::round),
        "for_bytes": size,
        "for_s": seconds(survey.together),
        "for_best_s": seconds(best(survey)),
    }))
}

/// Every link with what it carries, if that was measured, and its interface.
fn links(survey: &Survey) -> impl Iterator<Item = (&str, Option<&Carries>, Option<&Interface>)> {
    let own = survey.interfaces.iter().filter_map(|(i, used)| match used {
        Use::Possible => Some((i.name.as_str(), None, Some(i))),
        Use::Link(carries) => Some((i.name.as_str(), Some(carries), Some(i))),
        Use::No(_) => None,
    });
    own.chain(survey.others.iter().map(|(name, carries)| (name.as_str(), Some(carries), None)))
}

fn alone(carries: &Carries) -> Option<&Measured> {
    carries.alone.as_ref()?.as_ref().ok()
}

/// Bytes a second that Ethernet of these speeds can carry in TCP, if every link tells its speed. A link that did not
/// work does not count.
fn best(survey: &Survey) -> Option<f64> {
    let works = |carries: Option<&Carries>| carries.is_none_or(|c| alone(c).is_some());
    let mut sum = 0.0;
    for (_, _, interface) in links(survey).filter(|(_, carries, _)| works(*carries)) {
        let i = interface.filter(|i| i.speed_mbit > 0)?;
        let mtu = f64::from(i.mtu);
        sum += f64::from(i.speed_mbit) * 1e6 / 8.0 * (mtu - HEADERS).max(0.0) / (mtu + ETHERNET);
    }
    (sum > 0.0).then_some(sum)
}

fn took(size: u64, rate: f64) -> String {
    // a hundred years, which is enough to see that it is too long
    span(Duration::from_secs_f64((size as f64 / rate).min(3.2e9)))
}

fn speed(mbit: u32) -> String {
    match mbit {
        0 => "?".to_owned(),
        mbit if mbit % 1000 == 0 => format!("{} Gbit/s", mbit / 1000),
        mbit => format!("{mbit} Mbit/s"),
    }
}

fn mtu_shown(mtu: u32) -> String {
    if mtu == 0 { "?".to_owned() } else { mtu.to_string() }
}

fn trip(rtt: Duration) -> String {
    match rtt.as_micros() {
        us @ 0..100 => format!("{us} us"),
        us => format!("{:.2} ms", us as f64 / 1e3),
    }
}

fn addresses(interface: Option<&Interface>) -> String {
    let shown = |i: &Interface| i.addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect::<Vec<_>>();
    interface.map(|i| shown(i).join(", ")).unwrap_or_default()
}

fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Cable => "cable".to_owned(),
        Kind::Bond => "bond".to_owned(),
        Kind::Bridge => "bridge".to_owned(),
        Kind::InnerBridge => "inner bridge".to_owned(),
        Kind::PortOf(whole) => format!("port of {whole}"),
        Kind::Tunnel(kind) => format!("tunnel ({kind})"),
        Kind::Loopback => "loopback".to_owned(),
        Kind::Nowhere(kind) => kind.clone(),
    }
}

/// Columns as wide as they must be, two spaces apart.
fn table(out: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let head: Vec<String> = head.iter().map(|h| (*h).to_owned()).collect();
    let all = || std::iter::once(&head).filter(|h| !h.is_empty()).chain(rows);
    let width = |at: usize| {
        // the last cell of a row needs no room, and may be a sentence
        let cells = all().filter(|row| at + 1 < row.len()).filter_map(|row| row.get(at));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    for row in all() {
        let mut line = String::from(" ");
        for (at, cell) in row.iter().enumerate() {
            let _ = write!(line, " {cell:<width$} ", width = width(at));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, speed_mbit: u32) -> Interface {
        Interface {
            name: name.into(),
            index: 2,
            kind: Kind::Cable,
            up: true,
            carrier: true,
            mtu: 1500,
            speed_mbit,
            below: None,
            addresses: vec![("10.0.0.1".parse().unwrap(), 24)],
            carried: Default::default(),
        }
    }

    fn carries(rate: f64) -> Carries {
        let ms = Duration::from_millis;
        let alone = Measured { rate, rtt: ms(2), min_rtt: ms(1), resent: 7, mtu: 1500 };
        Carries { alone: Some(Ok(alone)), together: rate * 0.98 }
    }

    fn measured() -> Survey {
        let failed = Carries { alone: Some(Err("no answer".into())), together: 0.0 };
        Survey {
            interfaces: vec![
                (interface("lo", 0), Use::No("loopback".into())),
                (interface("eth1", 1000), Use::Link(carries(117e6))),
                (interface("eth2", 1000), Use::Link(carries(117e6))),
                (interface("eth3", 0), Use::Link(failed)),
            ],
            others: Vec::new(),
            together: Some(230e6),
        }
    }

    #[test]
    fn the_best_possible_time_counts_what_ethernet_and_tcp_take() {
        let gigabit = 125e6 * 1448.0 / 1538.0;
        assert!((best(&measured()).unwrap() - 2.0 * gigabit).abs() < 1.0, "a link that failed does not count");
        let text = text(&measured(), Some(8_000_000_000_000));
        assert!(text.contains("8.00 TB take 9 h 39 min at this rate"), "{text}");
        assert!(text.contains("8.00 TB take 9 h 26 min at best: 235 MB/s"), "{text}");
        let mut unknown = measured();
        unknown.interfaces[1].0.speed_mbit = 0;
        assert_eq!(best(&unknown), None);
    }

    #[test]
    fn every_interface_is_shown_with_what_becomes_of_it() {
        let shown = text(&measured(), None);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with("  link  speed     alone     together  RTT"), "{shown}");
        assert!(lines[1].starts_with("  eth1  1 Gbit/s  117 MB/s  115 MB/s  2.00 ms  1.00 ms  1500  7"), "{shown}");
        assert!(lines[3].ends_with("failed: no answer"), "{shown}");
        assert_eq!(lines[4], "all together: 230 MB/s, 98 % of the sum of each alone");
        assert!(shown.contains("not used:\n  lo  loopback\n"), "{shown}");
        let unmeasured = Survey { interfaces: vec![(interface("eth1", 1000), Use::Possible)], ..Survey::default() };
        assert!(text(&unmeasured, None).contains("  eth1  1 Gbit/s  1500  10.0.0.1/24\n"));
        assert_eq!(text(&Survey::default(), None), "no interface here can be a link\n");
    }

    #[test]
    fn as_json_it_says_the_same() {
        let json: serde_json::Value = serde_json::from_str(&to_json(&measured(), Some(1_000_000_000))).unwrap();
        assert_eq!(json["interfaces"][1]["measured"]["alone"]["bytes_per_s"], 117e6);
        assert_eq!(json["interfaces"][0]["why_not"], "loopback");
        assert_eq!(json["interfaces"][3]["measured"]["failed"], "no answer");
        assert_eq!(
            (json["together_bytes_per_s"].as_f64(), json["for_bytes"].as_u64()),
            (Some(230e6), Some(1_000_000_000))
        );
        assert!((json["for_s"].as_f64().unwrap() - 4.35).abs() < 0.01);
    }
}
