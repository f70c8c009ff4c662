//! The program as its users meet it: two processes, over loopback, from the command line to the exit code.

mod attributes;
mod changing;
mod closed;
mod commands;
mod compression;
mod confined;
mod damage;
mod devices;
mod failures;
mod finish;
mod hostile_recv;
mod hostile_send;
mod kills;
mod lands;
mod manifest;
mod memory;
mod moving;
mod peers;
mod quiet;
mod select;
mod shared;
mod strangers;
mod streams;
mod tree;
mod wire_peer;
mod zeros;
