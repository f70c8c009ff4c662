//! Every frame and handshake message, written out in bytes: what is sent, and that it is understood. If one of these
//! fails, two builds of this version can no longer talk to each other: change the version, not the bytes.
//!
//! A line is bytes in hex and, after a bar, what they mean.

use std::time::Duration;

use blast::error::ExitCode;
use blast::ids::{Digest, InstanceId, LinkId, Seq, SessionId};
use blast::report::{Note, NoteKind};
use blast::stats::{Stage, StageTimes};
use blast::wire::*;

const SESSION: SessionId = SessionId(*b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f");
const NONCE: [u8; 16] =
    [0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf];

fn keys() -> SessionKeys {
    SessionKeys::new(*b"a secret that only two ends have", None)
}

/// For the first frame that the sender sends on its first connection.
fn key() -> FrameKey {
    keys().dialer(LinkId(0), FIRST_NONCES).out
}

fn bytes(golden: &str) -> Vec<u8> {
    let hex: String = golden.lines().flat_map(|line| line.split('|').next()).flat_map(str::split_whitespace).collect();
    assert!(hex.len().is_multiple_of(2), "an odd number of digits");
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn chunk_golden(head: ChunkHead, golden: &str) {
    let golden = bytes(golden);
    assert_eq!(hex(&encode_chunk_header(&head, &key())), hex(&golden), "{head:?}");
    let header = golden[..].try_into().expect("a header");
    assert_eq!(decode_header(header, &mut key()), Ok(Header::Chunk(head)));
}

fn control_golden(frame: Control, golden: &str) {
    let golden = bytes(golden);
    let mut encoded = Vec::new();
    encode_control(&frame, &mut key(), &mut encoded);
    assert_eq!(hex(&encoded), hex(&golden), "{frame:?}");
    let (header, payload) = golden.split_first_chunk().expect("a header");
    let Ok(Header::Control(header)) = decode_header(header, &mut key()) else { panic!("not a control frame") };
    assert_eq!(header.payload_len(), payload.len());
    assert_eq!(decode_control(&header, &mut payload.to_vec(), &key()), Ok(frame));
}

fn handshake_golden(message: Handshake, golden: &str) {
    let golden = bytes(golden);
    let mut encoded = Vec::new();
    encode_handshake(&message, &keys().joins(), &mut encoded);
    assert_eq!(hex(&encoded), hex(&golden), "{message:?}");
    let (prefix, rest) = golden.split_first_chunk().expect("a prefix");
    let prefix = decode_handshake_prefix(prefix).expect("ours");
    assert_eq!(prefix.rest_len(), rest.len());
    assert_eq!(decode_handshake(&prefix, rest, |_| Some(keys().joins())), Ok(message));
}

/// 32 bytes that count from this one.
const fn counting(from: u8) -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = from + i as u8;
        i += 1;
    }
    bytes
}

const PROOF: [u8; 32] = counting(0xe0);

fn terms(plain: bool, aes: bool, proof: Option<[u8; 32]>) -> Terms {
    Terms { nonce: counting(0xc0), proof, plain, aes }
}

fn addresses() -> Vec<Address> {
    vec![
        Address { interface: "eth0".to_owned(), addr: "10.0.0.2:7411".parse().unwrap(), prefix: 24, speed_mbit: 1000 },
        Address {
            interface: "enp129s0f1np1-x".to_owned(),
            addr: "[fe80::1:2ff:fe03:405]:7411".parse().unwrap(),
            prefix: 64,
            speed_mbit: 100_000,
        },
    ]
}

fn notes() -> Vec<Note> {
    vec![
        Note { kind: NoteKind::Vanished, path: b"a/\xff".to_vec(), detail: String::new() },
        Note { kind: NoteKind::ReadError, path: Vec::new(), detail: "é".to_owned() },
    ]
}

#[test]
fn mixed_chunk() {
    let head = ChunkHead {
        seq: Seq(0x0102_0304_0506_0708),
        kind: ChunkKind::Mixed,
        content_len: 0x000f_fe00,
        payload_len: 0x000f_fe00,
        codec: None,
        digest: Digest([0xd1; 32]),
        seal: [0; 16],
    };
    chunk_golden(
        head,
        "9c1ec3211a59d03149a76f83e039baf2 | tag
         01 00 0000 | kind, flags, reserved
         00fe0f00 | payload length
         0807060504030201 | sequence number
         0000000000000000 | offset
         00fe0f00 | content length
         00000000 | reserved
         d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1 d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1 | digest of the content
         00000000000000000000000000000000 | seal",
    );
}

