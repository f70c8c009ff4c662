//! What GNU tar and bsdtar say is in an archive, and what they should say of the tree that it came from.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use blast::error::escape;
use rustix::fs::FileType;

use crate::foreign_feed::run_in;
use crate::trees::{Item, Listing};

/// A path, what it is, and of a hard link the name that a walk meets first.
type Met<'a> = (&'a Vec<u8>, &'a Item, Option<&'a Vec<u8>>);

/// A tree's entries in the order of a walk.
fn in_order(tree: &Listing) -> Vec<Met<'_>> {
    let mut paths: Vec<(&Vec<u8>, &Item)> = tree.iter().collect();
    paths.sort_by_cached_key(|(path, _)| path.iter().map(|b| if *b == b'/' { 0 } else { *b }).collect::<Vec<_>>());
    let mut first: HashMap<&Vec<u8>, &Vec<u8>> = HashMap::new();
    let mut linked = |path, item: &'_ Item| {
        let same = tree.get_key_value(item.same_as.as_ref()?)?.0;
        let met = *first.entry(same).or_insert(path);
        (met != path).then_some(met)
    };
    paths.into_iter().map(|(path, item)| (path, item, linked(path, item))).collect()
}

/// A device's numbers.
fn numbers(item: &Item) -> (u32, u32) {
    let device = u64::from_le_bytes(item.content[..8].try_into().expect("a device's numbers"));
    (rustix::fs::major(device), rustix::fs::minor(device))
}

/// What is wrong about how either lists `archive`, which came of `tree`.
pub fn wrong(archive: &Path, tree: &Listing) -> Vec<String> {
    let dir = archive.parent().expect("it is in a directory");
    let name = archive.to_str().expect("a name of ours");
    let args = ["--full-time", "--numeric-owner", "--quoting-style=literal", "-tvf", name];
    let (is, should) = (run_in(dir, "tar", &args).stdout, by_gnu_tar(tree));
    let mut wrong = Vec::new();
    if is != should {
        let at = is.iter().zip(&should).position(|(a, b)| a != b).unwrap_or(is.len().min(should.len()));
        let near = |of: &[u8]| escape(&of[at.saturating_sub(300)..(at + 200).min(of.len())]);
        wrong.push(format!("GNU tar lists '{}', should '{}'", near(&is), near(&should)));
    }
    let options = "--options=!all,type,mode,size,time,uid,gid,link,device";
    let args = ["-cf", "-", "--format=mtree", options, &format!("@{name}")];
    let (is, should) = (read_mtree(&run_in(dir, "bsdtar", &args).stdout), as_mtree(tree));
    for (path, should) in &should {
        let Some(is) = is.get(path) else {
            wrong.push(format!("bsdtar lists no '{}'", escape(path)));
            continue;
        };
        if should.iter().any(|(key, value)| is.get(key) != Some(value)) {
            wrong.push(format!("bsdtar lists '{}' with {}, should {}", escape(path), words(is), words(should)));
        }
    }
    wrong.extend(is.keys().filter(|p| !should.contains_key(*p)).map(|p| format!("bsdtar lists '{}' too", escape(p))));
    wrong
}

fn by_gnu_tar(tree: &Listing) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut width, mut date_width) = (19, 0);
    for (path, item, linked) in in_order(tree) {
        let (letter, size) = match item.kind {
            _ if linked.is_some() => ('h', "0".to_owned()),
            FileType::Directory => ('d', "0".to_owned()),
            FileType::Symlink => ('l', "0".to_owned()),
            FileType::Fifo => ('p', "0".to_owned()),
            FileType::CharacterDevice | FileType::BlockDevice => {
                let (major, minor) = numbers(item);
                (if item.kind == FileType::BlockDevice { 'b' } else { 'c' }, format!("{major},{minor}"))
            }
            _ => ('-', item.size.to_string()),
        };
        let owner = format!("{}/{}", item.owner.0, item.owner.1);
        width = width.max(owner.len() + 1 + size.len());
        let size = format!("{size:>w$}", w = width - owner.len() - 1);
        let date = match item.mtime {
            // It lists the fraction of a time before 1970 as if it were one after the next second, and unpacks it as it
            // is.
            (secs @ ..0, nanos @ 1..) => date((secs + 1, 1_000_000_000 - nanos)),
            time => date(time),
        };
        date_width = date_width.max(date.len());
        out.extend(format!("{letter}{} {owner} {size} {date:date_width$} ", letters(item.mode)).into_bytes());
        match item.kind {
            _ if path.is_empty() => out.extend(b"./"),
            FileType::Directory => out.extend([&path[..], b"/"].concat()),
            _ => out.extend(path),
        }
        match (item.kind, linked) {
            (_, Some(first)) => out.extend([b" link to ", &first[..]].concat()),
            (FileType::Symlink, None) => out.extend([b" -> ", &item.content[..]].concat()),
            _ => {}
        }
        out.push(b'\n');
    }
    out
}

