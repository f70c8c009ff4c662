//! Who may talk to whom: keys on both sides, on one, different ones; encryption wanted by one side only; senders from
//! elsewhere. Whoever must not is told why, on both sides and at once, and the receiver goes on waiting.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use blast::wire::{Handshake, Layout, PREFIX_LEN, PUBLISHED_KEY, decode_handshake, decode_handshake_prefix};

use crate::ends::{BLAST, Outcome, PATIENCE, Run, recv, scratch, send};
use crate::first;
use crate::hosts::{Host, Lab, until};
use crate::trees::{assert_same, small, write};

/// From the sender's start to its end, on a machine that may be busy: the program itself says at once.
const AT_ONCE: Duration = Duration::from_secs(3);

fn keygen(path: &Path) -> Outcome {
    Run::of("keygen", Command::new(BLAST), &["keygen"]).last(path).outcome()
}

/// A new key's file.
fn key(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    keygen(&path).expect(0);
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn keygen_makes_a_private_file_says_what_to_do_and_never_replaces_or_shows_a_key() {
    let dir = scratch();
    let path = dir.path().join("new/key");
    let made = keygen(&path);
    made.expect(0).tells(&format!("a new key is in {}", path.display())).tells("scp -p").tells("--key-file");
    let content = fs::read_to_string(&path).unwrap();
    let secret = content.trim().split(':').nth(1).unwrap();
    assert_eq!(secret.len(), 64);
    assert!(!made.report().contains(&secret[..8]) && !made.err.contains(&secret[..8]), "{made:?}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let again = keygen(&path);
    again.expect(3).claims_nothing().tells("is there already");
    assert_eq!(fs::read_to_string(&path).unwrap(), content);
    // without a name: where it is found by itself
    let home = dir.path().join("home");
    let mut command = Command::new("env");
    command.arg(format!("HOME={}", home.display())).arg(BLAST);
    Run::of("keygen", command, &["keygen"]).outcome().expect(0).tells("here by itself");
    assert_eq!(fs::metadata(home.join(".config/blast")).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(home.join(".config/blast/key").exists());
}

/// What a receiver may be started with, who then must not talk to it, and who may.
struct Row {
    receiver: &'static [&'static str],
    wrong: &'static [(&'static [&'static str], &'static str)],
    right: &'static [&'static str],
}

const MISSING_HERE: &str = "the sender has a key and the receiver has none";
const MISSING_THERE: &str = "the receiver has a key and the sender has none";

/// `K` and `L` stand for `--key-file` and the files of two keys.
const ROWS: &[Row] = &[
    Row {
        receiver: &["K"],
        wrong: &[
            (&[], MISSING_THERE),
            (&["L"], "the two sides have different keys"),
            (&["K", "--no-encrypt"], "the sender has --no-encrypt and the receiver has not"),
            (&["L", "--no-encrypt"], "the two sides have different keys"),
        ],
        right: &["K"],
    },
    Row {
        receiver: &[],
        wrong: &[
            (&["K"], MISSING_HERE),
            (&["--no-encrypt"], "the sender has --no-encrypt and the receiver has not"),
            (&["K", "--no-encrypt"], MISSING_HERE),
        ],
        right: &[],
    },
    Row {
        receiver: &["K", "--no-encrypt"],
        wrong: &[
            (&["K"], "the receiver has --no-encrypt and the sender has not"),
            (&["L", "--no-encrypt"], "the two sides have different keys"),
            (&["--no-encrypt"], MISSING_THERE),
        ],
        right: &["K", "--no-encrypt"],
    },
    Row {
        receiver: &["--no-encrypt"],
        wrong: &[(&[], "the receiver has --no-encrypt and the sender has not"), (&["K", "--no-encrypt"], MISSING_HERE)],
        right: &["--no-encrypt"],
    },
];

