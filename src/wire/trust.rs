//! What the first connection's two ends prove to each other and derive from its channel. Everything here is BLAKE3
//! under a context of its own; `exporter` is the value that TLS gives to both ends and to nobody between them.

use zeroize::{Zeroize, Zeroizing};

use crate::ids::SessionCode;
use crate::key::Key;

const COMMITMENT: &str = "blast commitment of a dialer, version 1";
const CODE: &str = "blast code of a session, version 1";
const SECRET: &str = "blast secret of a session, version 1";
const PROOF: &[u8] = b"blast proof of a key, version 1";

/// Who proves that it has the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Role {
    /// The sender.
    Dialer = 1,
    /// The receiver.
    Listener = 2,
}

/// What a dialer shows of its nonce before the channel stands: with the nonce out only afterwards, nobody between the
/// two ends can search for a channel whose code happens to be the same.
pub fn commitment(nonce: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key(COMMITMENT, nonce)
}

/// That whoever says it on this channel has the key.
pub fn proof(key: &Key, role: Role, exporter: &[u8; 32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(key.bytes());
    hasher.update(PROOF).update(&[role as u8]).update(exporter);
    let proof = *hasher.finalize().as_bytes();
    hasher.zeroize();
    proof
}

/// Whether that is the other end's proof; the time it takes says nothing of where it differs.
pub fn proves(said: &[u8; 32], key: &Key, role: Role, exporter: &[u8; 32]) -> bool {
    blake3::Hash::from(*said) == blake3::Hash::from(proof(key, role, exporter))
}

/// What both ends show to people.
pub fn code(exporter: &[u8; 32], nonce: &[u8; 32]) -> SessionCode {
    SessionCode::of(&blake3::derive_key(CODE, &[*exporter, *nonce].concat()))
}

/// The session's secret, of the channel, the key if both have it, and every byte of Hello and Welcome.
pub fn secret(exporter: &[u8; 32], key: Option<&Key>, hello: &[u8], welcome: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key(SECRET);
    hasher.update(exporter);
    hasher.update(&[u8::from(key.is_some())]).update(key.map_or(&[0; 32][..], |key| key.bytes()));
    for message in [hello, welcome] {
        hasher.update(&(message.len() as u64).to_le_bytes()).update(message);
    }
    let secret = Zeroizing::new(*hasher.finalize().as_bytes());
    hasher.zeroize();
    secret
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> [Key; 2] {
        [Key::generate().expect("random bytes"), Key::generate().expect("random bytes")]
    }

    #[test]
    fn a_proof_is_of_one_key_one_role_and_one_channel() {
        let [key, other] = keys();
        let said = proof(&key, Role::Dialer, &[1; 32]);
        assert!(proves(&said, &key, Role::Dialer, &[1; 32]));
        assert!(!proves(&said, &other, Role::Dialer, &[1; 32]));
        assert!(!proves(&said, &key, Role::Listener, &[1; 32]), "said back to who said it");
        assert!(!proves(&said, &key, Role::Dialer, &[2; 32]));
        for at in 0..32 {
            let mut changed = said;
            changed[at] ^= 1;
            assert!(!proves(&changed, &key, Role::Dialer, &[1; 32]));
        }
    }

    #[test]
    fn a_secret_depends_on_everything_that_was_said() {
        let [key, other] = keys();
        let zeros = *secret(&[1; 32], None, b"h", b"w");
        let secrets = [
            zeros,
            *secret(&[2; 32], None, b"h", b"w"),
            *secret(&[1; 32], Some(&key), b"h", b"w"),
            *secret(&[1; 32], Some(&other), b"h", b"w"),
            *secret(&[1; 32], None, b"x", b"w"),
            *secret(&[1; 32], None, b"h", b"x"),
            *secret(&[1; 32], None, b"hw", b""),
            *secret(&[1; 32], None, b"", b"hw"),
        ];
        for (i, one) in secrets.iter().enumerate() {
            assert!(secrets[..i].iter().all(|other| other != one), "{i}");
        }
        assert_eq!(zeros, *secret(&[1; 32], None, b"h", b"w"));
    }

    #[test]
    fn a_code_needs_the_nonce_behind_the_commitment() {
        assert_ne!(commitment(&[1; 32]), commitment(&[2; 32]));
        assert_ne!(code(&[1; 32], &[1; 32]), code(&[1; 32], &[2; 32]));
        assert_ne!(code(&[1; 32], &[1; 32]), code(&[2; 32], &[1; 32]));
        assert_eq!(code(&[1; 32], &[1; 32]).to_string().len(), 9);
    }
}
