//! The loop whose time is the unit of `xtrain bench guard`. It must never change: every committed ratio depends on it.
use std::hint::black_box;
use std::time::Instant;

const VALUES: usize = 32;
const STEPS: usize = 1 << 18;

/// Milliseconds of `STEPS` times y = y * a + b over independent f32 values: arithmetic in registers only, so the time
/// follows the clock rate of the core.
pub(super) fn measure() -> f64 {
    let clock = Instant::now();
    let (a, b) = (black_box(0.999_f32), black_box(0.001_f32));
    let mut y = black_box([0.5_f32; VALUES]);
    for _ in 0..STEPS {
        for y in &mut y {
            *y = *y * a + b;
        }
    }
    black_box(y);
    clock.elapsed().as_secs_f64() * 1e3
}
