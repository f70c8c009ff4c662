//! Raw streams and files.
