//! The machine's network interfaces as the kernel knows them (rtnetlink): what each is, whether its cable is plugged
//! in, its addresses, and how many bytes it has carried. Asked anew each time; nothing is kept.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoKind, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index, which scopes link-local addresses.
    pub index: u32,
    /// What it is.
    pub kind: Kind,
    /// Somebody has set it up.
    pub up: bool,
    /// There is something at the other end of its cable.
    pub carrier: bool,
    /// Bytes of the largest packet.
    pub mtu: u32,
    /// Mbit/s; 0 if unknown.
    pub speed_mbit: u32,
    /// The interface of this machine that carries its packets, by index: of a VLAN the one below.
    pub below: Option<u32>,
    /// Its addresses, each with the bits of the network's prefix. Those that the kernel still tries are left out.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Bytes since it exists.
    pub carried: Carried,
}

/// An interface's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Bytes that left.
    pub sent: u64,
    /// Bytes that came.
    pub received: u64,
}

/// What an interface is, as far as it decides whether it can be a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A port, real or virtual, that leads somewhere: also a veth that is no bridge's port, a VLAN, a macvlan.
    Cable,
    /// Several cables that the kernel has made one (bond, team).
    Bond,
    /// A bridge with a cable among its ports: the host's own way out.
    Bridge,
    /// A bridge of containers or virtual machines alone.
    InnerBridge,
    /// A part of another interface, by that one's name: the port of a bridge, or one cable of a bond.
    PortOf(String),
    /// Packets inside packets, by the kernel's word for it: what it carries leaves by another interface.
    Tunnel(String),
    /// To this machine itself.
    Loopback,
    /// Leads nowhere, by the kernel's word for it.
    Nowhere(String),
}

impl Interface {
    /// Why it is no link by itself, if so.
    pub fn objection(&self) -> Option<Objection> {
        match &self.kind {
            Kind::Loopback => Some(Objection::Loopback),
            Kind::PortOf(whole) => Some(Objection::PortOf(whole.clone())),
            Kind::InnerBridge => Some(Objection::InnerBridge),
            Kind::Tunnel(kind) => Some(Objection::Tunnel(kind.clone())),
            Kind::Nowhere(kind) => Some(Objection::Nowhere(kind.clone())),
            Kind::Cable | Kind::Bond | Kind::Bridge if !self.up => Some(Objection::Down),
            Kind::Cable | Kind::Bond | Kind::Bridge if !self.carrier => Some(Objection::NoCarrier),
            Kind::Cable | Kind::Bond | Kind::Bridge if self.addresses.is_empty() => Some(Objection::NoAddress),
            Kind::Cable | Kind::Bond | Kind::Bridge => None,
        }
    }

    /// Whether it is worth a link once its cable is plugged in.
    pub fn is_cable(&self) -> bool {
        matches!(self.objection(), None | Some(Objection::Down | Objection::NoCarrier | Objection::NoAddress))
    }
}

/// Why an interface is left out unless it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// It leads to this machine itself.
    Loopback,
    /// Nobody has set it up.
    Down,
    /// Its cable is not plugged in.
    NoCarrier,
    /// It has no address, not even a link-local one.
    NoAddress,
    /// It is a part of that interface.
    PortOf(String),
    /// A bridge of containers or virtual machines.
    InnerBridge,
    /// A tunnel of that kind.
    Tunnel(String),
    /// It leads nowhere.
    Nowhere(String),
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Objection::Loopback => write!(f, "loopback"),
            Objection::Down => write!(f, "it is down"),
            Objection::NoCarrier => write!(f, "no carrier: nothing at the other end of the cable"),
            Objection::NoAddress => write!(f, "no address, not even an IPv6 link-local one"),
            Objection::PortOf(whole) => write!(f, "part of {whole}"),
            Objection::InnerBridge => write!(f, "a bridge of containers or virtual machines"),
            Objection::Tunnel(kind) => write!(f, "a tunnel ({kind})"),
            Objection::Nowhere(kind) => write!(f, "leads nowhere ({kind})"),
        }
    }
}

