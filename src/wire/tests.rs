//! Properties of the codec: what is encoded comes back, what was changed on the way does not, and everything that is
//! out of bounds is refused by name. The bytes themselves are pinned in `tests/wire_golden.rs`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::*;
use crate::error::ExitCode;
use crate::ids::{Digest, InstanceId, LinkId, Seq, SessionId};
use crate::limits::*;
use crate::report::{Note, NoteKind};
use crate::stats::{Stage, StageTimes};

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) }
}

fn any_digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

fn any_head() -> impl Strategy<Value = ChunkHead> {
    let full = CHUNK_LEN as u32;
    let kinds = prop_oneof![
        (0..=full).prop_map(|len| (ChunkKind::Mixed, len)),
        (1..=full).prop_map(|len| (ChunkKind::Data { offset: 0, sole: true }, len)),
        Just((ChunkKind::Data { offset: 0, sole: false }, full)),
        (1..(1u64 << 43) - 1, 1..=full)
            .prop_map(|(slice, len)| (ChunkKind::Data { offset: slice << 20, sole: false }, len)),
    ];
    (any::<u64>(), kinds, any::<u32>(), any_digest()).prop_map(|(seq, (kind, content_len), shrunk, digest)| {
        let payload_len = if content_len > 1 { 1 + shrunk % content_len } else { content_len };
        ChunkHead {
            seq: Seq(seq),
            kind,
            content_len,
            payload_len,
            codec: (payload_len != content_len).then_some(Codec::Zstd),
            digest,
            seal: [0; 16],
        }
    })
}

fn any_note() -> impl Strategy<Value = Note> {
    let kind = (0..NoteKind::ALL.len()).prop_map(|i| NoteKind::ALL[i]);
    (kind, vec(any::<u8>(), 0..200), ".{0,60}").prop_map(|(kind, path, detail)| Note { kind, path, detail })
}

fn any_address() -> impl Strategy<Value = Address> {
    let v4 = (any::<[u8; 4]>(), 0u8..=32).prop_map(|(ip, prefix)| (IpAddr::from(ip), prefix));
    let v6 = (any::<[u8; 16]>(), 0u8..=128).prop_map(|(ip, prefix)| (IpAddr::from(ip), prefix));
    let ip = prop_oneof![v4, v6].prop_filter("one that can be dialled", |(ip, _)| is_sendable(*ip));
    ("[a-z0-9.:é-]{0,7}", ip, 1u16.., any::<u32>()).prop_map(|(interface, (ip, prefix), port, speed_mbit)| Address {
        interface,
        addr: SocketAddr::new(ip, port),
        prefix,
        speed_mbit,
    })
}

fn any_code() -> impl Strategy<Value = ExitCode> {
    prop_oneof![0u8..=7, Just(70)].prop_map(ExitCode::from_wire)
}

fn any_ack() -> impl Strategy<Value = Ack> {
    let links = vec((any::<u32>().prop_map(LinkId), any::<u64>()), 0..=LINKS_MAX);
    let numbers = (0..u64::MAX - 1024, any::<u64>(), any::<u64>(), any::<u64>());
    (numbers, any::<[u64; 16]>(), links).prop_map(|((next, credit_limit, durable, notes), mut bitmap, links)| {
        bitmap[0] &= !1;
        Ack { next, bitmap, credit_limit, durable, notes, links: links.into_iter().collect() }
    })
}

fn any_finish() -> impl Strategy<Value = Finish> {
    (any::<[u64; 7]>(), any_digest()).prop_map(|(n, digest)| Finish {
        chunks: n[0],
        entries: n[1],
        bytes: n[2],
        content_bytes: n[3],
        notes: n[4],
        unnamed: (n[5], n[6]),
        digest,
    })
}

fn any_stages() -> impl Strategy<Value = Vec<StageTimes>> {
    let times = |stage| {
        (any::<u16>(), any::<[u64; 4]>()).prop_map(move |(threads, nanos)| {
            let [busy, wait_in, wait_out, busiest] = nanos.map(Duration::from_nanos);
            StageTimes { stage, threads, busy, wait_in, wait_out, busiest }
        })
    };
    subsequence(&Stage::ALL[..], 0..=Stage::ALL.len())
        .prop_flat_map(move |stages| stages.into_iter().map(times).collect::<Vec<_>>())
}