#[test]
fn data_chunk_compressed() {
    let head = ChunkHead {
        seq: Seq(9),
        kind: ChunkKind::Data { offset: 5 << 20, sole: false },
        content_len: 1 << 20,
        payload_len: 0x1234,
        codec: Some(Codec::Zstd),
        digest: Digest([0xd2; 32]),
        seal: [0; 16],
    };
    chunk_golden(
        head,
        "433fe799eb346a33725356a7716dbac1 | tag
         01 0a 0000 | kind, flags DATA and ZSTD, reserved
         34120000 | payload length
         0900000000000000 | sequence number
         0000500000000000 | offset
         00001000 | content length
         00000000 | reserved
         d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2 d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2d2 | digest of the content
         00000000000000000000000000000000 | seal",
    );
}

#[test]
fn mixed_chunk_compressed_with_bzip2() {
    let head = ChunkHead {
        seq: Seq(10),
        kind: ChunkKind::Mixed,
        content_len: 1 << 20,
        payload_len: 0x1234,
        codec: Some(Codec::Bzip2),
        digest: Digest([0xd4; 32]),
        seal: [0; 16],
    };
    chunk_golden(
        head,
        "a1e43e421fe21cb41775c5d7dc8738a6 | tag
         01 10 0000 | kind, flag BZIP2, reserved
         34120000 | payload length
         0a00000000000000 | sequence number
         0000000000000000 | offset
         00001000 | content length
         00000000 | reserved
         d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 | digest of the content
         00000000000000000000000000000000 | seal",
    );
}

#[test]
fn data_chunk_that_is_the_only_slice() {
    let head = ChunkHead {
        seq: Seq(0),
        kind: ChunkKind::Data { offset: 0, sole: true },
        content_len: 1,
        payload_len: 1,
        codec: None,
        digest: Digest([0xd3; 32]),
        seal: [0; 16],
    };
    chunk_golden(
        head,
        "13db6f71d55ef968420c7d8e7e2d0031 | tag
         01 06 0000 | kind, flags DATA and SOLE, reserved
         01000000 | payload length
         0000000000000000 | sequence number
         0000000000000000 | offset
         01000000 | content length
         00000000 | reserved
         d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3 d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3 | digest of the content
         00000000000000000000000000000000 | seal",
    );
}

#[test]
fn ack() {
    let mut bitmap = [0; 16];
    bitmap[0] = 0b110;
    bitmap[15] = 1 << 63;
    let links = [(LinkId(0), 0x0a0b), (LinkId(0x0102_0304), 7)].into_iter().collect();
    let frame = Ack { next: 0x1122, bitmap, credit_limit: 0x3344, durable: 0x5566, notes: 0x7788, links };
    control_golden(
        Control::Ack(frame),
        "32ded3f3bc253014c07fe3c584c3aa98 | tag
         02 00 0000 ba000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         e1b8997aaa03312fa1041f31ecd93f13 6eddf59f9f5029e89269202a5de51ffa | digest of the payload
         00000000000000000000000000000000 | seal
         2211000000000000 | next
         4433000000000000 | credit limit
         6655000000000000 | durable mark
         8877000000000000 | notes
         0600000000000000 0000000000000000 0000000000000000 0000000000000000 | bitmap: next + 1, next + 2
         0000000000000000 0000000000000000 0000000000000000 0000000000000000
         0000000000000000 0000000000000000 0000000000000000 0000000000000000
         0000000000000000 0000000000000000 0000000000000000 0000000000000080 | next + 1023
         0200 | links
         00000000 0b0a000000000000 | link, settled
         04030201 0700000000000000",
    );
}