#[test]
fn whoever_must_not_talk_to_a_receiver_is_told_why_on_both_sides_and_it_goes_on_waiting() {
    let dir = scratch();
    let keys = [key(dir.path(), "k"), key(dir.path(), "l")];
    let source = dir.path().join("s");
    small(&source, 1);
    let given = |run: Run, words: &[&str]| {
        words.iter().fold(run, |run, word| match *word {
            "K" => run.args(&["--key-file", text(&keys[0])]),
            "L" => run.args(&["--key-file", text(&keys[1])]),
            word => run.args(&[word]),
        })
    };
    for (n, row) in ROWS.iter().enumerate() {
        let dest = dir.path().join(format!("d{n}"));
        let receiver = given(recv(&dest), row.receiver).start();
        let port = receiver.port();
        for (wrong, words) in row.wrong {
            let sender = given(send(&source, port), wrong).outcome();
            sender.expect(3).claims_nothing().tells(words);
            assert!(sender.took < AT_ONCE, "{sender:?}");
            receiver.says(&format!("refused a sender at 127.0.0.1: {words}"));
            assert!(!dest.exists(), "nothing was created for it");
        }
        let sender = given(send(&source, port), row.right).outcome();
        let receiver = receiver.wait();
        sender.expect(0);
        receiver.expect(0);
        let plain = row.receiver.contains(&"--no-encrypt");
        let keyed = row.receiver.contains(&"K");
        for end in [&sender, &receiver] {
            assert_eq!(end.err.contains("nothing is encrypted"), plain, "{end:?}");
            assert_eq!(end.err.contains(", code "), !keyed, "{end:?}");
        }
        assert_eq!(receiver.err.matches("'blast keygen' makes a key").count(), usize::from(!keyed), "{receiver:?}");
        assert_same(&dest, &source);
    }
}

/// The code in what somebody said.
fn code(said: &str) -> &str {
    said.split(", code ").nth(1).unwrap_or_else(|| panic!("no code in: {said}")).split_whitespace().next().unwrap()
}

#[test]
fn without_a_key_both_sides_show_the_same_code_and_another_one_each_time() {
    let dir = scratch();
    write(dir.path().join("f"), b"x");
    let shown = || {
        let receiver = recv("-").args(&["--json"]).start();
        let sender = send(dir.path().join("f"), receiver.port()).args(&["--json"]).outcome();
        let receiver = receiver.wait();
        sender.expect(0);
        receiver.expect(0);
        assert_eq!(code(&sender.err), code(&receiver.err), "{sender:?}\n{receiver:?}");
        assert_eq!(code(&sender.err).len(), 9, "{sender:?}");
        let told = format!("\"authenticated\":false,\"cipher\":\"{}\",\"session_code\":\"{}\"", "C", code(&sender.err));
        let told = told.split("\"C\"").nth(1).unwrap();
        sender.tells(told);
        receiver.tells(told);
        code(&sender.err).to_owned()
    };
    assert_ne!(shown(), shown());
}

#[test]
fn a_key_is_found_by_itself_and_by_the_environment_and_both_ends_are_authenticated() {
    let dir = scratch();
    let home = dir.path().join("home");
    let usual = home.join(".config/blast/key");
    key(dir.path(), "home/.config/blast/key");
    fs::copy(&usual, dir.path().join("copy")).unwrap();
    fs::set_permissions(dir.path().join("copy"), fs::Permissions::from_mode(0o600)).unwrap();
    write(dir.path().join("f"), b"x");
    let with = |side, set: String, args: &[&str]| {
        let mut command = Command::new("env");
        command.arg(set).arg(BLAST);
        Run::of(side, command, args)
    };
    let receiver = with("recv", format!("HOME={}", home.display()), &["recv", "--port", "0", "--json", "-"]).start();
    let target = format!("127.0.0.1:{}", receiver.port());
    let set = format!("BLAST_KEY_FILE={}", dir.path().join("copy").display());
    let sender = with("send", set, &["send", "--json"]).last(dir.path().join("f")).last(target).outcome();
    sender.expect(0).tells("\"authenticated\":true").tells("\"session_code\":null");
    let receiver = receiver.wait();
    receiver.expect(0).tells("\"authenticated\":true");
    assert!(!receiver.err.contains("keygen"), "{receiver:?}");
}

