//! One address of the receiver, as Welcome and Links carry it: 40 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::WireError;
use super::codec::{Fields, cut};

/// Addresses in one message, at most; further ones are left out.
pub const ADDRESSES_MAX: usize = 64;

/// Bytes of one address.
pub(super) const ADDRESS_LEN: usize = 40;

/// Bytes of an interface's name, as Linux has it.
const INTERFACE_MAX: usize = 15;

/// One of the receiver's addresses, as it describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The interface's name there, at most 15 bytes.
    pub interface: String,
    /// The address with the port to dial. Scope and flow label of an IPv6 address do not travel: they mean nothing on
    /// another machine.
    pub addr: SocketAddr,
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// The interface's speed, Mbit/s; 0 if unknown.
    pub speed_mbit: u32,
}

/// Whether an address can be dialled at all. Others are never sent, and refused when they arrive: a peer must not make
/// us connect to ourselves by a wildcard, or to a group.
pub fn is_sendable(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// The count and the addresses that can be sent, at most [`ADDRESSES_MAX`].
pub(super) fn put_addresses(addresses: &[Address], out: &mut Vec<u8>) {
    let count_at = out.len();
    out.extend_from_slice(&[0; 2]);
    let mut count = 0u16;
    for address in addresses.iter().filter(|a| is_sendable(a.addr.ip())).take(ADDRESSES_MAX) {
        put_address(address, out);
        count += 1;
    }
    out[count_at..count_at + 2].copy_from_slice(&count.to_le_bytes());
}

pub(super) fn addresses(fields: &mut Fields) -> Result<Vec<Address>, WireError> {
    let count = fields.count("list of addresses", ADDRESSES_MAX)?;
    (0..count).map(|_| address(fields)).collect()
}

fn put_address(address: &Address, out: &mut Vec<u8>) {
    let name = address.interface.as_bytes();
    let mut padded = [0; INTERFACE_MAX + 1];
    let len = cut(name, INTERFACE_MAX);
    padded[..len].copy_from_slice(&name[..len]);
    out.extend_from_slice(&padded);
    let (family, ip) = match address.addr.ip() {
        IpAddr::V4(ip) => {
            let mut wide = [0; 16];
            wide[..4].copy_from_slice(&ip.octets());
            (4, wide)
        }
        IpAddr::V6(ip) => (6, ip.octets()),
    };
    out.extend_from_slice(&ip);
    out.extend_from_slice(&address.addr.port().to_le_bytes());
    out.extend_from_slice(&[family, address.prefix]);
    out.extend_from_slice(&address.speed_mbit.to_le_bytes());
}

fn address(fields: &mut Fields) -> Result<Address, WireError> {
    let padded = fields.array::<{ INTERFACE_MAX + 1 }>()?;
    let ip: [u8; 16] = fields.array()?;
    let port = fields.u16()?;
    let family = fields.u8()?;
    let prefix = fields.u8()?;
    let speed_mbit = fields.u32()?;

    let len = padded.iter().position(|b| *b == 0).ok_or_else(|| fields.malformed("an interface's name is too long"))?;
    if padded[len..].iter().any(|b| *b != 0) {
        return Err(fields.malformed("bytes after an interface's name"));
    }
    let interface = std::str::from_utf8(&padded[..len]).map_err(|_| fields.malformed("an interface's name"))?;
    let (ip, prefix_max) = match (family, &ip) {
        (4, [a, b, c, d, rest @ ..]) if *rest == [0; 12] => (IpAddr::from([*a, *b, *c, *d]), 32),
        (6, wide) => (IpAddr::from(Ipv6Addr::from(*wide)), 128),
        _ => return Err(fields.malformed("an address of no known family")),
    };
    if !is_sendable(ip) || port == 0 || prefix > prefix_max {
        return Err(fields.malformed("an address that cannot be dialled"));
    }
    Ok(Address { interface: interface.to_owned(), addr: SocketAddr::new(ip, port), prefix, speed_mbit })
}