#[test]
fn notes_frame() {
    control_golden(
        Control::Notes { first: 0x0102, notes: notes() },
        "b14bc57d63552e78897cf153194c3a55 | tag
         03 00 0000 1b000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         cd569046489eb5359e9acca940ccc8b4 aa366a770b3edf67c173d5ac4a8f52ab | digest of the payload
         00000000000000000000000000000000 | seal
         0201000000000000 | number of the first
         0200 | notes
         01 00 0300 0000 612fff | vanished, reserved, path and detail lengths, path
         05 00 0000 0200 c3a9 | read error, reserved, path and detail lengths, detail",
    );
}

#[test]
fn ping_and_pong() {
    control_golden(
        Control::Ping(0x0102_0304_0506_0708),
        "77a5985e55bb485515e5468f5b3b3325 | tag
         04 00 0000 08000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         36fb4020ed2e7862610ad6fa3bb63301 080cbd00a3a651635b75d425a50f8d43 | digest of the payload
         00000000000000000000000000000000 | seal
         0807060504030201 | number",
    );
    control_golden(
        Control::Pong(0x0102_0304_0506_0708),
        "efd6649b8a39c10798daf7d52f314af9 | tag
         05 00 0000 08000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         36fb4020ed2e7862610ad6fa3bb63301 080cbd00a3a651635b75d425a50f8d43 | digest of the payload
         00000000000000000000000000000000 | seal
         0807060504030201 | number",
    );
}

#[test]
fn links() {
    control_golden(
        Control::Links(addresses()),
        "cb7892b46ca0c6ad63a78c27672d7012 | tag
         06 00 0000 52000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         f173f90fd4fddc22fa8dc3eefc211cb8 f6e5d6316a3e08aa70a6e340ff190063 | digest of the payload
         00000000000000000000000000000000 | seal
         0200 | addresses
         65746830000000000000000000000000 | eth0
         0a000002000000000000000000000000 f31c 04 18 e8030000 | address, port, family, prefix, speed
         656e70313239733066316e70312d7800 | enp129s0f1np1-x
         fe80000000000000000102fffe030405 f31c 06 40 a0860100 | address, port, family, prefix, speed",
    );
}

#[test]
fn finish() {
    let frame = Finish {
        chunks: 1,
        entries: 2,
        bytes: 3,
        content_bytes: 4,
        notes: 5,
        unnamed: (6, 7),
        digest: Digest([0xd4; 32]),
    };
    control_golden(
        Control::Finish(frame),
        "9bc7441592f67ac560cdfb61ca7081e0 | tag
         07 00 0000 58000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         7ff0941298b034b34dcffa82a8dde41d de12a490852cb13b4c2c3d779b60c332 | digest of the payload
         00000000000000000000000000000000 | seal
         0100000000000000 | chunks
         0200000000000000 | entries
         0300000000000000 | stream bytes
         0400000000000000 | content bytes
         0500000000000000 | notes
         0600000000000000 | unnamed losses
         0700000000000000 | unnamed harmless notes
         d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4d4 | digest of the transfer",
    );
}

fn times(stage: Stage, threads: u16, nanos: [u64; 4]) -> StageTimes {
    let [busy, wait_in, wait_out, busiest] = nanos.map(Duration::from_nanos);
    StageTimes { stage, threads, busy, wait_in, wait_out, busiest }
}

#[test]
fn commit_of_a_tree() {
    let frame = Commit {
        code: ExitCode::Partial,
        entries: 2,
        content_bytes: 3,
        digest: Digest([0xd5; 32]),
        stream_digest: None,
        totals: (4, 5),
        stages: Vec::new(),
        notes: notes(),
    };
    control_golden(
        Control::Commit(frame),
        "da476eaa480d49b12039d23218d82ece | tag
         08 00 0000 77000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         ab3562c78a96bb9ae4b7eef44ade98d7 5e1a69a39b14c210a72d4efff100fbeb | digest of the payload
         00000000000000000000000000000000 | seal
         01 00 | partial, no stream digest
         0200000000000000 | entries
         0300000000000000 | content bytes
         0400000000000000 | losses
         0500000000000000 | harmless notes
         d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5 d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5 | digest of the transfer
         00000000000000000000000000000000 00000000000000000000000000000000 | no digest of the stream
         0000 | stages
         0200 | notes
         01 00 0300 0000 612fff | vanished, reserved, path and detail lengths, path
         05 00 0000 0200 c3a9 | read error, reserved, path and detail lengths, detail",
    );
}