fn any_commit() -> impl Strategy<Value = Commit> {
    let digests = (any_digest(), proptest::option::of(any_digest()));
    (any::<bool>(), any::<[u64; 4]>(), digests, any_stages(), vec(any_note(), 0..20)).prop_map(
        |(is_whole, n, (digest, stream_digest), stages, notes)| Commit {
            code: if is_whole { ExitCode::Whole } else { ExitCode::Partial },
            entries: n[0],
            content_bytes: n[1],
            digest,
            stream_digest,
            totals: (n[2], n[3]),
            stages,
            notes,
        },
    )
}

fn any_control() -> impl Strategy<Value = Control> {
    prop_oneof![
        any_ack().prop_map(Control::Ack),
        (any::<u32>(), vec(any_note(), 0..20)).prop_map(|(first, notes)| Control::Notes { first: first.into(), notes }),
        any::<u64>().prop_map(Control::Ping),
        any::<u64>().prop_map(Control::Pong),
        vec(any_address(), 0..=ADDRESSES_MAX).prop_map(Control::Links),
        any_finish().prop_map(Control::Finish),
        any_commit().prop_map(Control::Commit),
        Just(Control::Bye),
        (any_code(), ".{0,200}").prop_map(|(code, reason)| Control::Abort { code, reason }),
    ]
}

fn any_handshake() -> impl Strategy<Value = Handshake> {
    let name = vec(any::<u8>().prop_filter("part of a name", |b| !matches!(b, b'/' | 0 | b'.')), 1..=NAME_LEN_MAX);
    let offer = prop_oneof![
        any::<u32>().prop_map(|sources| Offer::Tree { sources }),
        (name.clone(), any::<u64>()).prop_map(|(name, size)| Offer::File { name, size }),
        (name, any::<u64>()).prop_map(|(name, size)| Offer::Device { name, size }),
        Just(Offer::Stream),
    ];
    let session = || any::<[u8; 16]>().prop_map(SessionId);
    let join = || (session(), any::<u32>().prop_map(LinkId), any::<[u8; 16]>());
    let layout = prop_oneof![Just(Layout::Archive), Just(Layout::Raw)];
    let cipher = prop_oneof![Just(None), Just(Some(Cipher::Aes256Gcm)), Just(Some(Cipher::ChaCha20Poly1305))];
    let proof = || proptest::option::of(any::<[u8; 32]>());
    let terms = (any::<[u8; 32]>(), proof(), any::<bool>(), any::<bool>())
        .prop_map(|(nonce, proof, plain, aes)| Terms { nonce, proof, plain, aes });
    prop_oneof![
        (session(), terms, offer).prop_map(|(session, terms, offer)| Handshake::Hello { session, terms, offer }),
        (session(), layout, any::<bool>(), cipher, proof(), 1..=WINDOW_MAX, vec(any_address(), 0..=ADDRESSES_MAX),)
            .prop_map(|(session, layout, owner_names, cipher, proof, window_chunks, addresses)| Handshake::Welcome {
                session,
                layout,
                owner_names,
                cipher,
                proof,
                window_chunks,
                addresses
            }),
        join().prop_map(|(session, link, nonce)| Handshake::Join { session, link, nonce }),
        (join(), any::<[u8; 16]>()).prop_map(|((session, link, nonce), own)| Handshake::Joined {
            session,
            link,
            nonce,
            own
        }),
        (any_code(), ".{0,200}").prop_map(|(code, reason)| Handshake::Refuse { code, reason }),
    ]
}

fn any_announce() -> impl Strategy<Value = Announce> {
    let answer = (any::<[u8; 16]>(), 1u16.., any::<[u8; 16]>(), vec(any::<u8>(), 0..=HOST_NAME_MAX));
    prop_oneof![
        any::<[u8; 16]>().prop_map(|nonce| Announce::Query { nonce }),
        answer.prop_map(|(nonce, port, instance, host)| Announce::Answer {
            nonce,
            port,
            instance: InstanceId(instance),
            host
        }),
    ]
}

