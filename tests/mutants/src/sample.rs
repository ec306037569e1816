//! Which mutants a build contains: all of some modules, or a sample of more.
use std::collections::HashSet;

use crate::points::{Operators, Point};

/// The mutated files and directories, and how many of their mutants.
#[derive(Debug)]
pub struct Selection<'a> {
    pub modules: &'a [&'a str],
    /// None: all mutants of the basic operators.
    pub sample: Option<Sample<'a>>,
}

/// `count` mutants that depend on `seed` and on their keys only, and more of some files.
#[derive(Debug)]
pub struct Sample<'a> {
    pub count: usize,
    pub seed: u64,
    /// How many more, of the files that begin with a prefix.
    pub more: Vec<(&'a str, usize)>,
}

impl Selection<'_> {
    pub fn operators(&self) -> Operators {
        match self.sample {
            None => Operators::Basic,
            Some(_) => Operators::All,
        }
    }

    /// Removes the mutants that do not belong to the sample.
    pub fn choose<'p>(&self, points: impl Iterator<Item = &'p mut Point>) {
        let Some(Sample { count, seed, more }) = &self.sample else { return };
        let points: Vec<_> = points.collect();
        let keys = points.iter().flat_map(|point| &point.mutants).map(|(mutant, _)| &mutant.key);
        let mut ordered: Vec<_> = keys.map(|key| (hash(key, *seed), key.clone())).collect();
        ordered.sort_unstable();
        let total = ordered.len();
        let mut rest = ordered.into_iter().map(|(_, key)| key);
        let mut chosen: HashSet<_> = rest.by_ref().take(*count).collect();
        let mut rest: Vec<_> = rest.collect();
        for (prefix, count) in more {
            let (inside, outside): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|key| key.starts_with(prefix));
            let mut inside = inside.into_iter();
            chosen.extend(inside.by_ref().take(*count));
            rest = inside.chain(outside).collect();
        }
        println!("{} of {total} mutants are drawn", chosen.len());
        for point in points {
            point.mutants.retain(|(mutant, _)| chosen.contains(&mutant.key));
        }
    }
}

/// FNV-1a with a final mix.
fn hash(key: &str, seed: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut value =
        key.bytes().fold(start, |value, byte| (value ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    value ^= value >> 33;
    value = value.wrapping_mul(0xff51_afd7_ed55_8ccd);
    value ^ value >> 33
}
