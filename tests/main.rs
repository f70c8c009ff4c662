//! Behaviour, in one binary: each module says at its top what it shows.

mod house;