/// The first frame that a dialer sends, as both ends have its key.
fn key() -> FrameKey {
    key_of(None)
}

fn key_of(cipher: Option<Cipher>) -> FrameKey {
    SessionKeys::new([1; 32], cipher).dialer(LinkId(0), FIRST_NONCES).out
}

fn joins() -> TagKey {
    SessionKeys::new([1; 32], None).joins()
}

fn encoded(frame: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_control(frame, &mut key(), &mut bytes);
    bytes
}

fn decoded(bytes: &[u8]) -> Result<Control, WireError> {
    decoded_with(bytes, &mut key())
}

fn decoded_with(bytes: &[u8], key: &mut FrameKey) -> Result<Control, WireError> {
    let (header, payload) = bytes.split_first_chunk().expect("a header");
    match decode_header(header, key)? {
        Header::Control(header) => decode_control(&header, &mut payload.to_vec(), key),
        Header::Chunk(_) => panic!("a chunk's header"),
    }
}

fn hands_decoded(bytes: &[u8]) -> Result<Handshake, WireError> {
    let (prefix, rest) = bytes.split_first_chunk().expect("a prefix");
    decode_handshake(&decode_handshake_prefix(prefix)?, rest, |_| Some(joins()))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn chunk_headers_come_back(head in any_head()) {
        let bytes = encode_chunk_header(&head, &key());
        prop_assert_eq!(decode_header(&bytes, &mut key()), Ok(Header::Chunk(head)));
    }

    #[test]
    fn control_frames_come_back_and_are_appended(frame in any_control()) {
        let mut bytes = b"before".to_vec();
        encode_control(&frame, &mut key(), &mut bytes);
        prop_assert!(bytes.starts_with(b"before"));
        prop_assert!(bytes.len() <= 6 + HEADER_LEN + CONTROL_MAX);
        prop_assert_eq!(decoded(&bytes[6..]), Ok(frame));
    }

    #[test]
    fn sealed_frames_come_back_in_their_order_and_in_no_other(
        frames in vec(any_control(), 1..5),
        cipher in prop_oneof![Just(Cipher::Aes256Gcm), Just(Cipher::ChaCha20Poly1305)],
        at in any::<usize>(),
    ) {
        let (mut out, mut into) = (key_of(Some(cipher)), key_of(Some(cipher)));
        let sealed: Vec<Vec<u8>> = frames.iter().map(|frame| {
            let mut bytes = Vec::new();
            encode_control(frame, &mut out, &mut bytes);
            bytes
        }).collect();
        for (frame, bytes) in frames.iter().zip(&sealed) {
            let plain = encoded(frame);
            prop_assert_eq!(bytes.len(), plain.len());
            if plain.len() >= HEADER_LEN + 8 {
                prop_assert!(bytes[HEADER_LEN..] != plain[HEADER_LEN..], "what it says is hidden");
            }
            prop_assert_eq!(decoded_with(bytes, &mut into), Ok(frame.clone()));
            prop_assert_eq!(decoded_with(bytes, &mut into), Err(WireError::Tag("frame header")), "it came before");
        }
        let mut bytes = sealed[0].clone();
        let bit = at % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(decoded_with(&bytes, &mut key_of(Some(cipher))).is_err());
        if let Some(second) = sealed.get(1) {
            prop_assert!(decoded_with(second, &mut key_of(Some(cipher))).is_err(), "the first was taken out");
        }
    }

    #[test]
    fn handshake_messages_come_back(message in any_handshake()) {
        let mut bytes = Vec::new();
        encode_handshake(&message, &joins(), &mut bytes);
        prop_assert_eq!(hands_decoded(&bytes), Ok(message));
    }

    #[test]
    fn announcements_come_back_and_one_changed_bit_or_length_is_found(message in any_announce(), at in any::<usize>()) {
        let good = encode_announce(&message);
        prop_assert_eq!(decode_announce(&good), Ok(message));
        let mut bytes = good;
        bytes[at % DATAGRAM_LEN] ^= 1 << (at / DATAGRAM_LEN % 8);
        prop_assert!(decode_announce(&bytes).is_err());
        prop_assert!(decode_announce(&good[..at % DATAGRAM_LEN]).is_err());
        prop_assert!(decode_announce(&[&good[..], &[0]].concat()).is_err());
    }

    #[test]
    fn one_changed_bit_is_found_wherever_it_is(frame in any_control(), message in any_handshake(), at in any::<usize>()) {
        let mut bytes = encoded(&frame);
        let bit = at % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let expected = if bit / 8 < HEADER_LEN { WireError::Tag("frame header") } else { WireError::PayloadDigest };
        prop_assert_eq!(decoded(&bytes), Err(expected));

        let mut bytes = Vec::new();
        encode_handshake(&message, &joins(), &mut bytes);
        let bit = at % (bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(hands_decoded(&bytes).is_err());
    }

    #[test]
    fn what_is_cut_short_is_refused(frame in any_control(), message in any_handshake(), at in any::<usize>()) {
        let bytes = encoded(&frame);
        let payload_len = bytes.len() - HEADER_LEN;
        if payload_len > 0 {
            prop_assert_eq!(decoded(&bytes[..HEADER_LEN + at % payload_len]), Err(WireError::PayloadDigest));
        }
        let mut bytes = Vec::new();
        encode_handshake(&message, &joins(), &mut bytes);
        prop_assert!(hands_decoded(&bytes[..PREFIX_LEN + at % (bytes.len() - PREFIX_LEN)]).is_err());
    }

    #[test]
    fn another_key_is_found(head in any_head(), frame in any_control(), message in any_handshake()) {
        let other = SessionKeys::new([7; 32], None);
        let mut others = other.dialer(LinkId(0), FIRST_NONCES).out;
        prop_assert_eq!(decode_header(&encode_chunk_header(&head, &others), &mut key()), Err(WireError::Tag("frame header")));
        let mut bytes = Vec::new();
        encode_control(&frame, &mut others, &mut bytes);
        prop_assert_eq!(decoded(&bytes), Err(WireError::Tag("frame header")));
        let mut bytes = Vec::new();
        encode_handshake(&message, &other.joins(), &mut bytes);
        match message {
            Handshake::Join { .. } | Handshake::Joined { .. } => {
                prop_assert_eq!(hands_decoded(&bytes), Err(WireError::Tag("handshake message")));
            }
            _ => prop_assert_eq!(hands_decoded(&bytes), Ok(message)),
        }
    }
}

/// Put a changed header's tag right, so that what lies behind the tag is looked at.
fn retagged(mut bytes: [u8; HEADER_LEN]) -> [u8; HEADER_LEN] {
    let tag = key().tag(&bytes[16..]);
    bytes[..16].copy_from_slice(&tag);
    bytes
}

fn full_slice() -> ChunkHead {
    ChunkHead {
        seq: Seq(1),
        kind: ChunkKind::Data { offset: CHUNK_LEN as u64, sole: false },
        content_len: CHUNK_LEN as u32,
        payload_len: CHUNK_LEN as u32,
        codec: None,
        digest: Digest([1; 32]),
        seal: [0; 16],
    }
}

#[test]
fn every_unknown_kind_and_reserved_bit_of_a_header_is_refused() {
    let good = encode_chunk_header(&full_slice(), &key());
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        decode_header(&retagged(bytes), &mut key())
    };
    for kind in (0..=u8::MAX).filter(|k| !(1..=10).contains(k)) {
        assert_eq!(with(16, kind), Err(WireError::Kind { what: "frame", kind }));
    }
    assert_eq!(with(17, 0b0011), Err(WireError::ListingStream), "the stream bit has a refusal of its own");
    for bit in 5..8 {
        assert_eq!(with(17, 0b0010 | 1 << bit), Err(WireError::Reserved("frame header")));
    }
    for at in [18, 19, 44, 45, 46, 47, 80, 95] {
        assert_eq!(with(at, 1), Err(WireError::Reserved("frame header")));
    }
    let bye = *encoded(&Control::Bye).first_chunk().expect("a header");
    for at in [17, 24, 31, 32, 39, 40, 43] {
        let mut bytes: [u8; HEADER_LEN] = bye;
        bytes[at] = 2;
        let refused = decode_header(&retagged(bytes), &mut key());
        assert_eq!(refused, Err(WireError::Reserved("control frame's header")), "byte {at}");
    }
}

