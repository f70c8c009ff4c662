//! The program on two hosts with real links between them, which are found, cut, silenced, damaged and slowed.

mod damage;
mod frozen;
mod mtu;
mod names;
mod one_way;
mod outages;
mod pairing;
mod rates;
mod returns;
