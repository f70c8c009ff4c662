//! Names as foreign archives have them, made into paths of an [`Entry`](crate::archive::Entry): relative, without the
//! `.` and the slashes that mean nothing. One that leads upwards is refused, never bent into something else.

/// A name as a path.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Name {
    /// Empty for the root.
    pub path: Vec<u8>,
    /// It began with a slash.
    pub absolute: bool,
    /// It ended in one, as only a directory's does.
    pub directory: bool,
}

/// `None` if a component is `..`.
pub(super) fn name(raw: &[u8]) -> Option<Name> {
    let mut path = Vec::with_capacity(raw.len());
    for component in raw.split(|b| *b == b'/') {
        match component {
            b".." => return None,
            b"" | b"." => {}
            _ => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(component);
            }
        }
    }
    Some(Name { path, absolute: raw.starts_with(b"/"), directory: raw.ends_with(b"/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_relative_paths() {
        for (raw, path, absolute, directory) in [
            ("a", "a", false, false),
            ("./a", "a", false, false),
            ("././a//b/./c", "a/b/c", false, false),
            ("a/", "a", false, true),
            ("a/.", "a", false, false),
            ("/etc/passwd", "etc/passwd", true, false),
            ("///x", "x", true, false),
            (".", "", false, false),
            ("./", "", false, true),
            ("/", "", true, true),
            ("", "", false, false),
            ("...", "...", false, false),
            ("a/..b", "a/..b", false, false),
            (" ", " ", false, false),
            ("a\\b", "a\\b", false, false),
        ] {
            let expected = Name { path: path.into(), absolute, directory };
            assert_eq!(name(raw.as_bytes()), Some(expected), "{raw}");
        }
        for raw in ["..", "../a", "a/..", "a/../b", "/..", "./../x", "a//..//b"] {
            assert_eq!(name(raw.as_bytes()), None, "{raw}");
        }
    }
}