#[test]
fn a_length_beyond_its_bound_is_refused_before_its_payload_is_read() {
    let with_len = |mut bytes: [u8; HEADER_LEN], at: usize, len: u32| {
        bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
        decode_header(&retagged(bytes), &mut key())
    };
    let chunk = encode_chunk_header(&full_slice(), &key());
    for len in [CHUNK_LEN as u32 + 1, u32::MAX] {
        assert!(matches!(with_len(chunk, 20, len), Err(WireError::TooLong { what: "chunk's payload", .. })));
        assert!(matches!(with_len(chunk, 40, len), Err(WireError::TooLong { what: "chunk's content", .. })));
    }
    let ping = *encoded(&Control::Ping(1)).first_chunk().expect("a header");
    assert!(with_len(ping, 20, CONTROL_MAX as u32).is_ok());
    for len in [CONTROL_MAX as u32 + 1, u32::MAX] {
        assert!(matches!(with_len(ping, 20, len), Err(WireError::TooLong { what: "control frame's payload", .. })));
    }
    let mut prefix = *b"blast\r\n\0\x02\0\x01\0\0\0\0\0";
    prefix[12..14].copy_from_slice(&(HANDSHAKE_MAX as u16 + 1).to_le_bytes());
    assert!(matches!(decode_handshake_prefix(&prefix), Err(WireError::TooLong { what: "handshake message", .. })));
}

