//! The sending conductor.

use std::sync::Arc;

use crate::error::Error;
use crate::options::SendOptions;
use crate::report::Report;
use crate::stats::Stats;

/// Run the sending side of a transfer to its end.
pub fn run(options: SendOptions, _stats: Arc<Stats>) -> Result<Report, Error> {
    Err(Error::Bug(format!("nothing can be sent to {} yet", options.host)))
}
