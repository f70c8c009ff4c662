//! Rules in their order: the first whose pattern matches decides, and what none matches is sent.

use regex::bytes::{RegexSet, RegexSetBuilder};

use super::pattern::Pattern;

/// Memory that all patterns together may take.
const PATTERNS_LEN_MAX: usize = 256 << 20;

/// One rule as it was given.
pub(super) struct Rule {
    pub include: bool,
    pub text: Vec<u8>,
}

/// All rules of a transfer.
pub(super) struct Rules {
    rules: Vec<Rule>,
    dir_only: Vec<bool>,
    /// Patterns over an entry's own name and over its path, each with the numbers of their rules.
    names: Side,
    paths: Side,
}

struct Side {
    set: RegexSet,
    rules: Vec<usize>,
}

impl Rules {
    /// No rules.
    pub fn none() -> Rules {
        let side = || Side { set: RegexSet::empty(), rules: Vec::new() };
        Rules { rules: Vec::new(), dir_only: Vec::new(), names: side(), paths: side() }
    }

    /// Understand them all. Fails with the number of a rule and why it cannot be meant.
    pub fn new(rules: Vec<Rule>) -> Result<Rules, (usize, String)> {
        let mut dir_only = Vec::with_capacity(rules.len());
        let mut sides = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        for (at, rule) in rules.iter().enumerate() {
            let pattern = Pattern::parse(&rule.text).map_err(|why| (at, why))?;
            dir_only.push(pattern.dir_only);
            let (regexes, numbers) = &mut sides[usize::from(pattern.over_path)];
            regexes.push(pattern.regex);
            numbers.push(at);
        }
        let mut sides = sides.into_iter().map(|(regexes, rules)| {
            let last = rules.last().copied().unwrap_or(0);
            let set = RegexSetBuilder::new(regexes)
                .unicode(false)
                .dot_matches_new_line(true)
                .size_limit(PATTERNS_LEN_MAX)
                .dfa_size_limit(PATTERNS_LEN_MAX / 8)
                .build()
                .map_err(|e| (last, e.to_string()))?;
            Ok(Side { set, rules })
        });
        let mut side = || sides.next().expect("there are two");
        let (names, paths) = (side()?, side()?);
        Ok(Rules { rules, dir_only, names, paths })
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    pub fn rule(&self, number: usize) -> &Rule {
        &self.rules[number]
    }

    /// The number of the rule that leaves an entry out, if one does. `path` ends in the entry's name, which begins at
    /// `name_at`; `is_dir` is asked only where it matters.
    pub fn excluding(&self, path: &[u8], name_at: usize, mut is_dir: impl FnMut() -> bool) -> Option<usize> {
        let mut first = |side: &Side, text: &[u8]| {
            // Most names match nothing, which is found out without noting which patterns match.
            if side.rules.is_empty() || !side.set.is_match(text) {
                return None;
            }
            let matched = side.set.matches(text);
            matched.iter().map(|i| side.rules[i]).find(|rule| !self.dir_only[*rule] || is_dir())
        };
        let by_name = first(&self.names, &path[name_at..]);
        let by_path = first(&self.paths, path);
        let rule = match (by_name, by_path) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        (!self.rules[rule].include).then_some(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        let rule = |word: &str| {
            let (include, text) = match word.strip_prefix('+') {
                Some(text) => (true, text),
                None => (false, word),
            };
            Rule { include, text: text.as_bytes().to_vec() }
        };
        Rules::new(text.split(' ').filter(|word| !word.is_empty()).map(rule).collect()).unwrap()
    }

    fn excludes(rules: &Rules, path: &[u8], is_dir: bool) -> bool {
        let name_at = path.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
        rules.excluding(path, name_at, || is_dir).is_some()
    }

    /// Pattern, then paths it matches, then `|`, then paths it does not; a slash at the end is a directory.
    #[test]
    fn patterns_match_what_they_say_and_nothing_else() {
        for line in [
            "foo: foo foo/ a/foo a/b/foo/ | foo/x xfoo foox a/foo/b",
            "/foo: foo foo/ | a/foo foo/x",
            "foo/: foo/ a/foo/ | foo a/foo",
            "/foo/: foo/ | foo a/foo/",
            "a/b: a/b x/a/b x/y/a/b/ | xa/b a/bx a/b/c b",
            "/a/b: a/b a/b/ | x/a/b",
            "*.o: x.o .o d/x.o | x.oo x.o/y xo",
            "/*.o: x.o | d/x.o",
            "/*: a b/ .c | a/b",
            "d/*: d/a d/b/ x/d/a | d/ d x/d/a/b",
            "?: a d/b | ab d/ab",
            "a?c: abc a*c | ac abbc",
            "**/x: x a/x a/b/x | xx a/xx",
            "a/**: a/b a/b/c x/a/b | a a/",
            "/a/**: a/b a/b/c | a x/a/b",
            "/a/**/b: a/b a/x/b a/x/y/b | a/xb a/x/yb b",
            "a**z: az a/z a/b/c/z d/abz | za",
            "/d/***: d/ d d/a d/a/b | x/d dd",
            "d/***: d/ d/a x/d/ x/d/a/b | dd d2/a",
            "[a-c]: a b c d/a | d ab",
            "[!a-c]x: dx zx | ax bx x",
            "[^a]x: bx | ax",
            "[]]: ] | a",
            "[!]]: a | ]",
            "[a-]: a - | b",
            "[[:digit:]_]x: 0x 9x _x | ax",
            "x[!a]y: xby | xay x/y",
            "[*]: * | a",
            "\\*: * | a",
            "a\\?: a? | ab",
            "a.b: a.b | axb",
            "a+b(c){d}^$: a+b(c){d}^$ | aab",
        ] {
            let (pattern, cases) = line.split_once(": ").unwrap();
            let rules = rules(pattern);
            let (yes, no) = cases.split_once(" | ").unwrap();
            for (cases, right) in [(yes, true), (no, false)] {
                for path in cases.split(' ') {
                    let (path, is_dir) = path.strip_suffix('/').map_or((path, false), |dir| (dir, true));
                    assert_eq!(excludes(&rules, path.as_bytes(), is_dir), right, "{pattern} and {path}");
                }
            }
        }
    }

    #[test]
    fn names_and_patterns_are_bytes() {
        let of = |text: &[u8]| Rules::new(vec![Rule { include: false, text: text.to_vec() }]).unwrap();
        assert!(excludes(&of(b"caf\xe9"), b"d/caf\xe9", false));
        assert!(!excludes(&of(b"caf\xe9"), "caf\u{e9}".as_bytes(), false));
        assert!(excludes(&of("caf\u{e9}".as_bytes()), "caf\u{e9}".as_bytes(), false));
        assert!(excludes(&of(b"[\x80-\xff]*"), b"\xfe\n\x01", false));
        assert!(excludes(&of(b"a*"), b"a\n\xffb", false));
        assert!(excludes(&of(b"a**z"), b"a\n\xff/\nz", false));
        assert!(excludes(&of(b"x?y"), b"x\ny", false) && excludes(&of(b"x?y"), b"x\xffy", false));
        assert!(excludes(&of(b"[!a]"), b"\n", false));
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let kept = rules("+*/ +*.c *");
        assert!(!excludes(&kept, b"a.c", false) && !excludes(&kept, b"d/a.c", false) && !excludes(&kept, b"d", true));
        assert!(excludes(&kept, b"a.h", false) && excludes(&kept, b"d/x", false));
        let names_and_paths = rules("+/keep/x.o *.o");
        assert!(!excludes(&names_and_paths, b"keep/x.o", false) && excludes(&names_and_paths, b"x.o", false));
        let paths_and_names = rules("*.o +/keep/x.o");
        assert!(excludes(&paths_and_names, b"keep/x.o", false));
        assert!(excludes(&rules("+d/ d"), b"d", false) && !excludes(&rules("+d/ d"), b"d", true));
    }

    #[test]
    fn what_can_never_match_is_refused() {
        for text in
            ["", "/", "//", "./a", "a/./b", "../a", "a//b", "[a", "[", "a\\", "[[:no:]]", "[[:digit:]", "[/]", "[b-a]"]
        {
            let rule = Rule { include: false, text: text.as_bytes().to_vec() };
            assert!(Rules::new(vec![rule]).is_err(), "{text}");
        }
    }

    #[test]
    fn ten_thousand_patterns_are_understood_and_told_apart() {
        let rule = |i| Rule { include: false, text: format!("name{i}-*.tmp").into_bytes() };
        let many = Rules::new((0..10_000).map(rule).collect()).unwrap();
        assert_eq!(many.excluding(b"d/name9999-.tmp", 2, || false), Some(9_999));
        assert_eq!(many.excluding(b"d/name17-x.tmp", 2, || false), Some(17));
        assert_eq!(many.excluding(b"d/name17-x.txt", 2, || false), None);
    }
}
