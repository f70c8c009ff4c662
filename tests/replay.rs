//! Fuzzing that runs with the other tests: a target is a function over bytes that must not panic, a corpus is a folder
//! of inputs under `tests/corpus`. An input that once broke a target is added to its folder and stays.
//!
//! `BLAST_FUZZ_ROUNDS` sets the number of mutated inputs for each target, `BLAST_FUZZ_SEED` the seed.

use std::path::Path;
use std::{env, fs};

const ROUNDS: u64 = 20_000;

/// Inputs grow no longer than this.
const INPUT_MAX: usize = 96 << 10;

/// Run `target` over every input of the corpus, then over mutations of them.
pub fn replay(corpus: &str, target: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(corpus);
    let mut paths: Vec<_> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    let inputs: Vec<_> = paths.iter().map(|path| fs::read(path).expect("a readable input")).collect();
    assert!(!inputs.is_empty(), "{} holds no input", dir.display());
    for (path, input) in paths.iter().zip(&inputs) {
        run(target, input, &path.display().to_string());
    }
    let seed = number("BLAST_FUZZ_SEED").unwrap_or(0x626c_6173_7400_0001);
    println!("{corpus}: seed {seed}");
    let mut dice = Dice(seed);
    for round in 0..number("BLAST_FUZZ_ROUNDS").unwrap_or(ROUNDS) {
        let mut input = inputs[dice.below(inputs.len())].clone();
        for _ in 0..=dice.below(4) {
            mutate(&mut input, &inputs, &mut dice);
        }
        run(target, &input, &format!("round {round} of seed {seed}"));
    }
}

/// SplitMix64: enough chance for tests, and the same everywhere.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

fn mutate(input: &mut Vec<u8>, inputs: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(input.len() + 1);
    let end = at + dice.below((input.len() - at).min(64) + 1);
    match dice.below(7) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..end)),
        2 if input.len() < INPUT_MAX => {
            let copy = input[at..end].to_vec();
            input.splice(at..at, copy);
        }
        3 if input.len() < INPUT_MAX => {
            let other = &inputs[dice.below(inputs.len())];
            input.truncate(at);
            input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
        }
        4 => {
            let edges =
                [0u64, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x10_0000, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64];
            let edge = edges[dice.below(edges.len())].wrapping_add(dice.below(3) as u64).wrapping_sub(1).to_le_bytes();
            let len = [1, 2, 4, 8][dice.below(4)].min(input.len() - at);
            input[at..at + len].copy_from_slice(&edge[..len]);
        }
        5 if at < input.len() => input[at] = dice.next() as u8,
        _ if at < input.len() => input[at] ^= 1 << dice.below(8),
        _ => {}
    }
}

/// Run the target, and say which input broke it.
fn run(target: fn(&[u8]), input: &[u8], from: &str) {
    struct Told<'a>(&'a [u8], &'a str);
    impl Drop for Told<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let hex: String = self.0.iter().map(|b| format!("{b:02x}")).collect();
                eprintln!("the input of {} bytes ({}) that broke it: {hex}", self.0.len(), self.1);
            }
        }
    }
    let _told = Told(input, from);
    target(input);
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{variable}={value} is no number")))
}
