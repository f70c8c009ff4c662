//! Numbers as people read them.

use std::time::Duration;

/// 1,234,567
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// 1.23 GB: powers of a thousand, three figures.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = 0;
    // 999.5 would be shown as 1000.
    while value >= 999.5 {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// 1.23 GB (1,234,567,890 bytes)
pub fn bytes_exact(n: u64) -> String {
    match n {
        1 => "1 byte".to_owned(),
        n if n < 1000 => format!("{n} bytes"),
        n => format!("{} ({} bytes)", bytes(n), count(n)),
    }
}

/// 118 MB/s
pub fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", bytes(bytes_per_second.max(0.0) as u64))
}

/// 4.2 s, 3 min 5 s, 2 h 14 min, 3 d 4 h; rounded, so that a rate beside it is the rate of it
pub fn span(time: Duration) -> String {
    let tenths = (time.as_millis() + 50) / 100;
    let s = time.saturating_add(Duration::from_millis(500)).as_secs();
    match s {
        _ if tenths < 100 && time.subsec_nanos() > 0 => format!("{}.{} s", tenths / 10, tenths % 10),
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

/// How long a link was away: a span, which may be shorter than is worth a figure.
pub fn absence(time: Duration) -> String {
    if time < Duration::from_millis(100) { "less than 0.1 s".to_owned() } else { span(time) }
}

/// 1 entry, 2 entries
pub fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// 1,234 entries
pub fn entries(n: u64) -> String {
    plural(n, "entry", "entries")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (n, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (9_994, "9.99 kB"),
            (9_996, "10.0 kB"),
            (99_960, "100 kB"),
            (999_400, "999 kB"),
            (999_600, "1.00 MB"),
            (1_234_567_890, "1.23 GB"),
            (8_589_934_592, "8.59 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(n), text, "{n}");
        }
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(bytes_exact(1), "1 byte");
        assert_eq!(bytes_exact(8_589_934_592), "8.59 GB (8,589,934,592 bytes)");
        for (ms, text) in [
            (0, "0 s"),
            (9_000, "9 s"),
            (4_210, "4.2 s"),
            (9_949, "9.9 s"),
            (9_960, "10 s"),
            (14_980, "15 s"),
            (59_400, "59 s"),
            (59_999, "1 min 0 s"),
            (65_000, "1 min 5 s"),
            (3_600_000, "1 h 0 min"),
            (273_600_000, "3 d 4 h"),
        ] {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
    }
}
