//! A command line as typed: clap's structs and the texts of its help. What it means is said in [`super::args`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::values::{
    BwlimitTyped, IdRules, Streams, allow, bind, bwlimit, code, compress, congestion, dscp, duration, from, id_rules,
    link, size, streams, window,
};
use crate::ids::InstanceCode;
use crate::options::{Allow, Bind, Compress, From, LinkSpec};

const AFTER_HELP: &str = "\
On one machine 'blast recv /restore', on the other 'blast send /data HOST'. A tree
sent to a directory is unpacked there, to a file or to - it is a tar archive; a
single file, a block device or standard input arrives as its bytes.

Exit codes, the same on both sides:
  0  whole: all of it synced and verified     4  network lost or never reached
  1  some of it left out or changed, named    5  destination failed (full, I/O)
  2  usage                                    6  verification failed
  3  refused                                  7  interrupted      (70  a bug)

Everything is encrypted. Make a key with 'blast keygen' and copy it to the other machine,
and nobody else can send or receive; without one, compare the code that both sides show.";

/// A command's help: these arguments between what clap puts there.
macro_rules! help {
    ($arguments:literal) => {
        concat!(
            "{about}\n\n{usage-heading} {usage}\n\nArguments:\n",
            $arguments,
            "\n\nOptions:\n{options}{after-help}\n"
        )
    };
}

const SEND_HELP: &str = help!(
    "  SRC...       What to send: directories, files, one block device, or - alone for
               standard input
  HOST[:PORT]  The machine where 'blast recv' runs, and its port if not 7411;
               an IPv6 address with a port needs brackets: [fd00::1]:7000;
               or auto, to find the receiver on the directly attached networks"
);

const SEND_AFTER_HELP: &str = "\
Patterns, the first that matches decides: *.o at any depth, /tmp only at the top
of what is sent, cache/ only directories, a/*/b below any directory, /a/** all
below a; * and ? match no slash, ** does. Only C files, in all directories:
  blast send --include '*/' --include '*.c' --exclude '*' SRC HOST";

const RECV_HELP: &str = help!(
    "  DEST  Where it goes: a directory, empty or not there yet (a final slash asks
        for one), a file not there yet, a block device that nobody uses, or - for
        standard output"
);

const LINKS_HELP: &str = help!(
    "  HOST[:PORT]  The machine where 'blast recv' waits, to measure the links to it;
               it receives nothing and goes on waiting"
);

const VERIFY_HELP: &str = help!("  DIR  The directory that the manifest's paths are in");

const KEYGEN_HELP: &str =
    help!("  FILE  Where it goes; what is there is never replaced (default: ~/.config/blast/key)");

/// Move a tree or a stream between two machines over every cable they share, verified.
#[derive(Parser)]
#[command(name = "blast", version, disable_help_subcommand = true, after_help = AFTER_HELP)]
pub struct Typed {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Send files, directories or standard input to a machine where 'blast recv' runs
    #[command(override_usage = "blast send [OPTIONS] SRC... HOST[:PORT]", help_template = SEND_HELP, after_help = SEND_AFTER_HELP)]
    Send(SendTyped),
    /// Receive what 'blast send' sends
    #[command(override_usage = "blast recv [OPTIONS] DEST", help_template = RECV_HELP)]
    Recv(RecvTyped),
    /// Show which links there are and, with a waiting 'blast recv', measure them
    #[command(override_usage = "blast links [OPTIONS] [HOST[:PORT]]", help_template = LINKS_HELP)]
    Links(LinksTyped),
    /// Read files again from the disk and compare them with a manifest, ours or b3sum's
    #[command(override_usage = "blast verify [OPTIONS] DIR --manifest FILE", help_template = VERIFY_HELP)]
    Verify(VerifyTyped),
    /// Make a key, which both machines then need
    #[command(override_usage = "blast keygen [FILE]", help_template = KEYGEN_HELP)]
    Keygen(KeygenTyped),
}