/// `rwsr-xr-T`
fn letters(mode: u32) -> String {
    let mut text = String::new();
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 > 0 { 'r' } else { '-' });
        text.push(if bits & 2 > 0 { 'w' } else { '-' });
        text.push(match (mode & special > 0, bits & 1 > 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A time in UTC, its fraction without zeros at the end (the calendar is that of Hinnant's `civil_from_days`).
fn date((secs, nanos): (i64, u64)) -> String {
    let (days, second) = (secs.div_euclid(86_400) + 719_468, secs.rem_euclid(86_400));
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let whole = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{nanos:09}");
    whole.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What is said about an entry, by what it is about.
type Said = BTreeMap<Vec<u8>, Vec<u8>>;

fn words(said: &Said) -> String {
    said.iter().map(|(key, value)| format!("{}={} ", escape(key), escape(value))).collect()
}

/// Of what has a list, bsdtar takes the rights of the owning group from there, where the mode has the list's mask.
fn mode_with_list(item: &Item) -> u32 {
    let list = item.xattrs.get(&b"system.posix_acl_access"[..]);
    let group = list.and_then(|list| list[4..].chunks(8).find(|entry| entry[..2] == [4, 0]));
    group.map_or(item.mode, |entry| item.mode & !0o070 | u32::from(entry[2]) << 3)
}

fn as_mtree(tree: &Listing) -> BTreeMap<Vec<u8>, Said> {
    let said = |(path, item, linked): Met<'_>| {
        let mode = if linked.is_some() { item.mode } else { mode_with_list(item) };
        let mut said = BTreeMap::from([
            ("mode", format!("{mode:o}").into_bytes()),
            ("uid", item.owner.0.to_string().into_bytes()),
            ("gid", item.owner.1.to_string().into_bytes()),
        ]);
        // In some versions it adds the fraction of a time before 1970 instead of subtracting it.
        if item.mtime.0 >= 0 || item.mtime.1 == 0 {
            said.insert("time", format!("{}.{}", item.mtime.0, item.mtime.1).into_bytes());
        }
        let kind = match item.kind {
            // It has no word for them.
            _ if linked.is_some() => "file",
            FileType::Directory => "dir",
            FileType::Symlink => "link",
            FileType::Fifo => "fifo",
            FileType::CharacterDevice => "char",
            FileType::BlockDevice => "block",
            _ => "file",
        };
        said.insert("type", kind.into());
        match kind {
            "file" => {
                drop(said.insert("size", if linked.is_some() { "0".into() } else { item.size.to_string().into() }))
            }
            "link" => drop(said.insert("link", item.content.clone())),
            "char" | "block" => {
                let (major, minor) = numbers(item);
                said.insert("device", format!("native,{major},{minor}").into_bytes());
            }
            _ => {}
        }
        let path = if path.is_empty() { b".".to_vec() } else { [b"./", &path[..]].concat() };
        (path, said.into_iter().map(|(key, value)| (key.as_bytes().to_vec(), value)).collect())
    };
    in_order(tree).into_iter().map(said).collect()
}

/// Lines of a name and `key=value`, with `\ooo` for bytes that could be taken for something else.
fn read_mtree(text: &[u8]) -> BTreeMap<Vec<u8>, Said> {
    let mut found = BTreeMap::new();
    for line in text.split(|b| *b == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#")) {
        let mut words = line.split(|b| *b == b' ').map(plain);
        let path = words.next().expect("a line has a name");
        // Of the root it makes an absolute name.
        let path = if path == b"/." { b".".to_vec() } else { path };
        let said = words.filter_map(|word| {
            let at = word.iter().position(|b| *b == b'=')?;
            Some((word[..at].to_vec(), word[at + 1..].to_vec()))
        });
        found.insert(path, said.collect());
    }
    found
}

fn plain(escaped: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = escaped;
    while let [first, more @ ..] = rest {
        match (first, more) {
            (b'\\', [a, b, c, more @ ..]) => {
                let digit = |d: &u8| u32::from(d - b'0');
                out.push((digit(a) * 64 + digit(b) * 8 + digit(c)) as u8);
                rest = more;
            }
            _ => {
                out.push(*first);
                rest = more;
            }
        }
    }
    out
}
