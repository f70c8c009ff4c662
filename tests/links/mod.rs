//! The program on two hosts with real links between them, which are found, cut, silenced, damaged and slowed.

mod damage;
mod mtu;
mod names;
mod outages;
mod pairing;
mod rates;