#[derive(Args)]
pub struct SendTyped {
    #[arg(hide = true, num_args = 0..)]
    pub operands: Vec<OsString>,
    /// In place of SRC: run this in a shell and send what it writes; its failure is the transfer's
    #[arg(long, value_name = "COMMAND")]
    pub run: Option<OsString>,
    /// Use this interface, own address or address of the receiver, or leave an interface out; repeat for more (default:
    /// find all shared networks)
    #[arg(long = "link", value_name = "IFACE|ADDR|IFACE=ADDR|!IFACE", value_parser = link)]
    pub links: Vec<LinkSpec>,
    /// With auto: take only the receiver that shows this code, and do not ask
    #[arg(long, value_name = "CODE", value_parser = code)]
    pub code: Option<InstanceCode>,
    /// Connections on each link, or as many as measuring finds to pay (default: auto)
    #[arg(long, value_name = "auto|N", value_parser = streams)]
    pub streams: Option<Streams>,
    /// Compress what shrinks: while it makes the transfer faster, never, or always at a zstd level of -7 to 22
    /// (default: auto)
    #[arg(long, value_name = "auto|off|LEVEL", allow_negative_numbers = true, value_parser = compress)]
    pub compress: Option<Compress>,
    /// Leave out what matches; of --exclude and --include the first that matches decides
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<OsString>,
    /// Send what matches, although a later --exclude matches too
    #[arg(long, value_name = "PATTERN")]
    pub include: Vec<OsString>,
    /// Leave out what the patterns in FILE match, one a line; '+ PATTERN' includes, # begins a comment
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,
    /// Enter no other file systems: where one is mounted, send the empty directory
    #[arg(long, short = 'x')]
    pub one_file_system: bool,
    /// Of directories with a CACHEDIR.TAG send only the tag, as GNU tar does
    #[arg(long)]
    pub exclude_caches: bool,
    /// Of SRC, a directory, send only what FILE (or - for standard input) names, one a line, directories whole
    #[arg(long, value_name = "FILE")]
    pub files_from: Option<PathBuf>,
    /// Names in FILE end with a NUL, as find -print0 writes them
    #[arg(long, short = '0', requires = "files_from")]
    pub null: bool,
    /// Say what would be sent and what left out (with -v by name), and send nothing; HOST is not asked, and need not be
    /// there if there is one SRC
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    /// How chunks are spread over links: each takes the next when it has room, or strict rotation
    #[arg(
        long,
        value_name = "pull|rr",
        default_value = "pull",
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub schedule: ScheduleTyped,
    /// Send no more than this a second in all, or with IFACE= on that link; repeat for more. 100 and 100K are KiB,
    /// 1.5M, 1MB, 80mbit (default: 0, no limit)
    #[arg(long = "bwlimit", value_name = "[IFACE=]RATE", value_parser = bwlimit)]
    pub bwlimits: Vec<BwlimitTyped>,
    /// Do not look for holes in files: read them and send them as the zeros that they read as
    #[arg(long)]
    pub no_sparse: bool,
    #[command(flatten)]
    pub common: CommonTyped,
}