/// All interfaces, by index.
///
/// # Errors
/// Those of the rtnetlink socket. An interface or address that makes no sense to us is left out.
pub fn list() -> io::Result<Vec<Interface>> {
    let mut interfaces = list_without_speed()?;
    for interface in &mut interfaces {
        interface.speed_mbit = speed(interface).unwrap_or(0);
    }
    Ok(interfaces)
}

/// The same, but nobody is asked for its speed, which takes three calls of the system for each.
///
/// # Errors
/// As [`list`].
pub fn list_without_speed() -> io::Result<Vec<Interface>> {
    let links = dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let addresses = dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
    let links: Vec<LinkMessage> = links.into_iter().filter_map(link_message).collect();
    let addresses: Vec<AddressMessage> = addresses.into_iter().filter_map(address_message).collect();
    Ok(assemble(&links, &addresses))
}

/// What each interface has carried, by name.
///
/// # Errors
/// As [`list`].
pub fn carried() -> io::Result<Vec<(String, Carried)>> {
    let links = dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let links = links.into_iter().filter_map(link_message);
    Ok(links.map(|link| (said(&link).name.to_owned(), said(&link).carried)).collect())
}

fn link_message(message: RouteNetlinkMessage) -> Option<LinkMessage> {
    match message {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    }
}

fn address_message(message: RouteNetlinkMessage) -> Option<AddressMessage> {
    match message {
        RouteNetlinkMessage::NewAddress(address) => Some(address),
        _ => None,
    }
}

/// The answers to one question.
fn dump(question: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut asked = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(question));
    asked.header.flags = NLM_F_DUMP | NLM_F_REQUEST;
    asked.header.sequence_number = 1;
    asked.finalize();
    let mut bytes = vec![0; asked.buffer_len()];
    asked.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        // a message begins with its length
        while let Some(length) = rest.first_chunk().map(|l| u32::from_ne_bytes(*l) as usize) {
            if length < 16 || length > rest.len() {
                break;
            }
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&rest[..length]);
            match message.map(|m| m.payload) {
                Ok(NetlinkPayload::Done(_)) => return Ok(answers),
                Ok(NetlinkPayload::Error(e)) => return Err(e.to_io()),
                Ok(NetlinkPayload::InnerMessage(message)) => answers.push(message),
                // of a kernel that knows more than we do
                Ok(_) | Err(_) => {}
            }
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
    }
}

/// What the attributes of one interface say.
#[derive(Default)]
struct Said<'a> {
    name: &'a str,
    mtu: u32,
    link: Option<u32>,
    /// `link` is an index of another network namespace.
    link_is_elsewhere: bool,
    controller: Option<u32>,
    kind: Option<&'a InfoKind>,
    port_kind: Option<&'a InfoPortKind>,
    carried: Carried,
}

fn said(link: &LinkMessage) -> Said<'_> {
    let mut said = Said::default();
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => said.name = name,
            LinkAttribute::Mtu(mtu) => said.mtu = *mtu,
            LinkAttribute::Link(index) => said.link = Some(*index).filter(|i| *i != 0 && *i != link.header.index),
            LinkAttribute::LinkNetNsId(_) => said.link_is_elsewhere = true,
            LinkAttribute::Controller(index) => said.controller = Some(*index).filter(|i| *i != 0),
            LinkAttribute::Stats64(stats) => said.carried = Carried { sent: stats.tx_bytes, received: stats.rx_bytes },
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => said.kind = Some(kind),
                        LinkInfo::PortKind(kind) => said.port_kind = Some(kind),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    said
}

fn assemble(links: &[LinkMessage], addresses: &[AddressMessage]) -> Vec<Interface> {
    let known: Vec<(u32, Said)> = links.iter().map(|l| (l.header.index, said(l))).collect();
    let name_of = |index: u32| known.iter().find(|(i, _)| *i == index).map(|(_, said)| said.name);
    let mut interfaces: Vec<Interface> = links
        .iter()
        .zip(&known)
        .filter(|(_, (_, said))| !said.name.is_empty())
        .map(|(link, (index, said))| {
            let has_cable = || {
                let ports = links.iter().zip(&known).filter(|(_, (_, port))| port.controller == Some(*index));
                ports.into_iter().any(|(link, (_, port))| is_cable_port(link, port))
            };
            // the other end of a veth is no interface below
            let below = said.link.filter(|_| !said.link_is_elsewhere && said.kind != Some(&InfoKind::Veth));
            Interface {
                name: said.name.to_owned(),
                index: *index,
                kind: kind(link, said, &name_of, has_cable),
                up: link.header.flags.contains(LinkFlags::Up),
                // without the up to one second by which the operational state lags behind
                carrier: link.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
                mtu: said.mtu,
                speed_mbit: 0,
                below,
                addresses: addresses.iter().filter(|a| a.header.index == *index).filter_map(address).collect(),
                carried: said.carried,
            }
        })
        .collect();
    interfaces.sort_by_key(|i| i.index);
    interfaces
}