#[test]
fn slices_that_no_file_has_are_refused() {
    let with = |change: fn(&mut [u8; HEADER_LEN])| {
        let mut bytes = encode_chunk_header(&full_slice(), &key());
        change(&mut bytes);
        decode_header(&retagged(bytes), &mut key())
    };
    type Change = fn(&mut [u8; HEADER_LEN]);
    let hostile: [(&str, Change); 10] = [
        ("an offset that is no multiple", |b| b[32] = 1),
        ("an offset beyond every file", |b| b[39] = 0x80),
        ("the only slice, not at the start", |b| b[17] |= 4),
        ("the only slice of a mixed chunk", |b| b[17] = 4),
        ("a mixed chunk with an offset", |b| b[17] = 0),
        ("a short first slice of more", |b| {
            b[34] = 0;
            b[20..24].copy_from_slice(&9u32.to_le_bytes());
            b[40..44].copy_from_slice(&9u32.to_le_bytes());
        }),
        ("an empty slice", |b| {
            b[20..24].fill(0);
            b[40..44].fill(0);
        }),
        ("compressed to the same length", |b| b[17] |= 8),
        ("compressed to the same length with bzip2", |b| b[17] |= 16),
        ("compressed in two ways", |b| b[17] |= 24),
    ];
    for (what, change) in hostile {
        assert!(matches!(with(change), Err(WireError::Malformed { message: "chunk header", .. })), "{what}");
    }
}

#[test]
fn a_note_of_any_length_fits_and_says_that_it_was_cut() {
    let long =
        Note { kind: NoteKind::NotCarried, path: b"d/".repeat(PATH_LEN_MAX / 2), detail: "é".repeat(REASON_MAX) };
    let notes = vec![long; 40];
    let fits = notes_that_fit(&notes);
    assert!((1..40).contains(&fits));
    let Ok(Control::Notes { first: 5, notes: arrived }) = decoded(&encoded(&Control::Notes { first: 5, notes })) else {
        panic!("notes do not come back");
    };
    assert_eq!(arrived.len(), fits, "as many as were said to fit");
    assert_eq!(arrived[0].path.len(), NOTE_PATH_MAX);
    assert!(arrived[0].path.starts_with(b"d/d/") && arrived[0].path.ends_with("…".as_bytes()));
    assert!(arrived[0].detail.len() <= REASON_MAX && arrived[0].detail.ends_with("é…"));
}

