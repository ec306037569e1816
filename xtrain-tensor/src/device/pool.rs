//! A fork-join thread pool with dynamic claiming of chunks. Threads share outputs, never a reduction.
//!
//! A job is `chunks` calls of one closure. No worker can call a closure that no longer exists:
//! 1. The caller sets `busy` (a second or a nested caller runs its chunks itself), writes the closure's address to
//!    `job`, sets `done = 0`, then publishes `chunks` in `claims`.
//! 2. A thread that claims an index below `chunks` reads `job` and runs it. The job cannot end before this thread has
//!    counted the chunk in `done`.
//! 3. The caller returns when `done == chunks`. Then no thread holds a claim and no index is left, so no thread reads
//!    `job` before the next job is published.
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::faults;
use crate::lock::lock;
use crate::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Builder, Condvar, JoinHandle, Mutex, PoisonError, SharedCell,
    Spin, fence,
};

#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// The end from which a thread claims chunks. A thread uses the same end in every job, so most of its data is still
/// in its cache from the job before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

/// Bits of each of the three counters in [`Shared::claims`]: claims from the front (lowest bits), claims from the
/// back, number of chunks. The claims may exceed the number of chunks by one per thread.
const BITS: u32 = 21;

/// Maximum number of chunks of a job: half of what the counters hold.
const MAX_CHUNKS: usize = 1 << (BITS - 1);

/// Unpacks a word of claims: [claims from the front, claims from the back, chunks].
fn unpack_claims(word: u64) -> [usize; 3] {
    [0, BITS, 2 * BITS].map(|at| (word >> at) as usize & ((1 << BITS) - 1))
}

type Job = *const (dyn Fn(usize) + Sync);

#[derive(Debug, Default)]
struct Shared {
    busy: AtomicBool,
    /// The number of chunks and the claims from each [`End`].
    claims: AtomicU64,
    /// Number of completed chunks.
    done: AtomicUsize,
    job: SharedCell<Option<Job>>,
    stop: AtomicBool,
    /// Number of workers that sleep or are about to sleep.
    asleep: AtomicUsize,
    /// Whether the caller sleeps or is about to sleep.
    waiting: AtomicBool,
    /// The first panic of the running job. Its mutex also guards the two condition variables.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    published: Condvar,
    finished: Condvar,
}

// SAFETY: all fields but `job` are Sync. `job` is written only by the holder of `busy` while no index can be claimed,
// and read only by a thread that holds a claim. The read-modify-writes of `claims` order the write
// before the reads; those of `done` order the reads before the next write. The closure it points to is Sync.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is used only while the caller keeps the closure alive.
unsafe impl Send for Shared {}

impl Pool {
    /// Creates a pool of `threads` threads, including the caller's. It has fewer if the system cannot start them.
    pub(crate) fn new(threads: usize) -> Pool {
        let shared = Arc::<Shared>::default();
        let worker = |i| {
            let shared = shared.clone();
            let end = if i % 2 == 0 { End::Front } else { End::Back };
            Builder::new().spawn(move || shared.worker_loop(end)).ok()
        };
        let workers = (1..threads).map_while(worker).collect();
        Pool { shared, workers }
    }