/// A bridge's port that leads out of the machine: neither a container's veth nor a virtual machine's tap.
fn is_cable_port(link: &LinkMessage, said: &Said) -> bool {
    matches!(said.kind, None | Some(InfoKind::Bond | InfoKind::Team | InfoKind::Vlan))
        && link.header.link_layer_type == LinkLayerType::Ether
}

fn kind<'a>(
    link: &LinkMessage,
    said: &Said,
    name_of: &impl Fn(u32) -> Option<&'a str>,
    has_cable: impl FnOnce() -> bool,
) -> Kind {
    if link.header.flags.contains(LinkFlags::Loopback) {
        return Kind::Loopback;
    }
    // a VRF is a routing table, and its interfaces are links like others
    if let Some(whole) = said.controller.filter(|_| said.port_kind != Some(&InfoPortKind::Vrf)) {
        return Kind::PortOf(name_of(whole).unwrap_or("another interface").to_owned());
    }
    match said.kind {
        None if matches!(link.header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Infiniband) => Kind::Cable,
        None => Kind::Tunnel(format!("{:?}", link.header.link_layer_type).to_lowercase()),
        Some(InfoKind::Bond | InfoKind::Team) => Kind::Bond,
        Some(InfoKind::Bridge) => {
            if has_cable() {
                Kind::Bridge
            } else {
                Kind::InnerBridge
            }
        }
        Some(
            InfoKind::Veth
            | InfoKind::Netkit
            | InfoKind::Vlan
            | InfoKind::MacVlan
            | InfoKind::IpVlan
            | InfoKind::MacSec
            | InfoKind::Ipoib
            | InfoKind::Hsr
            | InfoKind::Dsa,
        ) => Kind::Cable,
        Some(
            other @ (InfoKind::Dummy
            | InfoKind::Ifb
            | InfoKind::Nlmon
            | InfoKind::Vrf
            | InfoKind::Vcan
            | InfoKind::Vxcan
            | InfoKind::Can
            | InfoKind::Netdevsim
            | InfoKind::MacVtap
            | InfoKind::IpVtap),
        ) => Kind::Nowhere(other.to_string()),
        Some(InfoKind::Other(word)) if word == "openvswitch" => Kind::InnerBridge,
        Some(tunnel) => Kind::Tunnel(tunnel.to_string()),
    }
}

fn address(message: &AddressMessage) -> Option<(IpAddr, u8)> {
    let flags = message.header.flags;
    if flags.intersects(AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed)
        && !flags.contains(AddressHeaderFlags::Optimistic)
    {
        return None;
    }
    // of a point-to-point interface `Address` is the other end's
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let any = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    });
    Some((local.or(any)?, message.header.prefix_len))
}

/// From sysfs, unless that shows another network namespace.
fn speed(interface: &Interface) -> Option<u32> {
    let read = |file: &str| std::fs::read_to_string(format!("/sys/class/net/{}/{file}", interface.name)).ok();
    let is_ours = read("ifindex")?.trim().parse() == Ok(interface.index);
    let speed = read("speed").filter(|_| is_ours)?;
    u32::try_from(speed.trim().parse::<i64>().ok()?).ok()
}

