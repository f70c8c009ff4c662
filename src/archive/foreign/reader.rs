//! Bytes to events: what the next bytes are depends only on those before them, however they are cut.

use std::mem::take;

use super::block::{Block, Layout};
use super::extras::Names;
use super::map::Map;
use super::name::name;
use super::said::{Everywhere, Number, Said, Sparse};
use super::sniff::looks_like;
use super::{Event, Extent, ForeignError, Member, Remark, RemarkKind, Remarks};
use crate::archive::{ArchiveError, BLOCK_LEN, Entry, EntryKind, Timestamp, padding};
use crate::limits::{FOREIGN_EXTENTS_MAX, FOREIGN_META_MAX};

const BLOCK: u64 = BLOCK_LEN as u64;

/// Whose an entry is if the archive does not say it in numbers: nobody's.
const NOBODY: u32 = 65534;

/// Reads an archive of any tar.
#[derive(Default)]
pub struct Reader {
    state: State,
    /// Bytes taken so far.
    offset: u64,
    /// The beginning of a block whose rest has not come yet.
    partial: Vec<u8>,
    /// What came of an extended header's body or a long name.
    body: Vec<u8>,
    said: Said,
    everywhere: Everywhere,
    names: Names,
    remarks: Remarks,
    /// Whether a header was seen, so that it is an archive.
    begun: bool,
}

/// What comes next.
#[derive(Default)]
enum State {
    #[default]
    Header,
    Body {
        kind: u8,
        /// Where it begins.
        at: u64,
        len: u64,
    },
    /// Blocks that continue the map of a file with holes.
    MoreMap(Box<Pending>),
    /// The map at the start of a file's content.
    Map(Box<Pending>, Map),
    /// After a hard link that claims content.
    AfterLink {
        len: u64,
    },
    Content {
        extents: Vec<Extent>,
        /// The current one, and how much of it has come.
        at: usize,
        done: u64,
        padding: u64,
    },
    Skip {
        left: u64,
    },
    /// One block of zeros came.
    OneZero {
        end: u64,
    },
    Ended {
        end: u64,
    },
    /// Nothing counts any more.
    Beyond,
}

/// A file with holes whose map is not whole yet.
struct Pending {
    member: Member,
    extents: Vec<Extent>,
    /// Bytes of it in the archive that have not come yet, and the padding after them.
    stored: u64,
    padding: u64,
    /// Why it is not to be had.
    refused: Option<String>,
}

/// A map in none of the forms that are known, or with numbers that are none.
const NO_MAP: &str = "its map of holes cannot be read, or is of a kind that nobody knows";

/// What one step came to.
enum Step<'a> {
    Say(Event<'a>),
    Again,
    More,
}

/// What is known once all bytes have come.
#[derive(PartialEq, Eq, Debug)]
pub struct Ended {
    /// What there is to know about the archive, once for each kind.
    pub remarks: Vec<Remark>,
    /// Where its end is, if that is one block of zeros only and the bytes stop there: it may have been cut.
    pub short: Option<u64>,
}

impl Reader {
    /// A reader at the start of an archive.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// With the names of this machine, for ACLs that have no numbers.
    pub fn with_names(names: Names) -> Reader {
        Reader { names, ..Reader::default() }
    }

