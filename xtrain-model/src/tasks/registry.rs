//! The built-in tasks by name.
use super::{Countdown, Counting, Reversing, Sorting, Sums, Task};

/// The names of the built-in tasks.
pub const NAMES: [&str; 5] = ["sums", "sorting", "reversing", "counting", "countdown"];

/// The built-in task `name`, one of [`NAMES`]. `None`: there is no such task.
pub fn by_name(name: &str) -> Option<Box<dyn Task + Send + Sync>> {
    Some(match name {
        "sums" => Box::new(Sums::default()),
        "sorting" => Box::new(Sorting::default()),
        "reversing" => Box::new(Reversing::default()),
        "counting" => Box::new(Counting::default()),
        "countdown" => Box::new(Countdown::default()),
        _ => return None,
    })
}
