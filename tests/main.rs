//! Behaviour, in one binary: each module says at its top what it shows.

mod archive_fuzz;
mod archive_readers;
mod command;
mod end_to_end;
mod ends;
mod flow_fuzz;
mod hosts;
mod house;
mod instructions;
mod links;
mod pair;
mod relay;
mod replay;
mod simulation;
mod sink_faults;
mod sink_feed;
mod sink_hostile;
mod sink_table;
mod sink_tree;
mod targets;
mod trees;
mod wire_fuzz;
mod wire_golden;
