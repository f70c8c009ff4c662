//! Small identifying values that every room shares. They carry no behaviour beyond order and display.

use std::fmt;
use std::str::FromStr;

/// A chunk's place in the stream: 0, 1, 2 … without holes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// The number after this one. Panics past 2^64 - 1, which no transfer reaches.
    pub fn next(self) -> Seq {
        Seq(self.0.checked_add(1).expect("a transfer has fewer than 2^64 chunks"))
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One connection of a session. A connection that is dialled again gets a new id, so that counts of the dead one can
/// never be mistaken for counts of its successor. The dialer chooses; 0 is the first connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u32);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One pair of sender and receiver processes at work on a transfer; 128 random bits chosen by the sender.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionId(pub [u8; 16]);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

/// A BLAKE3 value: of a chunk's content, of a whole file or stream, or of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

/// One receiver process while it waits for a sender; 128 random bits of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InstanceId(pub [u8; 16]);

/// What people compare to see that two screens mean the same receiver: 30 bits of the digest of its [`InstanceId`],
/// written as `7KQ-4M2`. It finds mistakes; whoever hears an id can repeat it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceCode([u8; 6]);

/// Crockford's base 32: no I, L, O and U, and what is typed for one of the first three is understood.
const CODE_ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// What people compare to see that nobody stands between the two ends of a session, where there is no key: 40 bits of
/// its first connection, written as `7KQ4-M2XP`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionCode([u8; 8]);

impl SessionCode {
    /// Of a digest that only that connection has.
    pub fn of(digest: &[u8; 32]) -> SessionCode {
        let word = u64::from_le_bytes(*digest.first_chunk().expect("32 bytes have 8"));
        SessionCode(std::array::from_fn(|i| CODE_ALPHABET[(word >> (5 * i)) as usize & 31]))
    }
}

impl fmt::Display for SessionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.0.split_at(4);
        write!(f, "{}-{}", first.escape_ascii(), last.escape_ascii())
    }
}

impl InstanceId {
    /// Its code.
    pub fn code(self) -> InstanceCode {
        let digest = blake3::derive_key("blast code of a waiting receiver, version 1", &self.0);
        let word = u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]);
        InstanceCode(std::array::from_fn(|i| CODE_ALPHABET[(word >> (5 * i)) as usize & 31]))
    }
}

impl fmt::Display for InstanceCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = self.0.split_at(3);
        write!(f, "{}-{}", first.escape_ascii(), last.escape_ascii())
    }
}

/// Not six letters and digits of a code.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("not a code like 7KQ-4M2")]
pub struct NoCode;

impl FromStr for InstanceCode {
    type Err = NoCode;

    /// In either case, with the dash or without.
    fn from_str(text: &str) -> Result<InstanceCode, NoCode> {
        let typed: Vec<u8> = match text.split_once('-') {
            Some((first, last)) if first.len() == 3 => [first, last].concat().into_bytes(),
            Some(_) => return Err(NoCode),
            None => text.as_bytes().to_vec(),
        };
        let mut code: [u8; 6] = typed.try_into().map_err(|_| NoCode)?;
        for letter in &mut code {
            *letter = match letter.to_ascii_uppercase() {
                b'O' => b'0',
                b'I' | b'L' => b'1',
                other if CODE_ALPHABET.contains(&other) => other,
                _ => return Err(NoCode),
            };
        }
        Ok(InstanceCode(code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_of_its_instance_and_is_understood_as_people_type_it() {
        let code = InstanceId([7; 16]).code();
        assert_eq!(code.to_string(), "C7F-4Q6");
        assert_ne!(code, InstanceId([8; 16]).code());
        let shown = code.to_string();
        for typed in [shown.clone(), shown.to_lowercase(), shown.replace('-', "")] {
            assert_eq!(typed.parse(), Ok(code), "{typed}");
        }
        assert_eq!("oil-o1l".parse::<InstanceCode>(), "011-011".parse());
        for wrong in ["", "-", "7KQ", "7KQ-4M", "7KQ-4M22", "7K-Q4M2", "7KQ--4M2", "7KQ-4U2", "7KQ 4M2", "7KQ-4Mé"] {
            assert_eq!(wrong.parse::<InstanceCode>(), Err(NoCode), "{wrong}");
        }
    }
}
