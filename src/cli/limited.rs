//! What limited a run, in words.

use crate::error::escape;
use crate::report::{End, Limit, Limited};
use crate::stats::Stage;

/// Links named in the line that says what limited a run.
const LIMITS_NAMED: usize = 4;

/// What limited a run, and how much of the time.
pub fn line(limited: &Limited) -> String {
    let percent = format!("{:.0} %", limited.share * 100.0);
    match &limited.by {
        Limit::TooShort => "nothing: too short to tell".to_owned(),
        Limit::NoneAlone(None) => "nothing that was measured".to_owned(),
        Limit::NoneAlone(Some(most)) => format!("nothing alone; used most: {}, {percent}", name(most)),
        Limit::Links(_) | Limit::Bwlimit | Limit::Cpu(..) | Limit::Others(_) => {
            format!("{}, {percent} used", name(&limited.by))
        }
        Limit::Producer | Limit::Consumer | Limit::Sender | Limit::RoundTrip => {
            format!("{}, waited for {percent} of the time", name(&limited.by))
        }
        Limit::Sync => format!("{}, {percent} of the time", name(&limited.by)),
        Limit::Walk | Limit::Reads | Limit::Unpack | Limit::Writes => format!("{}, {percent} busy", name(&limited.by)),
    }
}

/// What a limit is called.
pub fn name(limit: &Limit) -> String {
    let said = match limit {
        Limit::Links(names) => {
            let named: Vec<String> = names.iter().take(LIMITS_NAMED).map(|n| escape(n.as_bytes())).collect();
            let more = match names.len().saturating_sub(LIMITS_NAMED) {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            return format!("link {}{more}", named.join("+"));
        }
        Limit::Cpu(end, stage) => return format!("CPU: {} on the {}", work(*stage), end_name(*end)),
        Limit::Others(end) => return format!("CPU: other programs on the {}", end_name(*end)),
        Limit::Bwlimit => "--bwlimit",
        Limit::Producer => "the producer (standard input or --run)",
        Limit::Consumer => "the consumer (standard output or --run)",
        Limit::Walk => "sender's walk of the tree",
        Limit::Reads => "sender's reads (disk)",
        Limit::Unpack => "receiver's unpacking (directories)",
        Limit::Writes => "receiver's writes (disk)",
        Limit::Sync => "receiver's sync (disk)",
        Limit::RoundTrip => "round trip (a larger --window on both sides helps)",
        Limit::Sender => "the sender (its report says by what)",
        Limit::NoneAlone(_) => "nothing alone",
        Limit::TooShort => "nothing: too short to tell",
    };
    said.to_owned()
}

fn end_name(end: End) -> &'static str {
    match end {
        End::Sender => "sender",
        End::Receiver => "receiver",
    }
}

/// What a stage does, for who asks where the CPU goes.
fn work(stage: Stage) -> &'static str {
    match stage {
        Stage::Input | Stage::Fill => "reading",
        Stage::Source => "walking the tree",
        Stage::Hash | Stage::Verify => "hashing",
        Stage::Compress => "compressing",
        Stage::Send => "sending",
        Stage::Receive => "receiving",
        Stage::Decompress => "decompressing",
        Stage::Unpack => "unpacking",
        Stage::Write | Stage::Output => "writing",
        Stage::Sync => "syncing",
        Stage::Process | Stage::Machine => "everything",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_one_line_that_names_it() {
        let of = |by, share| line(&Limited { by, share });
        let links = |n: usize| Limit::Links((1..=n).map(|i| format!("eth{i}")).collect());
        assert_eq!(of(links(2), 0.991), "link eth1+eth2, 99 % used");
        assert_eq!(of(links(9), 1.0), "link eth1+eth2+eth3+eth4 and 5 more, 100 % used");
        assert_eq!(of(Limit::Links(vec!["a\x1b\n".into()]), 0.9), "link a\\x1b\\n, 90 % used");
        assert_eq!(of(Limit::Bwlimit, 0.98), "--bwlimit, 98 % used");
        assert_eq!(of(Limit::Writes, 0.97), "receiver's writes (disk), 97 % busy");
        assert_eq!(of(Limit::Producer, 0.9), "the producer (standard input or --run), waited for 90 % of the time");
        assert_eq!(of(Limit::Sync, 0.6), "receiver's sync (disk), 60 % of the time");
        assert_eq!(of(Limit::Cpu(End::Sender, Stage::Hash), 0.98), "CPU: hashing on the sender, 98 % used");
        assert_eq!(of(Limit::TooShort, 0.0), "nothing: too short to tell");
        let alone = Limit::NoneAlone(Some(Box::new(Limit::Reads)));
        assert_eq!(of(alone, 0.7), "nothing alone; used most: sender's reads (disk), 70 %");
        assert_eq!(of(Limit::NoneAlone(None), 0.0), "nothing that was measured");
    }
}
