//! The program on two hosts with real links between them, which are found, cut, silenced, damaged and slowed.

mod auto;
mod damage;
mod frozen;
mod knobs;
mod mtu;
mod names;
mod one_way;
mod outages;
mod pairing;
mod rates;
mod returns;
mod sockets;
mod survey;
