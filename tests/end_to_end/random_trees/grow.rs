//! A tree of a seed: entries of every kind with attributes of every kind, put where chance wants them. The first
//! entries of a larger tree are a smaller one of the same seed.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags};

use crate::replay::Dice;
use crate::trees::{Set, acl, random_bytes, set_mode, set_mtime, set_owner};

/// The longest path below the root: what is put before it must fit into a call, too.
const PATH_MAX: usize = 3800;

const LENGTHS: [usize; 12] = [1, 2, 98, 99, 100, 101, 154, 155, 156, 253, 254, 255];

/// Names that mean something somewhere.
const NAMES: [&[u8]; 22] = [
    b"...",
    b"..x",
    b"-rf",
    b"--help",
    b" ",
    b"x\n15 path=evil.x\n",
    b"\x1b[31mred\r",
    b"back\\slash\\n",
    b"\\101",
    b"%2f%3D",
    b"a=b",
    b"*",
    b"#x",
    b"GNUSparseFile.0",
    b"PaxHeaders",
    b"@LongLink",
    b"@PaxHeader",
    b"._doc",
    b".blast-0123456789abcdef-0",
    b"a -> b",
    b"a link to b",
    "caf\u{e9} \u{65e5}\u{672c} \u{1f680}".as_bytes(),
];

/// Around every bound of a block, a page, a read and a chunk with the headers that may stand before it.
const SIZES: [usize; 16] = [
    0,
    1,
    511,
    512,
    513,
    1023,
    1024,
    4095,
    4096,
    4097,
    65_535,
    65_537,
    (1 << 20) - 1536,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
];

const MODES: [u32; 12] = [0, 0o400, 0o200, 0o600, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4755, 0o6711, 0o7777];

const IDS: [u32; 8] = [0, 1, 1000, 65_534, 65_536, 2_097_151, 2_097_152, u32::MAX - 1];

const TIMES: [i64; 12] = [
    -2_147_483_647,
    -86_401,
    -1,
    0,
    1,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    (1 << 33) - 1,
    1 << 33,
    15_032_385_534,
    1 << 36,
];

/// Make the first `entries` of the tree of a seed.
pub fn tree(root: &Path, seed: u64, entries: usize) {
    std::fs::create_dir(root).expect("a new directory");
    let mut grower = Grower {
        set: Set(root),
        // Scattered, since seeds that differ by a step of the dice give the same throws.
        dice: Dice(u64::from_le_bytes(random_bytes(seed, 8)[..].try_into().expect("eight bytes"))),
        root: rustix::process::geteuid().is_root(),
        directories: vec![Vec::new()],
        others: Vec::new(),
        taken: BTreeSet::new(),
        last: Vec::new(),
    };
    grower.attributes(b"", FileType::Directory);
    (0..entries).for_each(|_| grower.entry());
    grower.finish();
}

struct Grower<'a> {
    set: Set<'a>,
    dice: Dice,
    /// May do what only root may.
    root: bool,
    directories: Vec<Vec<u8>>,
    /// All else, which a hard link may lead to.
    others: Vec<Vec<u8>>,
    taken: BTreeSet<Vec<u8>>,
    /// Modes and times of directories, which what is put into them would change.
    last: Vec<(Vec<u8>, u32, (i64, u32))>,
}