    /// Number of threads, including the caller's.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f` once for each of `0..chunks` on the free threads. Returns when all calls have returned.
    ///
    /// A single chunk runs on the calling thread, which is faster for work below about 5 us. A nested
    /// call also runs there. If `f` panics, the panic is resumed here after the other calls have returned.
    pub(crate) fn run(&self, chunks: usize, f: impl Fn(usize) + Sync) {
        let serial = chunks <= 1 || self.workers.is_empty() || chunks > MAX_CHUNKS;
        if serial || self.shared.busy.swap(true, Acquire) {
            return (0..chunks).for_each(f);
        }
        let fault = faults::current();
        let f = |i| fault.enter(|| f(i));
        let job: *const (dyn Fn(usize) + Sync + '_) = &f;
        // SAFETY: only the lifetime changes. `run_job` returns when no thread can use the pointer any more, and `f`
        // lives until then.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Job>(job) };
        let panic = self.shared.run_job(job, chunks);
        self.shared.busy.store(false, Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Splits `out` into parts of `len` elements (the last may be shorter) and runs `f(i, part i)` for each, like
    /// [`Pool::run`].
    pub(crate) fn parts<T: Send>(&self, out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        let len = len.max(1);
        let total = out.len();
        let out = Disjoint::new(out);
        self.run(total.div_ceil(len), |i| {
            // SAFETY: `run` passes each i once, and the ranges of different i are disjoint.
            f(i, unsafe { out.slice(i * len..total.min((i + 1) * len)) })
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        drop(lock(&self.shared.panic));
        self.shared.published.notify_all();
        for worker in self.workers.drain(..) {
            // a worker catches the panics of jobs and does not panic itself
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Runs a job from the caller's thread, which holds `busy`. Returns the panic of the job, if any.
    fn run_job(&self, job: Job, chunks: usize) -> Option<Box<dyn Any + Send>> {
        // SAFETY: the previous job has ended (`busy` was free), so no thread holds a claim or can get one before the
        // store below. No other thread accesses the cell.
        unsafe { self.job.set(Some(job)) };
        self.done.store(0, Relaxed);
        // a store would do, but loom does not order it after a concurrent claim of the previous job
        self.claims.swap((chunks as u64) << (2 * BITS), AcqRel);
        fence(SeqCst); // with that of `sleep`
        if self.asleep.load(Relaxed) > 0 {
            drop(lock(&self.panic));
            self.published.notify_all();
        }
        self.run_claimed(End::Front);
        self.await_end(chunks);
        lock(&self.panic).take()
    }

    fn worker_loop(&self, end: End) {
        let mut idle = Spin::default();
        while !self.stop.load(Relaxed) {
            if self.run_claimed(end) {
                idle = Spin::default();
            } else if !idle.again() {
                self.sleep();
                idle = Spin::default();
            }
        }
    }

    /// Claims and runs chunks until none is left, then counts them. Returns whether it ran any.
    fn run_claimed(&self, end: End) -> bool {
        let mut count = 0;
        let mut chunks = 0;
        while let Some((index, of)) = self.claim(end) {
            // SAFETY: this thread holds a claim. So `job` was written before the claim was published, and until the
            // claim is counted below it is not written again and points to a live closure.
            let result = unsafe {
                self.job.with(|job| {
                    let f = &*job.expect("a published job has a closure");
                    catch_unwind(AssertUnwindSafe(|| f(index)))
                })
            };
            if let Err(panic) = result {
                lock(&self.panic).get_or_insert(panic);
            }
            (count, chunks) = (count + 1, of);
        }
        if count > 0 && self.done.fetch_add(count, AcqRel) + count == chunks {
            fence(SeqCst); // with that of `await_end`
            if self.waiting.load(Relaxed) {
                drop(lock(&self.panic));
                self.finished.notify_all();
            }
        }
        count > 0
    }

    /// Claims the next index from `end`. Returns it with the number of chunks, or `None` if no index is left.
    fn claim(&self, end: End) -> Option<(usize, usize)> {
        // check first: idle threads must not increment one counter until it overflows into the next
        if !self.has_claims() {
            return None;
        }
        let one = if end == End::Front { 1 } else { 1 << BITS };
        let [front, back, chunks] = unpack_claims(self.claims.fetch_add(one, AcqRel));
        let index = if end == End::Front { front } else { chunks.wrapping_sub(1 + back) };
        (front + back < chunks).then_some((index, chunks))
    }

    /// Sleeps until a job is published or the pool ends.
    fn sleep(&self) {
        let mut guard = lock(&self.panic);
        self.asleep.fetch_add(1, Relaxed);
        // Either the load below sees the job, or the caller's load of `asleep` sees this thread. In the second case
        // the caller notifies after it has taken the lock, that is, after the wait has begun.
        fence(SeqCst);
        while !self.stop.load(Relaxed) && !self.has_claims() {
            guard = self.published.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Relaxed);
    }

    fn has_claims(&self) -> bool {
        let [front, back, chunks] = unpack_claims(self.claims.load(Relaxed));
        front + back < chunks
    }

    /// Waits until all chunks are counted. It spins first, then sleeps.
    fn await_end(&self, chunks: usize) {
        let mut idle = Spin::default();
        while self.done.load(Acquire) != chunks {
            if idle.again() {
                continue;
            }
            let mut guard = lock(&self.panic);
            self.waiting.store(true, Relaxed);
            // Either the load below sees the last chunk, or the load of `waiting` after the last chunk sees this thread.
            fence(SeqCst);
            while self.done.load(Acquire) != chunks {
                guard = self.finished.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.waiting.store(false, Relaxed);
        }
    }
}

/// A mutable slice whose disjoint parts are written by the calls of one job.
#[derive(Debug)]
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out parts of a `&mut [T]`. `slice` requires that they are disjoint, so sharing it is the same as
// sending those parts to other threads.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Borrows `slice` for as long as the parts are in use.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of element `at`, which may be one past the end.
    ///
    /// # Panics
    /// If `at` is greater than the length.
    pub(crate) fn at(&self, at: usize) -> *mut T {
        assert!(at <= self.len, "index {at} is out of bounds of {} elements", self.len);
        self.start.wrapping_add(at)
    }

    /// Returns the elements of `range`.
    ///
    /// # Safety
    /// No other slice with any of these elements may be in use at the same time.
    ///
    /// # Panics
    /// If `range` is out of bounds.
    #[allow(clippy::mut_from_ref, reason = "the caller guarantees disjointness")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range {range:?} is out of bounds of {} elements",
            self.len
        );
        // SAFETY: inside the borrowed slice, checked above; no other slice holds these elements, by contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::SPIN_LIMIT;

    #[test]
    fn every_index_runs_once_whatever_the_number_of_threads_and_chunks() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for round in 0..3_000 {
                let mut hits = vec![0u8; round % 37];
                pool.parts(&mut hits, 1, |_, hit| hit[0] += 1);
                assert!(hits.iter().all(|&h| h == 1), "{threads} threads, round {round}: {hits:?}");
            }
        }
    }

    #[test]
    fn a_sleeping_pool_wakes_for_the_next_job() {
        let pool = Pool::new(3);
        for round in 0..100u64 {
            std::thread::sleep(SPIN_LIMIT * (round % 3) as u32);
            let sum = AtomicU64::new(0);
            pool.run(8, |i| {
                if i == 3 && round % 4 == 0 {
                    // up to twice the limit: the caller sleeps too
                    std::thread::sleep(SPIN_LIMIT * (round % 12) as u32 / 4);
                }
                sum.fetch_add(i as u64 + round, Relaxed);
            });
            assert_eq!(sum.into_inner(), 28 + 8 * round);
        }
    }

    #[test]
    fn nested_and_concurrent_jobs_run_on_their_callers() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..500 {
                        pool.run(3, |_| pool.run(2, |_| _ = count.fetch_add(1, Relaxed)));
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 3 * 500 * 6);
    }

    #[cfg(feature = "faults")]
    #[test]
    fn every_thread_has_the_fault_of_the_caller_during_the_job() {
        let (pool, fault) = (Pool::new(3), faults::Fault::ALL[0]);
        assert_eq!(pool.threads(), 3);
        let count_faults = |pool: &Pool| {
            let (count, threads) =
                (AtomicUsize::new(0), std::sync::Mutex::new(std::collections::HashSet::new()));
            while threads.lock().unwrap().len() < 2 {
                pool.run(64, |_| {
                    threads.lock().unwrap().insert(std::thread::current().id());
                    count.fetch_add(usize::from(faults::on(fault)), Relaxed);
                    std::thread::sleep(std::time::Duration::from_micros(20));
                });
            }
            count.into_inner()
        };
        let with = faults::with(fault, || count_faults(&pool));
        assert!(with >= 64 && with.is_multiple_of(64), "{with}");
        assert_eq!(count_faults(&pool), 0);
    }

    #[test]
    fn a_panic_reaches_the_caller_after_the_other_chunks_and_the_pool_stays_usable() {
        let pool = Pool::new(3);
        for bad in 0..20 {
            let count = AtomicUsize::new(0);
            let job = || {
                pool.run(20, |i| {
                    assert!(i != bad, "planted {i}");
                    count.fetch_add(1, Relaxed);
                })
            };
            let panic = catch_unwind(AssertUnwindSafe(job)).expect_err("one chunk panics");
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("planted {bad}")));
            assert_eq!(count.into_inner(), 19);
        }
    }

    /// Chunks write one element without an order between them: undefined behavior.
    #[test]
    #[ignore = "scripts/thread-sanitizer.sh runs it and expects a report"]
    fn a_data_race_for_the_thread_sanitizer() {
        let (pool, mut out) = (Pool::new(2), [0u8]);
        let shared = Disjoint::new(&mut out);
        pool.run(1000, |i| {
            // SAFETY: it is not safe. The sanitizer has to end the program here.
            unsafe { shared.slice(0..1)[0] = i as u8 };
            // the other thread takes chunks, too
            std::thread::sleep(std::time::Duration::from_micros(100));
        });
    }

    #[test]
    fn parts_cover_the_slice_and_the_last_may_be_short() {
        let mut out = vec![0; 103];
        Pool::new(2).parts(&mut out, 10, |i, part| part.fill(i + 1));
        assert!(out.iter().enumerate().all(|(at, &x)| x == at / 10 + 1));
    }
}
