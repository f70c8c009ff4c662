//! blast moves a tree or a stream between two machines over every link they share, verified.
//! (The architecture is described here.)

pub mod archive;
pub mod chunk;
pub mod cli;
pub mod error;
pub mod flow;
pub mod ids;
pub mod limits;
pub mod link;
pub mod options;
pub mod recv;
pub mod report;
pub mod send;
pub mod sink;
pub mod source;
pub mod stats;
pub mod sys;
pub mod wire;

pub use error::{Error, ExitCode};