/// Whether an address is known on its own cable only.
pub fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if Ipv6Addr::is_unicast_link_local(&v6))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, flags: LinkFlags, attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = flags;
        link.header.link_layer_type = LinkLayerType::Ether;
        link.attributes = attributes;
        link.attributes.push(LinkAttribute::IfName(name.into()));
        link
    }

    fn of_kind(kind: InfoKind) -> LinkAttribute {
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])
    }

    fn port_of(index: u32) -> LinkAttribute {
        LinkAttribute::Controller(index)
    }

    fn kinds(links: &[LinkMessage]) -> Vec<Kind> {
        assemble(links, &[]).into_iter().map(|i| i.kind).collect()
    }

    const UP: LinkFlags = LinkFlags::Up.union(LinkFlags::LowerUp);

    #[test]
    fn this_machine_has_a_loopback_interface_with_an_address() {
        let interfaces = list().unwrap();
        let lo = interfaces.iter().find(|i| i.kind == Kind::Loopback).unwrap();
        assert!(!lo.up || lo.addresses.iter().any(|(ip, _)| ip.is_loopback()), "{lo:?}");
        assert_eq!(lo.objection(), Some(Objection::Loopback));
    }

    #[test]
    fn a_bridge_of_containers_and_its_ports_are_no_links_and_a_bridge_with_a_cable_is() {
        let found = kinds(&[
            link(2, "eth0", UP, vec![port_of(5)]),
            link(3, "docker0", UP, vec![of_kind(InfoKind::Bridge)]),
            link(4, "veth1", UP, vec![of_kind(InfoKind::Veth), port_of(3)]),
            link(5, "vmbr0", UP, vec![of_kind(InfoKind::Bridge)]),
            link(6, "tap1", UP, vec![of_kind(InfoKind::Tun), port_of(5)]),
            link(7, "ours", UP, vec![of_kind(InfoKind::Veth)]),
        ]);
        assert_eq!(
            found,
            [
                Kind::PortOf("vmbr0".into()),
                Kind::InnerBridge,
                Kind::PortOf("docker0".into()),
                Kind::Bridge,
                Kind::PortOf("vmbr0".into()),
                Kind::Cable
            ]
        );
    }

    #[test]
    fn tunnels_and_dead_ends_are_told_from_cables_by_kind_and_not_by_name() {
        let found = kinds(&[
            link(2, "eth0", UP, vec![of_kind(InfoKind::Wireguard)]),
            link(3, "tun0", UP, vec![]),
            link(4, "eth1", UP, vec![of_kind(InfoKind::Dummy)]),
            link(5, "eth2", UP, vec![of_kind(InfoKind::Tun)]),
            link(6, "wg0", UP, vec![of_kind(InfoKind::Vlan), LinkAttribute::Link(3)]),
        ]);
        let tunnel = |kind: &str| Kind::Tunnel(kind.into());
        let nowhere = Kind::Nowhere("dummy".into());
        assert_eq!(found, [tunnel("wireguard"), Kind::Cable, nowhere, tunnel("tun"), Kind::Cable]);
    }

    #[test]
    fn a_cable_is_usable_if_it_is_up_and_plugged_in_and_has_an_address() {
        let at = |flags, address| {
            let mut message = AddressMessage::default();
            message.header.index = 2;
            message.header.prefix_len = 64;
            message.attributes.push(AddressAttribute::Address("fe80::1".parse().unwrap()));
            let addresses = if address { vec![message] } else { vec![] };
            assemble(&[link(2, "e", flags, vec![])], &addresses).remove(0)
        };
        assert_eq!(at(UP, true).objection(), None);
        assert_eq!(at(UP, false).objection(), Some(Objection::NoAddress));
        assert_eq!(at(LinkFlags::Up, true).objection(), Some(Objection::NoCarrier));
        assert_eq!(at(LinkFlags::LowerUp, true).objection(), Some(Objection::Down));
    }

    #[test]
    fn a_vlan_has_its_cable_below_and_a_veth_has_nothing() {
        let found = assemble(
            &[
                link(3, "eth0.7", UP, vec![of_kind(InfoKind::Vlan), LinkAttribute::Link(2)]),
                link(4, "v", UP, vec![of_kind(InfoKind::Veth), LinkAttribute::Link(9)]),
                link(
                    5,
                    "m",
                    UP,
                    vec![of_kind(InfoKind::MacVlan), LinkAttribute::Link(2), LinkAttribute::LinkNetNsId(0)],
                ),
            ],
            &[],
        );
        assert_eq!(found.iter().map(|i| i.below).collect::<Vec<_>>(), [Some(2), None, None]);
    }
}
