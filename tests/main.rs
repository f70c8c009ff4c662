//! Behaviour, in one binary: each module says at its top what it shows.

mod archive_fuzz;
mod archive_readers;
mod command;
mod end_to_end;
mod ends;
mod hosts;
mod house;
mod instructions;
mod links;
mod pair;
mod race;
mod relay;
mod replay;
mod simulation;
mod sink_classes;
mod sink_faults;
mod sink_feed;
mod sink_forge;
mod sink_forged;
mod sink_hostile;
mod sink_table;
mod sink_tree;
mod trees;
mod wire_fuzz;
mod wire_golden;
