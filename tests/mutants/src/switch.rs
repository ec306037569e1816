//! Which mutant of this build is active. `XTRAIN_MUTANT=N` activates mutant N. `XTRAIN_MUTANT=record` activates none and
//! appends the number of each mutant that is reached to the file `XTRAIN_MUTANT_FILE`.
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

const COUNT: usize = 0;
const RECORD: u32 = u32::MAX;

static ACTIVE: OnceLock<u32> = OnceLock::new();
static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

#[inline]
pub(crate) fn on(mutant: u32) -> bool {
    let active = *ACTIVE.get_or_init(read);
    if active == RECORD {
        record(mutant);
    }
    active == mutant
}

fn read() -> u32 {
    match std::env::var("XTRAIN_MUTANT") {
        Ok(value) if value == "record" => RECORD,
        Ok(value) => value.parse().expect("XTRAIN_MUTANT is a number"),
        Err(_) => 0,
    }
}

#[cold]
fn record(mutant: u32) {
    if !REACHED[mutant as usize].swap(true, Ordering::Relaxed) {
        let file = std::env::var("XTRAIN_MUTANT_FILE").expect("XTRAIN_MUTANT_FILE is set");
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).expect("can be opened");
        file.write_all(format!("{mutant}\n").as_bytes()).expect("can be written");
    }
}