#[test]
fn commit_of_a_stream() {
    let frame = Commit {
        code: ExitCode::Whole,
        entries: 0,
        content_bytes: 0x0010_0000_0001,
        digest: Digest([0xd6; 32]),
        stream_digest: Some(Digest([0xd7; 32])),
        totals: (0, 0),
        stages: vec![
            times(Stage::Receive, 4, [1, 2, 3, 4]),
            times(Stage::Machine, 2, [0x0100_0000_0000, 0, 0, 0x0100_0000_0000]),
        ],
        notes: Vec::new(),
    };
    control_golden(
        Control::Commit(frame),
        "b70fb21d7d54facd14880e480fe6fa61 | tag
         08 00 0000 ae000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         0422e3055a7894d761828eb2fc743095 a43320763ed6a688ab301bd1b057ee60 | digest of the payload
         00000000000000000000000000000000 | seal
         00 01 | whole, a stream digest
         0000000000000000 | entries
         0100000010000000 | content bytes
         0000000000000000 | losses
         0000000000000000 | harmless notes
         d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6 d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6d6 | digest of the transfer
         d7d7d7d7d7d7d7d7d7d7d7d7d7d7d7d7 d7d7d7d7d7d7d7d7d7d7d7d7d7d7d7d7 | digest of the stream
         0200 | stages
         07 00 0400 0100000000000000 0200000000000000 | the links: reserved, threads, at work, waiting for input
         0300000000000000 0400000000000000 | waiting for output, the busiest thread at work
         0f 00 0200 0000000000010000 0000000000000000 | the machine
         0000000000000000 0000000000010000 | waiting for output, the busiest at work
         0000 | notes",
    );
}

#[test]
fn bye() {
    control_golden(
        Control::Bye,
        "cfc51a7f3ca2749ff349e953140d0a2b | tag
         09 00 0000 00000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         af1349b9f5f9a1a6a0404dea36dcc949 9bcb25c9adc112b7cc9a93cae41f3262 | digest of the payload
         00000000000000000000000000000000 | seal",
    );
}

#[test]
fn abort() {
    control_golden(
        Control::Abort { code: ExitCode::Destination, reason: "no space left".to_owned() },
        "f33fcce3c72cef171a068deadaf65a17 | tag
         0a 00 0000 0e000000 | kind, flags, reserved, payload length
         0000000000000000 0000000000000000 00000000 00000000 | unused
         44c59cbd37cd8f42a4446f10a08dcea3 da8e487b7e036b4011ee9df435fbcb4a | digest of the payload
         00000000000000000000000000000000 | seal
         05 | exit code
         6e6f207370616365206c656674 | reason",
    );
}

#[test]
fn hello_with_a_tree() {
    handshake_golden(
        Handshake::Hello { session: SESSION, terms: terms(true, true, Some(PROOF)), offer: Offer::Tree { sources: 3 } },
        "626c6173740d0a00 0200 01 00 5600 0000 | magic, version, kind, reserved, body length, reserved
         000102030405060708090a0b0c0d0e0f | session
         c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf | nonce
         07 | flags
         e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff | proof
         01 03000000 | tree, sources
         3df0648a80b97e002dd7957fc7eab9f3 | MAC",
    );
}

#[test]
fn hello_with_a_file() {
    handshake_golden(
        Handshake::Hello {
            session: SESSION,
            terms: terms(false, true, None),
            offer: Offer::File { name: b"disk.img\xfe".to_vec(), size: 1 << 40 },
        },
        "626c6173740d0a00 0200 01 00 6300 0000 | magic, version, kind, reserved, body length, reserved
         000102030405060708090a0b0c0d0e0f | session
         c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf | nonce
         04 | flags
         0000000000000000000000000000000000000000000000000000000000000000 | proof
         02 0000000000010000 6469736b2e696d67fe | file, size, name
         89f90bfc65fa874bf8f26e09aa4ad635 | MAC",
    );
}

