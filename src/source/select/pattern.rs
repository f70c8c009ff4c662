//! Patterns of names, as rsync's users know them, turned into regular expressions over bytes: names are bytes, and a
//! pattern may hold any of them.
//!
//! | in a pattern | means |
//! |---|---|
//! | no slash but at its end, no `**` | it is compared with an entry's own name, at any depth |
//! | a slash elsewhere, or `**` | it is compared with the end of the path, from any directory's beginning on |
//! | a slash at its beginning | it is compared with the whole path |
//! | a slash at its end | only directories match |
//! | `*`, `?` | any bytes, one byte; never a slash |
//! | `**` | any bytes, slashes too; `/**/` is also a single slash |
//! | `/***` at its end | the directory and all that is in it |
//! | `[a-z]`, `[!a]`, `[^a]`, `[[:digit:]]` | one byte of a set, or one that is not in it; never a slash |
//! | `\` | the byte after it, whatever it is |
//!
//! What can never match is refused: who leaves something out must not find it at the other end because of a slip.

use std::fmt::Write;

/// One pattern, understood.
pub(super) struct Pattern {
    /// Over the entry's own name, or over its path.
    pub regex: String,
    pub over_path: bool,
    pub dir_only: bool,
}

impl Pattern {
    /// Understand `text`, or say why it cannot be meant.
    pub fn parse(text: &[u8]) -> Result<Pattern, String> {
        let (text, inside) = match text.strip_suffix(b"/***") {
            Some(stem) if !is_escaped(stem) => (stem, true),
            _ => (text, false),
        };
        let (text, slash) = match text.strip_suffix(b"/") {
            Some(stem) if !is_escaped(stem) => (stem, true),
            _ => (text, false),
        };
        let (text, anchored) = text.strip_prefix(b"/").map_or((text, false), |rest| (rest, true));
        if text.is_empty() {
            return Err("it names nothing".into());
        }
        for component in text.split(|b| *b == b'/') {
            match component {
                b"" => return Err("two slashes in a row are in no path".into()),
                b"." | b".." => {
                    return Err("no path has a component '.' or '..': begin with / for what is being sent".into());
                }
                _ => {}
            }
        }
        let over_path = anchored || inside || text.contains(&b'/') || text.windows(2).any(|two| two == b"**");
        let mut regex = String::from(if anchored || !over_path { "^" } else { "(?:^|/)" });
        translate(text, &mut regex)?;
        regex.push_str(if inside { "(?:/.*)?$" } else { "$" });
        Ok(Pattern { regex, over_path, dir_only: slash && !inside })
    }
}

/// Whether what follows `text` has a backslash before it that is none itself.
fn is_escaped(text: &[u8]) -> bool {
    text.iter().rev().take_while(|b| **b == b'\\').count() % 2 == 1
}

fn translate(text: &[u8], regex: &mut String) -> Result<(), String> {
    let mut rest = text;
    let mut at_start = true;
    while let Some((first, after)) = rest.split_first() {
        let stars = rest.iter().take_while(|b| **b == b'*').count();
        let starts_component = std::mem::replace(&mut at_start, *first == b'/');
        rest = match first {
            b'*' if stars == 1 => {
                // No path ends in a slash, so `dir/*` is not `dir` itself.
                regex.push_str("[^/]*");
                after
            }
            b'*' => {
                let after = &rest[stars..];
                match after.strip_prefix(b"/") {
                    Some(below) if starts_component => {
                        regex.push_str("(?:.*/)?");
                        at_start = true;
                        below
                    }
                    _ => {
                        regex.push_str(".*");
                        after
                    }
                }
            }
            b'?' => {
                regex.push_str("[^/]");
                after
            }
            b'[' => set(after, regex)?,
            b'\\' => {
                let (byte, after) = after.split_first().ok_or("it ends in a backslash, which escapes what follows")?;
                literal(*byte, regex);
                after
            }
            byte => {
                literal(*byte, regex);
                after
            }
        };
    }
    Ok(())
}

fn literal(byte: u8, regex: &mut String) {
    if byte.is_ascii_alphanumeric() || byte == b'/' {
        regex.push(byte.into());
    } else {
        let _ = write!(regex, "\\x{byte:02x}");
    }
}

/// The set that `text`, after its bracket, begins with; returns what follows it.
fn set<'a>(text: &'a [u8], regex: &mut String) -> Result<&'a [u8], String> {
    let (negated, mut rest) = match text {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let mut members = [false; 256];
    let mut first = true;
    loop {
        let (byte, after) = rest.split_first().ok_or("a [ has no ] (a bracket that is meant itself is \\[)")?;
        if *byte == b']' && !first {
            rest = after;
            break;
        }
        first = false;
        if let Some(named) = rest.strip_prefix(b"[:") {
            let end = named.windows(2).position(|two| two == b":]").ok_or("a [: has no :]")?;
            let is_member = class(&named[..end]).ok_or("the name between [: and :] is not known")?;
            (0..=255u8).filter(is_member).for_each(|b| members[usize::from(b)] = true);
            rest = &named[end + 2..];
            continue;
        }
        let (low, after) = member(rest)?;
        rest = after;
        let mut high = low;
        if let [b'-', next, ..] = rest
            && *next != b']'
        {
            (high, rest) = member(&rest[1..])?;
        }
        (low..=high).for_each(|b| members[usize::from(b)] = true);
    }
    if negated {
        members.iter_mut().for_each(|member| *member = !*member);
    }
    members[usize::from(b'/')] = false;
    regex.push('[');
    let mut byte = 0;
    while byte < members.len() {
        let run = members[byte..].iter().take_while(|member| **member).count();
        if run > 0 {
            let _ = write!(regex, "\\x{byte:02x}-\\x{:02x}", byte + run - 1);
        }
        byte += run.max(1);
    }
    if !members.contains(&true) {
        return Err("a [] matches no byte".into());
    }
    regex.push(']');
    Ok(rest)
}

/// One byte of a set, escaped or not.
fn member(text: &[u8]) -> Result<(u8, &[u8]), String> {
    match text {
        [b'\\', byte, rest @ ..] | [byte, rest @ ..] => Ok((*byte, rest)),
        [] => Err("a [ has no ] (a bracket that is meant itself is \\[)".into()),
    }
}

fn class(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |b| matches!(b, b' '..=b'~'),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |b| matches!(b, b' ' | 9..=13),
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}
