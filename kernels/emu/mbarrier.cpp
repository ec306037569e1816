// Barriers in shared memory (mbarrier). A bulk copy arrives when a thread waits for its phase, never earlier; its
// destination is poisoned from the moment it is issued.
#include "mbarrier.hpp"

#include "check.hpp"
#include "worker.hpp"

namespace xtemu {

static Mbarrier& barrier_at(const void* at, const char* file, int line) {
  auto found = worker->mbarriers.find(at);
  if (found == worker->mbarriers.end()) fail("%s:%d: an mbarrier that is not initialized", base(file), line);
  // its initialization must happen before this access
  if (worker->launch->checked) check_access(at, 8, Access::Atomic, file, line);
  return found->second;
}

void mbarrier_init(void* at, uint32_t arrivals, const char* file, int line) {
  Worker& w = *worker;
  if ((uintptr_t)at & 7) fail("%s:%d: the address of an mbarrier is not a multiple of 8", base(file), line);
  if (w.mbarriers.count(at)) fail("%s:%d: an mbarrier is initialized twice", base(file), line);
  if (w.launch->checked) check_access(at, 8, Access::Write, file, line);
  Mbarrier barrier{};
  barrier.arrivals = barrier.pending = arrivals;
  w.mbarriers.emplace(at, barrier);
}

void mbarrier_fence() {
  for (auto& barrier : worker->mbarriers) barrier.second.fenced = true;
}

// Ends the phase if nothing is missing but the bytes of copies that have been issued.
static void complete(Worker& w, Mbarrier& barrier) {
  uint64_t issued = 0;
  for (const BulkCopy& copy : barrier.copies) issued += copy.bytes();
  if (barrier.pending || barrier.bytes != issued) return;
  for (const BulkCopy& copy : barrier.copies) {
    land(copy);
    if (w.launch->checked) barrier.released[copy.thread->index] = tick();
  }
  barrier.copies.clear();
  barrier.bytes = 0;
  barrier.pending = barrier.arrivals;
  barrier.parity ^= 1;
  barrier.completed = barrier.released;
  for (Thread* thread : barrier.waiting) w.ready.add(thread->warp(), thread->bit());
  barrier.waiting.clear();
}

void mbarrier_arrive(void* at, uint32_t bytes, const char* file, int line) {
  Worker& w = *worker;
  Mbarrier& barrier = barrier_at(at, file, line);
  if (w.launch->checked) check_release(w, barrier.released);
  barrier.pending--;
  barrier.bytes += bytes;
  // unless a thread waits, copies remain on their way
  if (!barrier.waiting.empty() || barrier.copies.empty()) complete(w, barrier);
}

void mbarrier_wait(void* at, uint32_t parity, const char* file, int line) {
  Worker& w = *worker;
  Mbarrier& barrier = barrier_at(at, file, line);
  if (barrier.parity == parity) complete(w, barrier);
  while (barrier.parity == parity) {
    barrier.waiting.push_back(w.self);
    wait_as(w, State::AtMbarrier, file, line);
  }
  if (w.launch->checked) check_acquire(w, barrier.completed);
}

void bulk_copy_start(void* to, const void* map, uint32_t column, uint32_t row, void* at, const char* file, int line) {
  Worker& w = *worker;
  Mbarrier& barrier = barrier_at(at, file, line);
  if (!barrier.fenced)
    fail("%s:%d: a bulk copy to an mbarrier without a fence after its initialization", base(file), line);
  BulkCopy copy = bulk_copy(to, map, column, row, file, line);
  uint64_t issued = copy.bytes();
  for (const BulkCopy& other : barrier.copies) issued += other.bytes();
  if (issued > barrier.bytes)
    fail("%s:%d: bulk copies of %llu bytes to an mbarrier that expects %llu", base(file), line,
         (unsigned long long)issued, (unsigned long long)barrier.bytes);
  barrier.copies.push_back(copy);
  if (!barrier.waiting.empty()) complete(w, barrier);
}

void end_mbarriers(Worker& w) {
  for (const auto& barrier : w.mbarriers) {
    if (barrier.second.copies.empty()) continue;
    const BulkCopy& copy = barrier.second.copies[0];
    fail("%s:%d: the block exited with this bulk copy pending", base(copy.file), copy.line);
  }
}

}  // namespace xtemu