    /// The next event, with `input` moved on past its bytes; `None` if it takes more bytes to know. After an error
    /// nothing more is to be asked.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, ForeignError> {
        loop {
            match self.step(input)? {
                Step::Say(event) => return Ok(Some(event)),
                Step::Again => {}
                Step::More => return Ok(None),
            }
        }
    }

    /// All bytes have come.
    pub fn finish(mut self) -> Result<Ended, ForeignError> {
        let cut = |place| Err(ForeignError::Truncated { offset: self.offset, place });
        let short = match &self.state {
            State::Header if self.offset == 0 => return Err(ForeignError::Empty),
            State::Header if !self.begun => {
                return Err(ForeignError::NotAnArchive { looks: looks_like(&self.partial) });
            }
            State::Header if self.partial.is_empty() => return cut("where another member or the end should follow"),
            State::Header => return cut("inside a header"),
            State::Body { .. } => return cut("inside an extended header"),
            State::MoreMap(_) | State::Map(..) => return cut("inside a map of holes"),
            State::AfterLink { .. } => return cut("after a hard link"),
            State::Content { .. } => return cut("inside a file"),
            State::Skip { .. } => return cut("inside a member or its padding"),
            State::OneZero { .. } if self.partial.iter().any(|b| *b != 0) => return cut("after its end"),
            State::OneZero { end } => Some(*end),
            State::Ended { .. } | State::Beyond => None,
        };
        if !self.begun {
            self.remarks.add(RemarkKind::Empty, b"");
        }
        Ok(Ended { remarks: self.remarks.told(), short })
    }

    fn step<'a>(&mut self, input: &mut &'a [u8]) -> Result<Step<'a>, ForeignError> {
        match take(&mut self.state) {
            State::Header => match self.block(input) {
                Some(block) => self.header(&block),
                None => Ok(Step::More),
            },
            State::Body { kind, at, len } => self.body(input, kind, at, len),
            State::MoreMap(mut pending) => {
                let Some(block) = self.block(input) else {
                    self.state = State::MoreMap(pending);
                    return Ok(Step::More);
                };
                let more = pending.add(block.more_extents());
                Ok(if more { self.again(State::MoreMap(pending)) } else { self.ready(*pending) })
            }
            State::Map(mut pending, mut map) => {
                let taken = map.take(input, pending.stored);
                self.offset += taken;
                pending.stored -= taken;
                match map.done() {
                    None => {
                        self.state = State::Map(pending, map);
                        Ok(Step::More)
                    }
                    Some(extents) => {
                        match extents {
                            Some(extents) => pending.extents = extents,
                            None => pending.refuse(NO_MAP),
                        }
                        Ok(self.ready(*pending))
                    }
                }
            }
            State::AfterLink { len } => match self.block(input) {
                None => {
                    self.state = State::AfterLink { len };
                    Ok(Step::More)
                }
                Some(block) if block.is_zero() || block.is_header() => self.header(&block),
                Some(_) => Ok(self.again(State::Skip { left: padded(len) - BLOCK })),
            },
            State::Content { extents, mut at, mut done, padding } => {
                while extents.get(at).is_some_and(|extent| extent.len == done) {
                    (at, done) = (at + 1, 0);
                }
                let Some(extent) = extents.get(at).copied() else {
                    self.state = State::Skip { left: padding };
                    return Ok(Step::Say(Event::FileEnd));
                };
                let bytes = self.bytes(input, extent.len - done);
                let offset = extent.offset + done;
                self.state = State::Content { extents, at, done: done + bytes.len() as u64, padding };
                Ok(if bytes.is_empty() { Step::More } else { Step::Say(Event::Content { offset, bytes }) })
            }
            State::Skip { left } => {
                let left = left - self.bytes(input, left).len() as u64;
                if left == 0 {
                    return Ok(Step::Again);
                }
                self.state = State::Skip { left };
                Ok(Step::More)
            }
            State::OneZero { end } => match self.block(input) {
                None => {
                    self.state = State::OneZero { end };
                    Ok(Step::More)
                }
                Some(block) if block.is_zero() => Ok(self.again(State::Ended { end })),
                Some(block) => {
                    let zeros = block.0.iter().take_while(|b| **b == 0).count() as u64;
                    self.state = State::Beyond;
                    Ok(Step::Say(Event::Beyond { end, offset: self.offset - BLOCK + zeros, lone: true }))
                }
            },
            State::Ended { end } => {
                let zeros = input.iter().position(|b| *b != 0);
                let offset = self.offset + zeros.unwrap_or_default() as u64;
                self.bytes(input, u64::MAX);
                if zeros.is_none() {
                    self.state = State::Ended { end };
                    return Ok(Step::More);
                }
                self.state = State::Beyond;
                Ok(Step::Say(Event::Beyond { end, offset, lone: false }))
            }
            State::Beyond => {
                self.bytes(input, u64::MAX);
                self.state = State::Beyond;
                Ok(Step::More)
            }
        }
    }

    fn again<'a>(&mut self, state: State) -> Step<'a> {
        self.state = state;
        Step::Again
    }

    /// Take at most `len` bytes.
    fn bytes<'a>(&mut self, input: &mut &'a [u8], len: u64) -> &'a [u8] {
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(input.len());
        let (bytes, rest) = input.split_at(len);
        *input = rest;
        self.offset += len as u64;
        bytes
    }

    /// Take a whole block, if it has come.
    fn block(&mut self, input: &mut &[u8]) -> Option<Block> {
        let bytes = self.bytes(input, (BLOCK_LEN - self.partial.len()) as u64);
        self.partial.extend_from_slice(bytes);
        let block = Block(*self.partial.first_chunk()?);
        self.partial.clear();
        Some(block)
    }

    /// A block where a header should be.
    fn header<'a>(&mut self, block: &Block) -> Result<Step<'a>, ForeignError> {
        let at = self.offset - BLOCK;
        if block.is_zero() {
            let said = take(&mut self.said);
            self.state = State::OneZero { end: at };
            let path = said.path.or(said.long_name);
            return Ok(match path {
                Some(path) if self.begun => Step::Say(Event::LeftOut { path, why: "its header is missing".into() }),
                _ => Step::Again,
            });
        }
        if !block.is_header() {
            return Err(match self.begun {
                true => ForeignError::Checksum { offset: at },
                false => ForeignError::NotAnArchive { looks: looks_like(&block.0) },
            });
        }
        self.begun = true;
        match block.type_flag() {
            kind @ (b'x' | b'X' | b'g' | b'L' | b'K') => {
                let len = block.size().ok_or(ForeignError::Size { offset: at })?;
                self.said.len += if kind == b'g' { 0 } else { len.min(FOREIGN_META_MAX + 1) };
                if len > FOREIGN_META_MAX || self.said.len > FOREIGN_META_MAX {
                    return Err(ForeignError::TooLong { offset: at, len });
                }
                Ok(self.again(State::Body { kind, at: self.offset, len }))
            }
            kind => self.member(block, kind, at),
        }
    }

    /// What is said about the next member, or about all that follow.
    fn body<'a>(&mut self, input: &mut &'a [u8], kind: u8, at: u64, len: u64) -> Result<Step<'a>, ForeignError> {
        let bytes = self.bytes(input, len - self.body.len() as u64);
        self.body.extend_from_slice(bytes);
        if (self.body.len() as u64) < len {
            self.state = State::Body { kind, at, len };
            return Ok(Step::More);
        }
        let body = take(&mut self.body);
        match kind {
            b'g' => self.everywhere.records(&body, at, &mut self.remarks)?,
            b'L' => self.said.long_name = Some(super::block::text(&body).to_vec()),
            b'K' => self.said.long_link = Some(super::block::text(&body).to_vec()),
            _ => self.said.records(&body, at)?,
        }
        Ok(self.again(State::Skip { left: padding(len) as u64 }))
    }

    /// The header of a member.
    fn member<'a>(&mut self, block: &Block, kind: u8, at: u64) -> Result<Step<'a>, ForeignError> {
        let mut said = take(&mut self.said);
        if said.unknown > 0 {
            self.remarks.add_many(RemarkKind::UnknownKey, &said.first_unknown, said.unknown);
        }
        let size = said.size.unwrap_or(block.size()).ok_or(ForeignError::Size { offset: at });
        let is_file = matches!(kind, b'0' | 0 | b'7' | b'S');
        let raw = match (said.sparse.name.take(), said.path.take().or(said.long_name.take())) {
            (Some(real), _) if is_file => real,
            (_, Some(path)) => path,
            (_, None) => block.name(),
        };
        let link = said.link_path.take().or(said.long_link.take()).unwrap_or_else(|| block.link_name().to_vec());
        let path = name(&raw);
        let slash = path.as_ref().is_some_and(|name| name.directory);
        let is_directory = matches!(kind, b'5' | b'D') || matches!(kind, b'0' | 0 | b'7') && slash;
        let is_file = is_file && !is_directory;

        // What comes after the header; a file's content is another matter.
        self.state = match kind {
            b'1' => match size {
                Ok(len @ 1..) => State::AfterLink { len },
                _ => State::Header,
            },
            b'2'..=b'6' => State::Header,
            _ => State::Skip { left: padded(size.clone()?) },
        };
        if kind == b'V' {
            self.remarks.add(RemarkKind::Label, &raw);
            return Ok(Step::Again);
        }
        let (path, refused) = match path {
            None => (raw, Some("a name with '..' leads out of the destination".to_owned())),
            Some(_) if raw.is_empty() => (raw, Some("it has no name".into())),
            Some(name) if name.path.is_empty() && !is_directory => (raw, Some("it has no name".into())),
            Some(name) => {
                if name.absolute {
                    self.remarks.add(RemarkKind::Absolute, &raw);
                }
                (name.path, None)
            }
        };
        if is_file {
            let sparse = take(&mut said.sparse);
            let member = self.assemble(block, said, path, EntryKind::File { size: size.clone()? });
            return Ok(self.file(block, sparse, member, size?, refused));
        }
        let kind = match (refused, kind) {
            (Some(why), _) => Err(why),
            _ if is_directory => Ok(EntryKind::Directory),
            (_, b'1') => match name(&link) {
                Some(target) if target.path == path => return Ok(Step::Say(Event::LinkToItself { path })),
                Some(target) => Ok(EntryKind::Hardlink { target: target.path }),
                None => Err("a hard link's target with '..' leads out of the destination".into()),
            },
            (_, b'2') => Ok(EntryKind::Symlink { target: link }),
            (_, b'6') => Ok(EntryKind::Fifo),
            (_, b'3' | b'4') => match block.device() {
                Some((major, minor)) => Ok(EntryKind::Device { block: kind == b'4', major, minor }),
                None => Err("its device number is none".into()),
            },
            (_, b'M') => Err("it is the rest of a file that another volume begins".into()),
            (_, b'N') => Err("renaming lists of old dumps are not followed".into()),
            (_, other) => Err(format!("its type '{}' is not known", other.escape_ascii())),
        };
        let kind = match kind {
            Ok(kind) => kind,
            Err(why) => return Ok(Step::Say(Event::LeftOut { path, why })),
        };
        if block.type_flag() == b'D' {
            self.remarks.add(RemarkKind::Dumpdir, &path);
        }
        let member = self.assemble(block, said, path, kind);
        Ok(match member.entry.check() {
            Ok(()) => Step::Say(Event::Member(member)),
            Err(why) => Step::Say(Event::LeftOut { path: member.entry.path, why: why.to_string() }),
        })
    }

    /// Attributes: from the extended header, the global one, or the block.
    fn assemble(&self, block: &Block, mut said: Said, path: Vec<u8>, kind: EntryKind) -> Member {
        let mut flaws = Vec::new();
        let mut id = |said: Number, everywhere: Number, block: Option<u64>, flaw| {
            let id = said.or(everywhere).unwrap_or(block).and_then(|id| u32::try_from(id).ok());
            id.filter(|id| *id != u32::MAX).unwrap_or_else(|| {
                flaws.push(flaw);
                NOBODY
            })
        };
        let uid =
            id(said.uid, self.everywhere.uid, block.uid(), "the archive has no number for the owner; it is nobody");
        let gid =
            id(said.gid, self.everywhere.gid, block.gid(), "the archive has no number for the group; it is nobody");
        let mode = block.mode().map_or_else(
            || {
                flaws.push("the archive has no number for the mode; it is 0600");
                0o600
            },
            |mode| (mode & 0o7777) as u32,
        );
        let mtime = said.mtime.or(self.everywhere.mtime).unwrap_or(block.mtime()).unwrap_or_else(|| {
            flaws.push("the archive has no number for the time; it is that of 1970");
            Timestamp::default()
        });
        let [uname, gname] = block.owner_names().map(<[u8]>::to_vec);
        said.extras.uname.get_or_insert(uname);
        said.extras.gname.get_or_insert(gname);
        let extras = said.extras.build(&kind, &self.names, &mut flaws);
        let mut entry = Entry { path, kind, mode, uid, gid, mtime, extras };
        if let Err(ArchiveError::Extras { .. }) = entry.check() {
            entry.extras = None;
            flaws.push("its attributes are too many, or too large");
        }
        Member { entry, stored: 0, flaws }
    }

    /// A file, of which `stored` bytes follow.
    fn file<'a>(
        &mut self,
        block: &Block,
        sparse: Sparse,
        mut member: Member,
        stored: u64,
        refused: Option<String>,
    ) -> Step<'a> {
        let is_old = block.type_flag() == b'S';
        let padding = padding(stored) as u64;
        if !is_old && !sparse.present {
            let extents = vec![Extent { offset: 0, len: stored }];
            return self.ready(Pending { member, extents, stored, padding, refused });
        }
        let real_size = if is_old { block.real_size() } else { sparse.real_size };
        member.entry.kind = EntryKind::File { size: real_size.unwrap_or_default() };
        let mut pending = Pending { member, extents: sparse.extents, stored, padding, refused };
        let is_known = match (sparse.major, sparse.minor) {
            _ if is_old => block.layout() == Layout::Gnu,
            (None | Some(0), _) | (Some(1), None | Some(0)) => !sparse.broken,
            _ => false,
        };
        if !is_known || real_size.is_none() {
            pending.refuse(NO_MAP);
        }
        if is_old && block.layout() == Layout::Gnu {
            return match pending.add(block.extents()) {
                true => self.again(State::MoreMap(Box::new(pending))),
                false => self.ready(pending),
            };
        }
        if sparse.major == Some(1) && pending.refused.is_none() {
            return self.again(State::Map(Box::new(pending), Map::default()));
        }
        self.ready(pending)
    }

    /// All that is to be known about a file is known.
    fn ready<'a>(&mut self, pending: Pending) -> Step<'a> {
        let Pending { mut member, mut extents, stored, padding, refused } = pending;
        let EntryKind::File { size } = member.entry.kind else { unreachable!("only a file has content") };
        let why = match (refused, member.entry.check()) {
            (Some(why), _) => Some(why),
            (None, Err(why)) => Some(why.to_string()),
            (None, Ok(())) if !fits(&extents, size, stored) => Some("its map of holes does not fit its size".into()),
            (None, Ok(())) => None,
        };
        if let Some(why) = why {
            self.state = State::Skip { left: stored + padding };
            return Step::Say(Event::LeftOut { path: member.entry.path, why });
        }
        extents.retain(|extent| extent.len > 0);
        member.stored = stored;
        self.state = State::Content { extents, at: 0, done: 0, padding };
        Step::Say(Event::Member(member))
    }
}

impl Pending {
    /// The first reason counts.
    fn refuse(&mut self, why: &str) {
        self.refused.get_or_insert_with(|| why.to_owned());
    }

    /// More of a map in blocks; whether another block follows.
    fn add(&mut self, (found, more): (Option<Vec<Extent>>, bool)) -> bool {
        match found {
            Some(extents) if self.extents.len() + extents.len() <= FOREIGN_EXTENTS_MAX => self.extents.extend(extents),
            _ => self.refuse(NO_MAP),
        }
        more
    }
}

/// Whether extents ascend, end within `size` and are all of `stored`.
fn fits(extents: &[Extent], size: u64, stored: u64) -> bool {
    let (mut end, mut sum) = (0, 0u64);
    for extent in extents {
        let Some(next) = extent.offset.checked_add(extent.len) else { return false };
        if extent.offset < end || next > size {
            return false;
        }
        (end, sum) = (next, sum + extent.len);
    }
    sum == stored
}

/// Bytes of content with its padding.
fn padded(len: u64) -> u64 {
    len + padding(len) as u64
}
