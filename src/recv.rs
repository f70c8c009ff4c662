//! The receiving conductor.

use std::sync::Arc;

use crate::error::Error;
use crate::options::RecvOptions;
use crate::report::Report;
use crate::stats::Stats;

/// Run the receiving side of a transfer to its end.
pub fn run(options: RecvOptions, _stats: Arc<Stats>) -> Result<Report, Error> {
    Err(Error::Bug(format!("nothing can be received on port {} yet", options.port)))
}
