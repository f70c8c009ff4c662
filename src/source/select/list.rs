//! Names from a list (`--files-from`): what is sent of one directory, and with it the directories above.
//!
//! Paths are kept as one sorted text, each with NULs in place of its slashes: no name holds one, and so their order is
//! that of the walk and all that lies below a directory lies together. Ten bytes beside each path are all it takes.

use std::ops::Range;

/// Paths below a directory, sorted, each once.
pub(super) struct List {
    text: Vec<u8>,
    /// Where each path begins and how long it is.
    paths: Vec<(u64, u32)>,
}

/// What of a directory, or of a name in one, is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// All of it.
    pub whole: bool,
    /// It is in the list, or above something that is.
    pub named: bool,
    /// The paths of the list that lie below it.
    below: Range<usize>,
    /// Bytes of these paths up to the part below it.
    depth: usize,
}

impl Wanted {
    /// Everything, and nobody asked for any of it by name.
    pub const ALL: Wanted = Wanted { whole: true, named: false, below: 0..0, depth: 0 };

    /// Whether there is no list.
    pub fn is_all(&self) -> bool {
        *self == Wanted::ALL
    }

    /// Whether names below it are in the list.
    pub fn names_below(&self) -> bool {
        !self.below.is_empty()
    }
}

impl List {
    /// Read the names in `text`, each ended by `end`; empty ones are passed over. Fails with a name that lies outside.
    pub fn parse(text: &[u8], end: u8) -> Result<(List, Wanted), Vec<u8>> {
        let mut list = List { text: Vec::with_capacity(text.len()), paths: Vec::new() };
        let mut whole = false;
        for name in text.split(|b| *b == end).filter(|name| !name.is_empty()) {
            let start = list.text.len();
            for component in name.split(|b| *b == b'/') {
                match component {
                    b"" | b"." => {}
                    // Only a list whose names end otherwise can hold one, and no file can have it.
                    b".." => return Err(name.to_vec()),
                    _ if component.contains(&0) => return Err(name.to_vec()),
                    _ => {
                        if list.text.len() > start {
                            list.text.push(0);
                        }
                        list.text.extend_from_slice(component);
                    }
                }
            }
            let len = u32::try_from(list.text.len() - start).map_err(|_| name.to_vec())?;
            match len {
                0 => whole = true,
                _ => list.paths.push((start as u64, len)),
            }
        }
        let List { text, paths } = &mut list;
        let path = |(start, len): (u64, u32)| &text[start as usize..][..len as usize];
        paths.sort_unstable_by(|a, b| path(*a).cmp(path(*b)));
        paths.dedup_by(|a, b| path(*a) == path(*b));
        let wanted = Wanted { whole, named: true, below: 0..list.paths.len(), depth: 0 };
        Ok((list, wanted))
    }

    fn path(&self, at: usize) -> &[u8] {
        let (start, len) = self.paths[at];
        &self.text[start as usize..][..len as usize]
    }

    /// The names in a directory that are in the list or above something that is, in order.
    pub fn children<'a>(&'a self, dir: &Wanted) -> impl Iterator<Item = (&'a [u8], Wanted)> {
        let (mut at, end, depth) = (dir.below.start, dir.below.end, dir.depth);
        let dir_is_whole = dir.whole;
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let rest = &self.path(at)[depth..];
            let name = rest.split(|b| *b == 0).next().unwrap_or(rest);
            let is_whole = name.len() == rest.len();
            let first = at + usize::from(is_whole);
            let is_below = |path: &[u8]| path[depth..].strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0));
            let below = (first..end).take_while(|i| is_below(self.path(*i))).count();
            at = first + below;
            let whole = dir_is_whole || is_whole;
            let below = first..at;
            Some((name, Wanted { whole, named: true, below, depth: depth + name.len() + 1 }))
        })
    }

    /// The paths of the list that lie below something, each as it continues from there.
    pub fn paths_below(&self, wanted: &Wanted) -> impl Iterator<Item = Vec<u8>> {
        let depth = wanted.depth;
        wanted.below.clone().map(move |at| {
            let rest = &self.path(at)[depth..];
            rest.iter().map(|b| if *b == 0 { b'/' } else { *b }).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All names of the list with their depth and whether they are wanted whole, in the walk's order.
    fn walk(list: &List, dir: &Wanted, indent: usize, out: &mut Vec<String>) {
        for (name, wanted) in list.children(dir) {
            let mark = if wanted.whole { "!" } else { "" };
            out.push(format!("{}{}{mark}", " ".repeat(indent), name.escape_ascii()));
            walk(list, &wanted, indent + 1, out);
        }
    }

    fn listed(text: &[u8], end: u8) -> Vec<String> {
        let (list, root) = List::parse(text, end).unwrap();
        let mut out = Vec::new();
        walk(&list, &root, 0, &mut out);
        out
    }

    #[test]
    fn names_come_in_the_order_of_the_walk_with_the_directories_above_them() {
        let text = b"b/c\n./a//x/\na-b\n/a/y\na\n\na-b\nb/c/d\nz/\xff";
        assert_eq!(listed(text, b'\n'), ["a!", " x!", " y!", "a-b!", "b", " c!", "  d!", "z", " \\xff!"]);
        assert_eq!(listed(b"new\nline/x\0b", 0), ["b!", "new\\nline", " x!"]);
        assert!(listed(b"", b'\n').is_empty());
    }

    #[test]
    fn the_directory_itself_may_be_named_and_nothing_outside() {
        let (_, root) = List::parse(b"a\n.\n", b'\n').unwrap();
        assert!(root.whole && root.names_below());
        for bad in [&b"../x"[..], b"a/../../x", b"..", b"a\0b"] {
            assert_eq!(List::parse(bad, b'\n').err().as_deref(), Some(bad));
        }
    }

    #[test]
    fn what_lies_below_a_name_is_told_as_paths() {
        let (list, root) = List::parse(b"a/b/c\na/b\na/d\nab", b'\n').unwrap();
        let (name, a) = list.children(&root).next().unwrap();
        assert_eq!((name, a.whole), (&b"a"[..], false));
        let below: Vec<Vec<u8>> = list.paths_below(&a).collect();
        assert_eq!(below, [&b"b"[..], b"b/c", b"d"]);
    }
}
