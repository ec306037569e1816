//! Worker threads over independent outputs: a fork-join pool with dynamic claiming.
//!
//! A job is `chunks` calls of one closure. Its life, and why no worker ever sees a dead closure:
//! 1. the caller takes `busy` (a second caller, and a nested one, run their chunks themselves), writes
//!    the closure's address to `job`, sets `done = 0`, then publishes `chunks` in `claims`;
//! 2. whoever wins an index below `chunks` from `claims` reads `job` and runs it. The job cannot end
//!    before this thread has counted the chunk in `done`;
//! 3. the caller returns when `done == chunks`: then no thread holds a claim, and no index is left, so
//!    nobody reads `job` before the next job is published.
use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::faults;

/// How long a thread that looks for work keeps its core to itself.
const SPIN: Duration = Duration::from_micros(100);

/// How long it looks for work at all, offering its core to others, before it sleeps. To sleep and to be
/// woken costs 50 us and more on a virtual machine, and what a step does between two jobs takes less.
const PATIENCE: Duration = Duration::from_millis(5);

/// A fork-join pool. Outputs are split among threads, reductions never.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// Where a thread looks for its next chunk. The same threads come from the same end in every job, so
/// most of what a thread reads is what it wrote in the job before, and still in its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

/// Bits of each of the three numbers in [`Shared::claims`]: from the front in the lowest, then from the
/// back, then the chunks. Claims may run past the chunks by one a thread.
const BITS: u32 = 21;

/// The most chunks of a job: half of what the bits hold.
const MOST_CHUNKS: usize = 1 << (BITS - 1);

/// What a word of claims says: claimed from the front, from the back, and the chunks.
fn claimed(word: u64) -> [usize; 3] {
    [0, BITS, 2 * BITS].map(|at| (word >> at) as usize & ((1 << BITS) - 1))
}

type Job = *const (dyn Fn(usize) + Sync);

#[derive(Debug)]
struct Shared {
    /// Whether a job is under way.
    busy: AtomicBool,
    /// The job's chunks, and how many were claimed from either [`End`].
    claims: AtomicU64,
    /// Chunks that were run to their end.
    done: AtomicUsize,
    /// The closure of the job under way.
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    /// Workers that sleep, or are about to.
    asleep: AtomicUsize,
    /// Whether the caller sleeps, or is about to.
    waiting: AtomicBool,
    /// The first panic of the job under way. Its lock also guards the two conditions.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    published: Condvar,
    finished: Condvar,
}