#[test]
fn a_key_that_cannot_be_used_ends_either_side_before_anything_else() {
    let dir = scratch();
    let path = key(dir.path(), "k");
    write(dir.path().join("f"), b"x");
    let both = |path: &Path, code: i32, words: &str| {
        let recv = recv(dir.path().join("d")).args(&["--key-file", text(path)]).outcome();
        let send = send(dir.path().join("f"), 9).args(&["--key-file", text(path)]).outcome();
        for end in [recv, send] {
            end.expect(code).claims_nothing().tells(words);
            assert!(!end.err.contains("listening"), "{end:?}");
        }
    };
    both(&dir.path().join("missing"), 2, "No such file");
    both(dir.path(), 2, "no regular file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    both(&path, 3, "others may use it (mode 640)");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let content = fs::read(&path).unwrap();
    fs::write(&path, &content[..40]).unwrap();
    both(&path, 2, "cut short");
    fs::write(&path, b"something else").unwrap();
    both(&path, 2, "no key made by 'blast keygen'");
}

/// What anybody on this machine may see of a process or, of an own one, whoever has its user: command line,
/// environment.
fn shown(id: u32) -> Vec<u8> {
    ["cmdline", "environ"].iter().flat_map(|what| fs::read(format!("/proc/{id}/{what}")).unwrap_or_default()).collect()
}

/// A process and all that it has started.
fn family(id: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let threads = fs::read_dir(format!("/proc/{id}/task"))
        .into_iter()
        .flatten()
        .filter_map(|t| t.ok()?.file_name().into_string().ok());
    let others = threads.filter_map(|t| fs::read_to_string(format!("/proc/{id}/task/{t}/children")).ok());
    let all: String = std::iter::once(children).chain(others).collect();
    let mut found: Vec<u32> = all.split_whitespace().filter_map(|n| n.parse().ok()).flat_map(family).collect();
    found.push(id);
    found
}

/// CVE-2023-43621: the secret stood on the command line, where everybody on the machine reads it.
#[test]
fn cve_2023_43621_no_secret_is_in_the_arguments_or_the_environment_of_any_process() {
    let dir = scratch();
    let path = key(dir.path(), "k");
    let content = fs::read_to_string(&path).unwrap();
    let secret = content.trim().split(':').nth(1).unwrap();
    for keys in [&["--key-file", text(&path)][..], &[]] {
        let out = dir.path().join(format!("out{}", keys.len()));
        // commands inherit what their parents have
        let receiver = recv_run(&format!("cat > '{}'", out.display())).args(keys).start();
        let port = receiver.port();
        let (go, there) = (dir.path().join(format!("go{}", keys.len())), crate::ends::address(port));
        Command::new("mkfifo").arg(&go).status().unwrap();
        let sender = Run::of("send", Command::new(BLAST), &["send", "--run", &format!("cat '{}'", go.display())]);
        let sender = sender.args(keys).last(there).start();
        receiver.says("connected with");
        sender.says("connected with");
        let mut secrets = vec![secret.to_owned(), secret[..16].to_owned()];
        if keys.is_empty() {
            // both sides show it, on their own standard error only
            secrets.push(code(&sender.said()).to_owned());
        }
        // a process that is just beginning, or has just ended, has nothing to show
        let processes = || -> Vec<Vec<u8>> {
            let all = [&sender, &receiver].into_iter().flat_map(|end| family(end.id())).map(shown);
            all.filter(|shown| !shown.is_empty()).collect()
        };
        until("both ends and their commands run", || processes().len() >= 4);
        for shown in processes() {
            for secret in &secrets {
                let text = String::from_utf8_lossy(&shown);
                assert!(!text.contains(secret.as_str()), "a secret is shown: {text}");
            }
        }
        fs::write(&go, b"content").unwrap();
        sender.wait().expect(0);
        receiver.wait().expect(0);
        assert_eq!(fs::read(&out).unwrap(), b"content");
    }
    // and there is no way to give one there
    write(dir.path().join("f"), b"x");
    for option in ["--key", "--secret", "--password"] {
        let sender = send(dir.path().join("f"), 9).args(&[option, secret]).outcome();
        sender.expect(2).claims_nothing();
        assert!(!sender.err.contains(secret), "it is not repeated either: {sender:?}");
    }
}

fn recv_run(command: &str) -> Run {
    Run::of("recv", Command::new(BLAST), &["recv", "--port", "0", "--run", command])
}

#[test]
fn a_process_with_a_key_leaves_no_core_file() {
    let dir = scratch();
    let path = key(dir.path(), "k");
    let receiver = recv("-").args(&["--key-file", text(&path)]).start();
    receiver.port();
    let limits = fs::read_to_string(format!("/proc/{}/limits", receiver.id())).unwrap();
    let core = limits.lines().find(|l| l.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
}

/// A receiver that has no key, or another one, and welcomes nevertheless: what a man in the middle would do.
#[test]
fn a_sender_with_a_key_sends_nothing_to_a_receiver_that_does_not_prove_it() {
    let dir = scratch();
    let path = key(dir.path(), "k");
    write(dir.path().join("f"), b"the content");
    for (proof, words) in [(None, MISSING_HERE), (Some([7; 32]), "the two sides have different keys")] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            first::receive(&mut stream, |session| {
                let welcome = Handshake::Welcome {
                    session,
                    layout: Layout::Raw,
                    owner_names: false,
                    cipher: Some(blast::wire::Cipher::ChaCha20Poly1305),
                    proof,
                    window_chunks: 4,
                    addresses: Vec::new(),
                };
                first::encoded(&welcome)
            });
            let mut more = Vec::new();
            let _ = stream.read_to_end(&mut more);
            more
        });
        let sender = send(dir.path().join("f"), port).args(&["--key-file", text(&path)]).outcome();
        sender.expect(3).claims_nothing().tells(words);
        assert_eq!(server.join().unwrap(), b"", "not a byte after its Hello");
    }
}