impl Grower<'_> {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.dice.below(from.len())]
    }

    /// True in so many of a hundred cases.
    fn percent(&mut self, n: usize) -> bool {
        self.dice.below(100) < n
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| 1 + self.dice.below(255) as u8).collect()
    }

    fn name(&mut self) -> Vec<u8> {
        let len = match self.dice.below(10) {
            0 => self.pick(&LENGTHS),
            1 => 1 + self.dice.below(255),
            _ => 1 + self.dice.below(12),
        };
        let mut name = match self.dice.below(8) {
            0..3 => self.bytes(len),
            3..6 => (0..len).map(|_| b'a' + self.dice.below(26) as u8).collect(),
            6 => "\u{65e5}\u{e9}\u{1f680}".as_bytes().iter().cycle().take(len).copied().collect(),
            _ => self.pick(&NAMES).to_vec(),
        };
        name.iter_mut().filter(|b| **b == b'/').for_each(|b| *b = b'_');
        if name == b"." || name == b".." {
            name.push(b'x');
        }
        name
    }

    /// A path that nothing has yet, in a directory that is there; the latest is the likeliest, so that some are deep.
    fn path(&mut self) -> Vec<u8> {
        loop {
            let n = self.directories.len();
            let above = if self.percent(30) { n - 1 } else { self.dice.below(n) };
            let mut path = self.directories[above].clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(self.name());
            if path.len() <= PATH_MAX && self.taken.insert(path.clone()) {
                return path;
            }
        }
    }

    fn entry(&mut self) {
        let path = self.path();
        let kind = match self.dice.below(100) {
            0..40 => self.file(&path),
            40..48 => self.file_with_holes(&path),
            48..68 => {
                self.set.dir(&path);
                self.directories.push(path.clone());
                FileType::Directory
            }
            68..80 => {
                let len = if self.percent(10) { 1 + self.dice.below(4095) } else { 1 + self.dice.below(40) };
                let target = self.bytes(len);
                self.set.symlink(target, &path);
                FileType::Symlink
            }
            80..90 if !self.others.is_empty() => {
                let n = self.dice.below(self.others.len());
                return self.set.hard_link(&self.others[n], &path);
            }
            90..94 => {
                self.set.fifo(&path);
                FileType::Fifo
            }
            94..98 => self.device(&path),
            98 => {
                // No transfer carries it, and no other entry misses it.
                let place = self.set.path(&path);
                rustix::fs::mknodat(CWD, &place, FileType::Socket, Mode::from_raw_mode(0o600), 0).unwrap();
                return;
            }
            _ => self.file(&path),
        };
        if kind != FileType::Directory {
            self.others.push(path.clone());
        }
        self.attributes(&path, kind);
    }

    fn file(&mut self, path: &[u8]) -> FileType {
        let len = match self.dice.below(100) {
            0..70 => self.dice.below(3000),
            70..92 => self.pick(&SIZES),
            92..98 => self.dice.below(300_000),
            _ => (1 << 20) + self.dice.below(3 << 20),
        };
        let seed = self.dice.next();
        let content = match self.dice.below(4) {
            0 => vec![0; len],
            1 => crate::trees::text_bytes(len),
            _ => random_bytes(seed, len),
        };
        self.set.file(path, content);
        FileType::RegularFile
    }

    fn file_with_holes(&mut self, path: &[u8]) -> FileType {
        let most = if self.percent(20) { 24 << 20 } else { 300_000 };
        let len = 1 + self.dice.below(most) as u64;
        let file = File::create(self.set.path(path)).unwrap();
        file.set_len(len).unwrap();
        for _ in 0..self.dice.below(8) {
            let (seed, at) = (self.dice.next(), self.dice.below(len as usize) as u64);
            // Every second begins where a page does.
            let at = if seed.is_multiple_of(2) { at & !4095 } else { at };
            let most = if self.percent(10) { 1_500_000 } else { 9000 };
            let n = (1 + self.dice.below(most) as u64).min(len - at);
            match self.dice.below(8) {
                0 => file.write_all_at(&vec![0; n as usize], at).unwrap(),
                // Room that is taken and reads as zeros; not every file system has that.
                1 => drop(rustix::fs::fallocate(&file, FallocateFlags::empty(), at, n)),
                _ => file.write_all_at(&random_bytes(seed, n as usize), at).unwrap(),
            }
        }
        FileType::RegularFile
    }

    /// A device, or a FIFO where none may be made.
    fn device(&mut self, path: &[u8]) -> FileType {
        let kind = self.pick(&[FileType::CharacterDevice, FileType::BlockDevice]);
        let (major, minor) = (self.pick(&[0, 1, 259, 4095]), self.pick(&[0, 3, 255, 1_048_575]));
        if self.root && self.set.device(path, kind, major, minor).is_ok() {
            return kind;
        }
        self.set.fifo(path);
        FileType::Fifo
    }

    /// In the order in which none takes another away.
    fn attributes(&mut self, path: &[u8], kind: FileType) {
        let place = self.set.path(path);
        let (uid, gid) = (self.pick(&IDS), self.pick(&IDS));
        if self.percent(40) && self.root {
            set_owner(&place, uid, gid);
        }
        let mut mode = if self.percent(50) { self.pick(&MODES) } else { self.dice.below(0o10000) as u32 };
        if !self.root {
            // Its owner must be able to read it, and to fill it.
            mode |= if kind == FileType::Directory { 0o700 } else { 0o400 };
        }
        let secs = if self.percent(50) { self.pick(&TIMES) } else { self.dice.next() as i64 % (1 << 31) };
        let any = self.dice.below(1_000_000_000) as u32;
        let time = (secs, self.pick(&[0, 1, 999_999_999, any, any, any]));
        if kind != FileType::Symlink && kind != FileType::Directory {
            set_mode(&place, mode);
        }
        if self.percent(25) {
            for _ in 0..1 + self.dice.below(4) {
                self.xattr(&place, kind);
            }
        }
        if self.percent(15) && kind != FileType::Symlink {
            self.acls(&place, kind);
        }
        if kind == FileType::Directory {
            self.last.push((path.to_vec(), mode, time));
        } else {
            set_mtime(&place, time.0, time.1);
        }
    }

    /// One more attribute, if this place takes it.
    fn xattr(&mut self, place: &Path, kind: FileType) {
        let plain = kind == FileType::RegularFile || kind == FileType::Directory;
        let capable = kind == FileType::RegularFile && self.percent(15);
        let space: &[u8] = if plain && self.percent(70) { b"user." } else { b"trusted." };
        let len = if self.percent(10) { 240 } else { 1 + self.dice.below(20) };
        let mut name = [space, &self.bytes(len)].concat();
        let len = match self.dice.below(10) {
            0..3 => 0,
            3..9 => self.dice.below(300),
            _ => self.dice.below(20_000),
        };
        let mut value = random_bytes(self.dice.next(), len);
        if capable {
            name = b"security.capability".to_vec();
            value = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        }
        let _ = rustix::fs::lsetxattr(place, &name[..], &value, XattrFlags::empty());
    }

    /// Lists of either kind, if this place takes them.
    fn acls(&mut self, place: &Path, kind: FileType) {
        const NOBODY: u32 = u32::MAX;
        for name in [&b"system.posix_acl_access"[..], b"system.posix_acl_default"] {
            let mut perms = || self.dice.below(8) as u16;
            let mut entries = vec![(1, perms() | 4, NOBODY), (4, perms(), NOBODY), (32, perms(), NOBODY)];
            let mut named: BTreeSet<(u16, u32)> = BTreeSet::new();
            for _ in 0..self.dice.below(6) {
                named.insert((self.pick(&[2, 8]), self.pick(&IDS)));
            }
            for (tag, id) in &named {
                entries.push((*tag, self.dice.below(8) as u16, *id));
            }
            if !named.is_empty() {
                entries.push((16, self.dice.below(8) as u16, NOBODY));
            }
            entries.sort_by_key(|(tag, _, id)| (*tag, *id));
            let both = kind == FileType::Directory;
            if both && self.percent(50) || !both && name.ends_with(b"access") {
                let _ = rustix::fs::setxattr(place, name, &acl(&entries), XattrFlags::empty());
            }
        }
    }

    fn finish(mut self) {
        for (path, mode, time) in self.last.drain(..).rev() {
            set_mode(self.set.path(&path), mode);
            set_mtime(self.set.path(&path), time.0, time.1);
        }
    }
}