#[test]
fn hello_with_a_block_device() {
    handshake_golden(
        Handshake::Hello {
            session: SESSION,
            terms: terms(false, false, None),
            offer: Offer::Device { name: b"sdb1".to_vec(), size: 70_000_128 },
        },
        "626c6173740d0a00 0200 01 00 5e00 0000 | magic, version, kind, reserved, body length, reserved
         000102030405060708090a0b0c0d0e0f | session
         c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf | nonce
         00 | flags
         0000000000000000000000000000000000000000000000000000000000000000 | proof
         05 001e2c0400000000 73646231 | block device, size, name
         be8ab06e79f0655c7ddf60fd979d6d25 | MAC",
    );
}

#[test]
fn hello_with_standard_input() {
    handshake_golden(
        Handshake::Hello { session: SESSION, terms: terms(false, false, None), offer: Offer::Stream },
        "626c6173740d0a00 0200 01 00 5200 0000 | magic, version, kind, reserved, body length, reserved
         000102030405060708090a0b0c0d0e0f | session
         c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf | nonce
         00 | flags
         0000000000000000000000000000000000000000000000000000000000000000 | proof
         03 | standard input
         4dd178c0e324a978fe9db3719fcbb71d | MAC",
    );
}

#[test]
fn welcome() {
    let message = Handshake::Welcome {
        session: SESSION,
        layout: Layout::Archive,
        owner_names: false,
        cipher: Some(Cipher::Aes256Gcm),
        proof: Some(PROOF),
        window_chunks: 128,
        addresses: addresses(),
    };
    handshake_golden(
        message,
        "626c6173740d0a00 0200 02 00 8a00 0000 | magic, version, kind, reserved, body length, reserved
         000102030405060708090a0b0c0d0e0f | session
         01 01 01 00 80000000 | archive, cipher, flags, reserved, window
         e0e1e2e3e4e5e6e7e8e9eaebecedeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff | proof
         0200 | addresses
         65746830000000000000000000000000 | eth0
         0a000002000000000000000000000000 f31c 04 18 e8030000 | address, port, family, prefix, speed
         656e70313239733066316e70312d7800 | enp129s0f1np1-x
         fe80000000000000000102fffe030405 f31c 06 40 a0860100 | address, port, family, prefix, speed
         c85f3ef045a3d273ccf4c3eb99746c7b | MAC",
    );
    let chacha = Some(Cipher::ChaCha20Poly1305);
    handshake_golden(
        Handshake::Welcome {
            session: SESSION,
            layout: Layout::Raw,
            owner_names: true,
            cipher: chacha,
            proof: None,
            window_chunks: 1,
            addresses: Vec::new(),
        },
        "626c6173740d0a00 0200 02 00 3a00 0000 | magic, version, kind, reserved, body length, reserved
         000102030405060708090a0b0c0d0e0f | session
         02 02 02 00 01000000 | raw, cipher, flags, reserved, window
         0000000000000000000000000000000000000000000000000000000000000000 | proof
         0000 | addresses
         baf84996188bee43fbdd607e5e528d02 | MAC",
    );
    let raw = Handshake::Welcome {
        session: SESSION,
        layout: Layout::Raw,
        owner_names: false,
        cipher: None,
        proof: None,
        window_chunks: 1024,
        addresses: Vec::new(),
    };
    handshake_golden(
        raw,
        "626c6173740d0a00 0200 02 00 3a00 0000 | magic, version, kind, reserved, body length, reserved
         000102030405060708090a0b0c0d0e0f | session
         02 00 00 00 00040000 | raw, cipher, flags, reserved, window
         0000000000000000000000000000000000000000000000000000000000000000 | proof
         0000 | addresses
         cca8be6f6cbcfb2159ebed9e9a88b499 | MAC",
    );
}

#[test]
fn join_and_joined() {
    handshake_golden(
        Handshake::Join { session: SESSION, link: LinkId(0x0102), nonce: NONCE },
        "626c6173740d0a00 0200 03 00 2400 0000 | magic, version, kind, reserved, body length, reserved
         000102030405060708090a0b0c0d0e0f | session
         02010000 | link
         a0a1a2a3a4a5a6a7a8a9aaabacadaeaf | nonce
         0d4394e0b78af31801428502ae55ec2c | MAC",
    );
    handshake_golden(
        Handshake::Joined { session: SESSION, link: LinkId(0x0102), nonce: NONCE, own: [0xb0; 16] },
        "626c6173740d0a00 0200 04 00 3400 0000 | magic, version, kind, reserved, body length, reserved
         000102030405060708090a0b0c0d0e0f | session
         02010000 | link
         a0a1a2a3a4a5a6a7a8a9aaabacadaeaf | nonce
         b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0 | the listener's own
         4823ff32dfa454a5452d053524da5685 | MAC",
    );
}