#[test]
fn a_greeting_in_plain_is_answered_in_words_that_every_version_understands() {
    let dir = scratch();
    write(dir.path().join("f"), b"x");
    let receiver = recv("-").start();
    let port = receiver.port();
    // the first version's Hello, and this one's
    let mut old = b"blast\r\n\0\x01\0\x01\0\x11\0\0\0".to_vec();
    old.extend([7; 16 + 1 + 16]);
    let new = first::hello(blast::ids::SessionId([7; 16]), blast::wire::Offer::Stream);
    for (hello, words) in [(old, "version 1 of blast's protocol"), (new, "does not encrypt its greeting")] {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&hello).unwrap();
        let mut answer = vec![0; PREFIX_LEN];
        stream.read_exact(&mut answer).unwrap();
        let prefix = decode_handshake_prefix(answer[..].try_into().unwrap()).unwrap();
        let mut rest = vec![0; prefix.rest_len()];
        stream.read_exact(&mut rest).unwrap();
        let message = decode_handshake(&prefix, &rest, |_| Some(PUBLISHED_KEY)).unwrap();
        let Handshake::Refuse { code, reason } = message else { panic!("{message:?}") };
        assert_eq!(code, blast::ExitCode::Refused);
        assert!(reason.contains(words), "{reason}");
        receiver.says(words);
    }
    send(dir.path().join("f"), port).outcome().expect(0);
    receiver.wait().expect(0);
}

#[test]
fn without_a_key_a_sender_from_another_network_is_refused_unless_it_is_named() {
    let Some(lab) = Lab::up(&["1gbit"]) else { return };
    let dir = scratch();
    let path = key(dir.path(), "k");
    write(dir.path().join("f"), b"x");
    // an address of the sender's that is on none of the receiver's networks, as behind a router
    lab.on(Host::A, "ip addr add 10.99.0.1/32 dev lo");
    lab.on(Host::A, "ip route replace 10.77.1.0/24 dev l1 src 10.99.0.1");
    lab.on(Host::B, "ip route add 10.99.0.1/32 via 10.77.1.1");
    let file = dir.path().join("f");
    let send = |args: &[&str]| lab.blast(Host::A, &["send"]).args(args).last(&file).last("10.77.1.2").outcome();
    let receiver = lab.blast(Host::B, &["recv", "-"]).start();
    receiver.port();
    let far = send(&[]);
    far.expect(3).claims_nothing().tells("--from 10.99.0.1");
    receiver.says("refused a sender at 10.99.0.1: the receiver takes senders from its own networks");
    let near = send(&["--link", "10.77.1.1"]);
    near.expect(0);
    receiver.wait().expect(0);
    for (receiver, sender) in [
        (&["--from", "10.99.0.0/24"][..], &[][..]),
        (&["--from", "any"], &[]),
        (&["--key-file", text(&path)], &["--key-file", text(&path)]),
    ] {
        let receiver = lab.blast(Host::B, &["recv"]).args(receiver).last("-").start();
        receiver.port();
        send(sender).expect(0);
        receiver.wait().expect(0);
    }
}