// SAFETY: all fields but `job` are Sync. `job` is written only by the holder of `busy` while no index
// can be claimed, and read only by a thread that holds a claim; the store and the read-modify-writes of
// `claims` order the write before the reads, those of `done` the reads before the next write. What it
// points to is Sync.
unsafe impl Sync for Shared {}
// SAFETY: as above: the pointer is used only while the caller keeps its closure alive.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads, the caller's among them; of fewer where the system refuses more.
    pub(crate) fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            busy: AtomicBool::new(false),
            claims: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            asleep: AtomicUsize::new(0),
            waiting: AtomicBool::new(false),
            panic: Mutex::new(None),
            published: Condvar::new(),
            finished: Condvar::new(),
        });
        let worker = |i| {
            let shared = shared.clone();
            let end = if i % 2 == 0 { End::Front } else { End::Back };
            std::thread::Builder::new().spawn(move || shared.work(end)).ok()
        };
        let workers = (1..threads).map_while(worker).collect();
        Pool { shared, workers }
    }

    /// Worker threads, the caller's among them.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f` once for each of `0..chunks`, on whichever thread is free, and returns when all calls
    /// have. One chunk stays on this thread, which is right for work below about 5 us; so does a call
    /// from inside a job. A panic of `f` is raised again here, after the other calls have ended.
    pub(crate) fn run(&self, chunks: usize, f: impl Fn(usize) + Sync) {
        let few = chunks <= 1 || self.workers.is_empty() || chunks > MOST_CHUNKS;
        if few || self.shared.busy.swap(true, Acquire) {
            return (0..chunks).for_each(f);
        }
        let carried = faults::current();
        let f = |i| carried.enter(|| f(i));
        let job: *const (dyn Fn(usize) + Sync + '_) = &f;
        // SAFETY: only the lifetime changes. `lead` returns when no thread can use the pointer any
        // more, and `f` lives until then.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Job>(job) };
        let panic = self.shared.lead(job, chunks);
        self.shared.busy.store(false, Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Cuts `out` into parts of `len` elements (the last may be shorter) and calls `f(i, part i)` for
    /// each, as [`Pool::run`] does.
    pub(crate) fn parts<T: Send>(&self, out: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        let len = len.max(1);
        let total = out.len();
        let out = Disjoint::new(out);
        self.run(total.div_ceil(len), |i| {
            // SAFETY: `run` passes each i once, and the ranges of different i do not meet.
            f(i, unsafe { out.slice(i * len..total.min((i + 1) * len)) })
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        drop(self.shared.lock());
        self.shared.published.notify_all();
        for worker in self.workers.drain(..) {
            // a worker catches the panics of jobs and has none of its own
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Runs a job from the caller's thread; the caller holds `busy`. Returns a panic of the job.
    fn lead(&self, job: Job, chunks: usize) -> Option<Box<dyn Any + Send>> {
        // SAFETY: the previous job has ended (`busy` was free), so no thread holds a claim or can get
        // one before the store below: nobody else touches the cell.
        unsafe { *self.job.get() = Some(job) };
        self.done.store(0, Relaxed);
        self.claims.store((chunks as u64) << (2 * BITS), SeqCst);
        if self.asleep.load(SeqCst) > 0 {
            drop(self.lock());
            self.published.notify_all();
        }
        self.run_claimed(End::Front);
        self.await_end(chunks);
        self.lock().take()
    }

    /// A worker's life.
    fn work(&self, end: End) {
        let mut idle_since = None;
        while !self.stop.load(Relaxed) {
            if self.run_claimed(end) {
                idle_since = None;
            } else if !linger(*idle_since.get_or_insert_with(Instant::now)) {
                self.sleep();
                idle_since = None;
            }
        }
    }

    /// Claims and runs chunks until none is left, then counts them. Whether there was any.
    fn run_claimed(&self, end: End) -> bool {
        let mut count = 0;
        let mut chunks = 0;
        while let Some((index, of)) = self.claim(end) {
            // SAFETY: this thread holds a claim, so `job` was written before the claim was published,
            // is not written again, and points to a live closure, until the claim is counted below.
            let f = unsafe { &*(*self.job.get()).expect("a published job has its closure") };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| f(index))) {
                self.lock().get_or_insert(panic);
            }
            (count, chunks) = (count + 1, of);
        }
        if count > 0 && self.done.fetch_add(count, SeqCst) + count == chunks && self.waiting.load(SeqCst) {
            drop(self.lock());
            self.finished.notify_all();
        }
        count > 0
    }

    /// The next index from `end` and the number of chunks, if any is left.
    fn claim(&self, end: End) -> Option<(usize, usize)> {
        // look first: a thread that finds nothing must not drive one number into the next
        if !self.has_claims() {
            return None;
        }
        let one = if end == End::Front { 1 } else { 1 << BITS };
        let [front, back, chunks] = claimed(self.claims.fetch_add(one, AcqRel));
        let index = if end == End::Front { front } else { chunks.wrapping_sub(1 + back) };
        (front + back < chunks).then_some((index, chunks))
    }

    /// Sleeps until a job is published or the pool ends.
    fn sleep(&self) {
        let mut guard = self.lock();
        self.asleep.fetch_add(1, SeqCst);
        // Either this load sees the job, or the caller's load of `asleep` sees this thread and notifies
        // after the lock is free, that is, after the wait has begun.
        while !self.stop.load(SeqCst) && !self.has_claims() {
            guard = self.published.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, SeqCst);
    }

    fn has_claims(&self) -> bool {
        let [front, back, chunks] = claimed(self.claims.load(SeqCst));
        front + back < chunks
    }

    /// Waits until all chunks are counted: awake at first, then asleep.
    fn await_end(&self, chunks: usize) {
        let since = Instant::now();
        while self.done.load(Acquire) != chunks {
            if linger(since) {
                continue;
            }
            let mut guard = self.lock();
            self.waiting.store(true, SeqCst);
            while self.done.load(SeqCst) != chunks {
                guard = self.finished.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.waiting.store(false, SeqCst);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits a little, awake, for what a thread has waited for since `since`. False when it should sleep.
fn linger(since: Instant) -> bool {
    let waited = since.elapsed();
    if waited < SPIN {
        (0..2).for_each(|_| spin_loop());
    } else {
        std::thread::yield_now();
    }
    waited < PATIENCE
}

/// A slice of which the calls of one job write disjoint parts.
#[derive(Debug)]
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out parts of a `&mut [T]`; `slice` demands that no two of them meet, so sharing it
// is sending those parts to other threads.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Borrows `slice` for as long as the parts are in use.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// How many elements there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The address of element `at`, which may be one past the end.
    ///
    /// # Panics
    /// When it is further.
    pub(crate) fn at(&self, at: usize) -> *mut T {
        assert!(at <= self.len, "{at} leaves {}", self.len);
        self.start.wrapping_add(at)
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// While the returned slice is in use, no other in use holds any of its elements.
    ///
    /// # Panics
    /// When `range` leaves the slice.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} leaves {}", self.len);
        // SAFETY: inside the borrowed slice, checked above, and held by nobody else, by contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_pool_that_fell_asleep_wakes_for_the_next_job() {
        let pool = Pool::new(3);
        for round in 0..100u64 {
            std::thread::sleep(PATIENCE * (round % 3) as u32);
            let sum = AtomicU64::new(0);
            pool.run(8, |i| {
                if i == 3 && round % 4 == 0 {
                    std::thread::sleep(PATIENCE * (round % 12) as u32 / 4); // to twice: the caller sleeps too
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
    fn every_thread_has_the_fault_of_the_caller_for_as_long_as_the_job_lasts() {
        let (pool, name) = (Pool::new(3), faults::Fault::ALL[0]);
        assert_eq!(pool.threads(), 3);
        let seen = |pool: &Pool| {
            let (count, met) = (AtomicUsize::new(0), std::sync::Mutex::new(std::collections::HashSet::new()));
            while met.lock().unwrap().len() < 2 {
                pool.run(64, |_| {
                    met.lock().unwrap().insert(std::thread::current().id());
                    count.fetch_add(usize::from(faults::on(name)), Relaxed);
                    std::thread::sleep(Duration::from_micros(20));
                });
            }
            count.into_inner()
        };
        let with = faults::with(name, || seen(&pool));
        assert!(with >= 64 && with.is_multiple_of(64), "{with}");
        assert_eq!(seen(&pool), 0);
    }

    #[test]
    fn a_panic_reaches_the_caller_after_the_other_chunks_and_the_pool_lives_on() {
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

    #[test]
    fn parts_cover_the_slice_and_the_last_may_be_short() {
        let mut out = vec![0; 103];
        Pool::new(2).parts(&mut out, 10, |i, part| part.fill(i + 1));
        assert!(out.iter().enumerate().all(|(at, &x)| x == at / 10 + 1));
    }
}