#[test]
fn refuse() {
    handshake_golden(
        Handshake::Refuse { code: ExitCode::Refused, reason: "not empty".to_owned() },
        "626c6173740d0a00 0200 05 00 0a00 0000 | magic, version, kind, reserved, body length, reserved
         03 | exit code
         6e6f7420656d707479 | reason
         5df654958d18d552d396f33429221873 | MAC",
    );
}

/// A Refuse of version 7: its reserved bytes may have a meaning by then, the rest stays.
#[test]
fn a_refuse_of_another_version_is_understood() {
    let golden = bytes(
        "626c6173740d0a00 0700 05 01 0a00 0203 | magic, version, kind, unknown, body length, unknown
         03 | exit code
         6e6f7420656d707479 | reason
         d478ab506846855e8801a2e1f1030e38 | MAC",
    );
    let (prefix, rest) = golden.split_first_chunk().expect("a prefix");
    let prefix = decode_handshake_prefix(prefix).expect("a Refuse");
    let message = decode_handshake(&prefix, rest, |_| None).expect("a Refuse, whatever our key");
    assert_eq!(message, Handshake::Refuse { code: ExitCode::Refused, reason: "not empty".to_owned() });
}

#[test]
fn another_version_and_a_stranger_are_told_apart() {
    let hello_of_version_1 = bytes("626c6173740d0a00 0100 01 00 1100 0000");
    let error = decode_handshake_prefix(hello_of_version_1[..].try_into().unwrap()).unwrap_err();
    assert_eq!(error, WireError::Version { theirs: 1 });
    assert_eq!(error.to_string(), "the other side speaks version 1 of blast's protocol, this side version 2");

    let error = decode_handshake_prefix(b"SSH-2.0-OpenSSH_").unwrap_err();
    assert_eq!(error, WireError::NotBlast { first: *b"SSH-2.0-" });
    assert_eq!(error.to_string(), "the other side does not speak blast (its first bytes are 'SSH-2.0-')");

    let converted = decode_handshake_prefix(b"blast\n\0\x01\0\x01\0\x11\0\0\0\0").unwrap_err();
    assert!(matches!(converted, WireError::NotBlast { .. }), "a path that converts line ends is found out");
}

fn announce_golden(message: Announce, golden: &str) {
    let golden = bytes(golden);
    assert_eq!(hex(&encode_announce(&message)), hex(&golden), "{message:?}");
    assert_eq!(decode_announce(&golden), Ok(message));
}

#[test]
fn query() {
    announce_golden(
        Announce::Query { nonce: NONCE },
        "626c6173740d0a00 0100 51 00 0000 0000 | magic, version, kind, length of the name, port, reserved
         a0a1a2a3a4a5a6a7a8a9aaabacadaeaf | nonce
         00000000000000000000000000000000 | instance
         00000000000000000000000000000000 00000000000000000000000000000000 | name
         00000000000000000000000000000000 00000000000000000000000000000000
         aac547553f1901a4811a0e9c62283bdf | tag",
    );
}

#[test]
fn answer() {
    let instance = InstanceId(*b"an instance's id");
    assert_eq!(instance.code().to_string(), "1D3-MSR");
    announce_golden(
        Announce::Answer { nonce: NONCE, port: 7411, instance, host: b"host-b".to_vec() },
        "626c6173740d0a00 0100 52 06 f31c 0000 | magic, version, kind, length of the name, port, reserved
         a0a1a2a3a4a5a6a7a8a9aaabacadaeaf | nonce
         616e20696e7374616e63652773206964 | instance
         686f73742d6200000000000000000000 00000000000000000000000000000000 | name
         00000000000000000000000000000000 00000000000000000000000000000000
         44b821dc54521c0b8f5cdfc29993eca3 | tag",
    );
}