#[test]
fn many_short_notes_fit_up_to_the_bound_of_a_frame() {
    let short = Note { kind: NoteKind::Socket, path: b"s".to_vec(), detail: String::new() };
    assert_eq!(notes_that_fit(&[]), 0);
    assert_eq!(notes_that_fit(&vec![short.clone(); 7]), 7);
    assert_eq!(notes_that_fit(&vec![short; NOTES_MAX]), NOTES_PER_FRAME_MAX);
}

#[test]
fn what_cannot_be_dialled_is_neither_sent_nor_believed() {
    let address = |addr: &str| Address {
        interface: "an-interface-with-a-long-name".to_owned(),
        addr: addr.parse().expect("an address"),
        prefix: 8,
        speed_mbit: 0,
    };
    let bad = ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[ff02::1]:1", "255.255.255.255:1"];
    let mut addresses = bad.map(address).to_vec();
    addresses.push(address("[fe80::1%7]:1"));
    let Ok(Control::Links(arrived)) = decoded(&encoded(&Control::Links(addresses))) else { panic!("not Links") };
    assert_eq!(arrived.len(), 1);
    assert_eq!(arrived[0].addr, "[fe80::1]:1".parse().unwrap(), "a scope means nothing on another machine");
    assert_eq!(arrived[0].interface, "an-interface-wi");

    let mut payload = encoded(&Control::Links(vec![address("10.0.0.1:1")])).split_off(HEADER_LEN);
    payload[2 + 16] = 224;
    let digest = Digest(blake3::hash(&payload).into());
    let header = ControlHeader { kind: 6, payload_len: payload.len() as u32, digest, seal: [0; 16], number: 0 };
    assert!(matches!(
        decode_control(&header, &mut payload, &key()),
        Err(WireError::Malformed { message: "Links", .. })
    ));
}

#[test]
fn a_name_that_could_leave_the_destination_is_refused() {
    let mut bytes = Vec::new();
    let offer = Offer::File { name: b"x.".to_vec(), size: 0 };
    encode_handshake(
        &Handshake::Hello { session: SessionId([0; 16]), terms: Terms::default(), offer },
        &joins(),
        &mut bytes,
    );
    let name_at = bytes.len() - 16 - 2;
    for name in [*b"..", *b"a/", *b"/a", *b"a\0"] {
        bytes[name_at..name_at + 2].copy_from_slice(&name);
        let end = bytes.len() - 16;
        let mac = PUBLISHED_KEY.tag(&bytes[..end]);
        bytes[end..].copy_from_slice(&mac);
        assert!(matches!(hands_decoded(&bytes), Err(WireError::Malformed { message: "Hello", .. })), "{name:?}");
    }
}

#[test]
fn a_reason_that_is_not_text_still_arrives() {
    let mut bytes = encoded(&Control::Abort { code: ExitCode::Bug, reason: "abc".to_owned() });
    bytes[HEADER_LEN + 2] = 0xff;
    let digest = blake3::hash(&bytes[HEADER_LEN..]);
    bytes[48..80].copy_from_slice(digest.as_bytes());
    let header = retagged(*bytes.first_chunk().expect("a header"));
    bytes[..HEADER_LEN].copy_from_slice(&header);
    assert_eq!(decoded(&bytes), Ok(Control::Abort { code: ExitCode::Bug, reason: "a\u{fffd}c".to_owned() }));
}