#[derive(Args)]
pub struct RecvTyped {
    #[arg(hide = true, num_args = 0..)]
    pub operands: Vec<OsString>,
    /// In place of DEST: run this in a shell and let it read what arrives; its failure is the transfer's
    #[arg(long, value_name = "COMMAND")]
    pub run: Option<OsString>,
    /// Listen at this address, or on this interface, only (default: at all, IPv4 and IPv6)
    #[arg(long, alias = "listen", value_name = "ADDR|IFACE[:PORT]", value_parser = bind)]
    pub bind: Option<(Bind, Option<u16>)>,
    /// Listen on this port; 0 takes a free one and prints it (default: 7411)
    #[arg(long, short, value_name = "PORT")]
    pub port: Option<u16>,
    /// Do not answer 'blast send SRC... auto'; a sender must name this machine
    #[arg(long)]
    pub hidden: bool,
    /// Take senders from this network too (default: this machine's own networks; with a key, any); repeat for more
    #[arg(long = "from", value_name = "CIDR|any", value_parser = from)]
    pub from: Vec<From>,
    /// Do not write zeros: in one file leave holes in their place, on a block device let the device zero itself there
    #[arg(long)]
    pub sparse: bool,
    /// Let pass what is refused or withheld otherwise: suid (setuid and setgid bits), devices, caps (file
    /// capabilities), trusted (those attributes), labels (of SELinux and the like), shared (as root, a destination that
    /// everybody can write to)
    #[arg(long, value_name = "WORD[,WORD...]", value_parser = allow)]
    pub allow: Option<Allow>,
    /// Read back from the disk all that was written, and compare, before it counts as received
    #[arg(long)]
    pub verify: bool,
    /// Give everything to whoever has its owner's name here, and not the number; what nobody has keeps its number
    #[arg(long)]
    pub by_name: bool,
    /// Give what is FROM's to TO, the first that matches: numbers, FROM also LOW-HIGH, * or a name of the sender's, TO
    /// also a name here
    #[arg(long, value_name = "FROM:TO[,FROM:TO...]", value_parser = id_rules)]
    pub owner_map: Vec<IdRules>,
    /// The same for groups
    #[arg(long, value_name = "FROM:TO[,FROM:TO...]", value_parser = id_rules)]
    pub group_map: Vec<IdRules>,
    #[command(flatten)]
    pub common: CommonTyped,
}

#[derive(Args)]
pub struct LinksTyped {
    #[arg(hide = true, num_args = 0..)]
    pub operands: Vec<OsString>,
    /// Look at these links only, or leave an interface out; as for send
    #[arg(long = "link", value_name = "IFACE|ADDR|IFACE=ADDR|!IFACE", value_parser = link)]
    pub links: Vec<LinkSpec>,
    /// Say how long this much would take: bytes, or 500G, 8T
    #[arg(long = "for", value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Measure each link, and all together, for this long (default: 2s)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub time: Option<Duration>,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub trust: TrustTyped,
}

/// Who the other side must be.
#[derive(Args)]
pub struct TrustTyped {
    /// Talk only to whoever has this key too, made by 'blast keygen'; none is without a key (default: BLAST_KEY_FILE,
    /// or ~/.config/blast/key if it is there)
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Do not encrypt; give it to both sides. Nobody can change anything unnoticed, but anybody on the way can read it
    #[arg(long)]
    pub no_encrypt: bool,
}

#[derive(Args)]
pub struct KeygenTyped {
    #[arg(hide = true, num_args = 0..)]
    pub operands: Vec<OsString>,
}

#[derive(Args)]
pub struct VerifyTyped {
    #[arg(hide = true, num_args = 0..)]
    pub operands: Vec<OsString>,
    /// What the files should be: written by --manifest of send or recv, or by b3sum
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Print what differs only
    #[arg(long, short, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print files that the manifest does not name as well
    #[arg(long, short)]
    pub verbose: bool,
}

#[derive(Args)]
pub struct CommonTyped {
    #[command(flatten)]
    pub trust: TrustTyped,
    /// Give up when every link has been silent for this long: seconds, or 90s, 10m, 2h (default: 10m)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// Memory for chunks on this side: bytes, or 64M, 1G (default: what it takes, 256M at most)
    #[arg(long, value_name = "SIZE", value_parser = window)]
    pub window: Option<u32>,
    /// TCP congestion control on this side: bbr, cubic, reno or what else the kernel has (default: the system's)
    #[arg(long, value_name = "NAME", value_parser = congestion)]
    pub congestion: Option<String>,
    /// Mark this side's packets: 0 to 63, or cs0 to cs7, af11 to af43, ef, le
    #[arg(long, value_name = "VALUE", value_parser = dscp)]
    pub dscp: Option<u8>,
    /// Leave extended attributes out, file capabilities among them
    #[arg(long)]
    pub no_xattrs: bool,
    /// Leave access control lists out
    #[arg(long)]
    pub no_acls: bool,
    /// Write the BLAKE3 of every file to FILE, as b3sum does (for b3sum --check)
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Print the report, or the error, as one JSON object instead
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long, short, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print every link and every note as well
    #[arg(long, short)]
    pub verbose: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum ScheduleTyped {
    Pull,
    Rr,
}