#[test]
fn stages_that_are_unknown_or_out_of_order_are_refused() {
    let zero = Duration::ZERO;
    let times = |stage| StageTimes { stage, threads: 1, busy: zero, wait_in: zero, wait_out: zero, busiest: zero };
    let commit = Commit {
        code: ExitCode::Whole,
        entries: 0,
        content_bytes: 0,
        digest: Digest([0; 32]),
        stream_digest: None,
        totals: (0, 0),
        stages: vec![times(Stage::Verify), times(Stage::Write)],
        notes: Vec::new(),
    };
    let payload = encoded(&Control::Commit(commit)).split_off(HEADER_LEN);
    let with = |at: usize, byte: u8| {
        let mut payload = payload.clone();
        payload[at] = byte;
        let digest = Digest(blake3::hash(&payload).into());
        let header = ControlHeader { kind: 8, payload_len: payload.len() as u32, digest, seal: [0; 16], number: 0 };
        decode_control(&header, &mut payload, &key())
    };
    let (count_at, first_at) = (98, 100);
    assert!(with(first_at + 2, 9).is_ok(), "a number of threads");
    assert_eq!(with(first_at, 0), Err(WireError::Kind { what: "stage", kind: 0 }));
    assert_eq!(with(first_at, 200), Err(WireError::Kind { what: "stage", kind: 200 }));
    for later in [Stage::Write, Stage::Sync] {
        assert!(matches!(with(first_at, later as u8), Err(WireError::Malformed { message: "Commit", .. })));
    }
    assert_eq!(with(first_at + 1, 1), Err(WireError::Reserved("Commit")));
    let too_many = Stage::ALL.len() as u8 + 1;
    assert!(matches!(with(count_at, too_many), Err(WireError::TooLong { what: "list of stages", .. })));
}

#[test]
fn announcements_with_anything_in_unused_fields_are_refused() {
    let query = encode_announce(&Announce::Query { nonce: [1; 16] });
    let answer = Announce::Answer { nonce: [1; 16], port: 1, instance: InstanceId([2; 16]), host: b"ab".to_vec() };
    let answer = encode_announce(&answer);
    let with = |mut bytes: [u8; DATAGRAM_LEN], at: usize, byte: u8| {
        bytes[at] = byte;
        let tag = PUBLISHED_KEY.tag(&bytes[..DATAGRAM_LEN - 16]);
        bytes[DATAGRAM_LEN - 16..].copy_from_slice(&tag);
        decode_announce(&bytes)
    };
    for at in [11, 12, 13, 14, 15, 32, 47, 48, 111] {
        assert_eq!(with(query, at, 1), Err(WireError::Reserved("announcement")), "byte {at}");
    }
    for at in [14, 15, 50, 111] {
        assert_eq!(with(answer, at, 1), Err(WireError::Reserved("announcement")), "byte {at}");
    }
    assert!(matches!(with(answer, 11, 65), Err(WireError::TooLong { what: "host's name", .. })));
    assert!(matches!(with(answer, 12, 0), Err(WireError::Malformed { message: "announcement", .. })), "port 0");
    assert!(matches!(with(answer, 8, 2), Err(WireError::Malformed { message: "announcement", .. })), "version 2");
    for kind in (0..=u8::MAX).filter(|k| !(0x51..=0x52).contains(k)) {
        assert_eq!(with(answer, 10, kind), Err(WireError::Kind { what: "announcement", kind }));
    }
    let long = Announce::Answer { nonce: [0; 16], port: 1, instance: InstanceId([0; 16]), host: vec![b'x'; 300] };
    assert!(matches!(decode_announce(&encode_announce(&long)), Ok(Announce::Answer { host, .. }) if host.len() == 64));
}

#[test]
fn a_stranger_is_known_by_the_first_byte_that_is_not_ours() {
    let mut ours = Vec::new();
    let hello = Handshake::Hello { session: SessionId([7; 16]), terms: Terms::default(), offer: Offer::Stream };
    encode_handshake(&hello, &joins(), &mut ours);
    for len in 0..=PREFIX_LEN {
        assert_eq!(may_be_handshake(&ours[..len]), Ok(()));
    }
    for at in 0..MAGIC.len() {
        let mut other = ours[..=at].to_vec();
        other[at] ^= 0x20;
        assert!(matches!(may_be_handshake(&other), Err(WireError::NotBlast { first }) if first[..=at] == other[..]));
    }
    let said = |bytes: &[u8]| may_be_handshake(bytes).unwrap_err().to_string();
    assert_eq!(said(b"G"), "the other side does not speak blast (its first bytes are 'G')");
    assert_eq!(said(b"\x16\x03\x01\0"), "the other side does not speak blast (its first bytes are '\\x16\\x03\\x01')");
    assert_eq!(said(&[0; 9]), "the other side does not speak blast (its first bytes are '\\x00')");
}
