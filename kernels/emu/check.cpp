// The rules of the checked device. Two accesses to the same address race if at least one is a write, they are not
// both atomic, and no synchronization orders their threads between them.
#include "check.hpp"

#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "shadow.hpp"

namespace xtemu {

void (*on_fault)() = nullptr;

// ---- counting reads of one range
static std::atomic<const char*> watch_at{nullptr};
static std::atomic<size_t> watch_bytes{0};
static std::atomic<uint64_t> watch_read{0};

void watch(const void* at, size_t bytes) { watch_at = (const char*)at, watch_bytes = bytes, watch_read = 0; }
uint64_t watched() { return watch_read; }
void count_read(const void* at, size_t bytes) {
  if ((size_t)((const char*)at - watch_at.load(std::memory_order_relaxed)) <
      watch_bytes.load(std::memory_order_relaxed))
    watch_read.fetch_add(bytes, std::memory_order_relaxed);
}

// ---- logical clock
static std::atomic<uint64_t> clock_{1};
uint64_t tick() { return clock_.fetch_add(1, std::memory_order_relaxed) + 1; }
static uint64_t now() { return clock_.load(std::memory_order_relaxed); }

void check_launch(Launch& launch) { launch.begin = tick(); }

void check_block(Worker& w) {
  w.block_synced = tick();
  w.launch->block_begins.push_back(w.block_synced);
  w.acquired.clear();
  for (Warp& warp : w.warps) {
    warp.synced = 0;
    warp.lane_clocks.reset();
  }
}

void check_collective(Warp& warp, uint32_t mask) {
  uint64_t time = tick();
  if (mask == warp.full) {
    warp.synced = time;
    return;
  }
  if (!warp.lane_clocks) warp.lane_clocks = std::make_unique<LaneClocks>();
  auto& until = warp.lane_clocks->until;
  for (int other = 0; other < 32; other++) {
    uint64_t known = mask >> other & 1 ? time : 0;
    for (int i = 0; i < 32; i++)
      if (mask >> i & 1) known = std::max(known, until[i][other]);
    for (int i = 0; i < 32; i++)
      if (mask >> i & 1) until[i][other] = known;
  }
}

void check_release_acquire(Worker& w, const void* counter) {
  auto& released = w.launch->released[counter];
  w.acquired.insert(w.acquired.end(), released.begin(), released.end());
  Released one{w.launch->block_begins.back(), w.block_synced, {}};
  check_release(w, one.clocks);
  released.push_back(one);
}

void check_release(const Worker& w, Clocks& clocks) {
  const Thread& self = *w.self;
  const Warp& warp = w.warps[self.warp()];
  clocks.resize(w.threads.size());
  for (size_t i = 0; i < clocks.size(); i++) {
    uint64_t known = self.acquired.empty() ? 0 : self.acquired[i];
    if ((int)(i / 32) == self.warp()) {
      known = std::max(known, warp.synced);
      if (warp.lane_clocks) known = std::max(known, warp.lane_clocks->until[self.index & 31][i & 31]);
    }
    clocks[i] = std::max({clocks[i], known, w.block_synced});
  }
  clocks[self.index] = tick();
}

void check_acquire(Worker& w, const Clocks& clocks) {
  Clocks& acquired = w.self->acquired;
  acquired.resize(w.threads.size());
  for (size_t i = 0; i < clocks.size(); i++) acquired[i] = std::max(acquired[i], clocks[i]);
}

// ---- shadow states
static void set(void* at, size_t bytes, uint8_t state) {
  const Shadow& s = shadow();
  std::fill_n(s.state + pair(s, at), (bytes + 1) / 2, state);
}
void mark_fresh(void* at, size_t bytes) { set(at, bytes, LIVE | SHARED); }
void mark_free(void* at, size_t bytes) { set(at, bytes, 0); }
void mark_in_flight(void* at, size_t bytes, bool on) {
  set(at, bytes, LIVE | SHARED | WRITTEN | (on ? IN_FLIGHT : 0));
}

// ---- happens-before
// The running thread at the current time: decides which earlier accesses happen before it.
struct Observer {
  const Worker& w;
  const Thread& self;
  const Warp& warp;
  uint64_t time = now();
  bool shared = false;  // the address is in shared memory

  explicit Observer(const Worker& worker) : w(worker), self(*w.self), warp(w.warps[self.warp()]) {}

  uint64_t block_begin() const { return w.launch->block_begins.back(); }

  // Whether an access of thread `thread` of any block at `then` happens before the current point of this block: by
  // launch order, by a counter, or (in shared memory) because it belongs to an earlier block.
  bool before(uint64_t then, uint32_t thread) const {
    if (then < (shared ? block_begin() : w.launch->begin)) return true;
    return std::any_of(w.acquired.begin(), w.acquired.end(), [&](const Released& r) { return r.has(then, thread); });
  }

  // Whether an access by lane `lane` of warp `in` at `then` happens before the current time.
  bool ordered(uint64_t then, int in, int lane) const {
    if (before(then, (uint32_t)(in * 32 + lane))) return true;
    if (then < block_begin()) return false;  // another block
    if (then < w.block_synced) return true;
    if (!self.acquired.empty() && then < self.acquired[in * 32 + lane]) return true;
    if (in != self.warp()) return false;
    return lane == (int)(self.index & 31) || then < warp.synced ||
           (warp.lane_clocks && then < warp.lane_clocks->until[self.index & 31][lane]);
  }

  // The lanes of a reader whose reads do not happen before the current time.
  uint32_t unordered(const Reader& r, uint32_t lanes) const {
    if (r.time < w.launch->begin || (r.time >= block_begin() && r.time < w.block_synced)) return 0;
    if (r.time < block_begin()) {
      if (shared) return 0;
      if (w.acquired.empty()) return lanes;
    } else if ((int)r.warp != self.warp() && self.acquired.empty()) {
      return lanes;
    }
    uint32_t left = 0;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      if (!ordered(r.time, r.warp, lowest(rest))) left |= rest & -rest;
    }
    return left;
  }
};

// ---- errors
// "block 3 thread 17", from an access time and a thread index
static std::string describe_thread(const Worker& w, uint64_t time, uint32_t thread) {
  const auto& begins = w.launch->block_begins;
  size_t nth = (size_t)(std::upper_bound(begins.begin(), begins.end(), time) - begins.begin()) - 1;
  uint64_t block = w.launch->blocks.empty() ? nth : w.launch->blocks[nth];
  return "block " + std::to_string(block) + " thread " + std::to_string(thread);
}

[[noreturn]] static void fault(const char* what, const void* at, size_t bytes, const char* source,
                               const std::string& other = "") {
  char place[160] = "not device memory", text[400];
  if (is_arena(at)) describe(at, place, sizeof place);
  snprintf(text, sizeof text, "%s: %s of %zu bytes, %s%s%s", source, what, bytes, place,
           other.empty() ? "" : "; conflicts with ", other.c_str());
  if (on_fault) on_fault();
  fail("%s", text);
}

// ---- access checks for one pair of bytes
struct AccessSite {
  const void* at;
  size_t bytes;
  const char* source;
};

static void check_read(Cell& cell, const Observer& a, Access access, const AccessSite& site) {
  bool atomic = access == Access::Atomic;
  if (!(atomic && cell.writer.atomic) &&
      !a.ordered(cell.writer.time, cell.writer.thread >> 5, cell.writer.thread & 31)) {
    fault("race: read of an unordered write", site.at, site.bytes, site.source,
          describe_thread(a.w, cell.writer.time, cell.writer.thread));
  }
  int warp = a.self.warp();
  uint32_t bit = a.self.bit();
  for (int i = 0; i < 2; i++) {
    Reader& r = cell.reader[i];
    bool mine = r.time >= a.block_begin() && r.warp == warp;
    uint32_t left = a.unordered(r, cell.lanes[i]);
    if (left && !mine) continue;
    cell.lanes[i] = (mine ? left : 0) | bit;
    r = {a.time, (uint64_t)warp, (uint64_t)(atomic && (!left || r.atomic))};
    return;
  }
}

static void check_write(Cell& cell, const Observer& a, Access access, const AccessSite& site) {
  bool atomic = access == Access::Atomic;
  if (!(atomic && cell.writer.atomic) &&
      !a.ordered(cell.writer.time, cell.writer.thread >> 5, cell.writer.thread & 31)) {
    fault("race: write after an unordered write", site.at, site.bytes, site.source,
          describe_thread(a.w, cell.writer.time, cell.writer.thread));
  }
  for (int i = 0; i < 2; i++) {
    const Reader& r = cell.reader[i];
    if (!r.time || (atomic && r.atomic)) continue;
    uint32_t left = a.unordered(r, cell.lanes[i]);
    if (left)
      fault("race: write after an unordered read", site.at, site.bytes, site.source,
            describe_thread(a.w, r.time, (uint32_t)r.warp * 32 + lowest(left)));
  }
  cell.writer = {a.time, a.self.index, atomic};
}

static void check(const Shadow& s, Access access, const AccessSite& site) {
  Observer observer(*worker);
  size_t first = pair(s, site.at), last = pair(s, (const char*)site.at + site.bytes - 1);
  // The last pair that was checked, before and after. A check depends only on the cell and the state, so an equal pair
  // has the same result.
  Cell before{}, after{};
  uint8_t checked = 0xff;  // no state
  for (size_t i = first; i <= last; i++) {
    uint8_t state = s.state[i];
    if (state == checked && !memcmp(&s.cells[i], &before, sizeof before)) {
      s.cells[i] = after;
      if (access != Access::Read) s.state[i] = state | WRITTEN;
      continue;
    }
    if (!(state & LIVE))
      fault(access == Access::Read ? "read out of bounds" : "write out of bounds", site.at, site.bytes, site.source);
    if (state & IN_FLIGHT) fault("access to the destination of a pending cp.async", site.at, site.bytes, site.source);
    if (access != Access::Write && !(state & WRITTEN))
      fault("read of uninitialized memory", site.at, site.bytes, site.source);
    observer.shared = state & SHARED;
    if (!observer.shared && !observer.self.grid_dependency_synced)
      fault("access to global memory before xt_grid_dependency_sync", site.at, site.bytes, site.source);
    Cell& cell = s.cells[i];
    before = cell;
    if (access != Access::Write) check_read(cell, observer, access, site);
    if (access != Access::Read) {
      check_write(cell, observer, access, site);
      s.state[i] = state | WRITTEN;
    }
    after = cell;
    checked = state;
  }
}

void check_access(const void* at, size_t bytes, Access access, const char* file, int line) {
  char source[128];
  snprintf(source, sizeof source, "%s:%d", base(file), line);
  if (!is_arena(at)) fault("access", at, bytes, source);
  check(shadow(), access, {at, bytes, source});
}

// ---- memory outside the device
extern "C" char __executable_start __attribute__((weak));
extern "C" char end __attribute__((weak));

template <class T> static bool in(const T* begin, size_t count, const void* at) {
  return (size_t)((const char*)at - (const char*)begin) < count * sizeof(T);
}

// The thread's stack, its context (threadIdx and others), and constants of the program.
static bool is_private(const Worker& w, const void* at) {
  return in(w.self->stack, STACK, at) || in(&thread_context, 1, at) || in(w.self, 1, at) || in(&w.position, 1, at) ||
         in(w.warps.data(), w.warps.size(), at) || in(&__executable_start, (size_t)(&end - &__executable_start), at);
}

void check_instrumented(const void* at, size_t bytes, size_t alignment, Access access) {
  if (!worker || !worker->launch->checked) return;
  const Shadow& s = shadow();
  if (!in_arena(s, at)) {
    if (!is_private(*worker, at)) fault("access", at, bytes, SOURCE);
    return;
  }
  if ((uintptr_t)at % alignment) fault("misaligned access", at, bytes, SOURCE);
  if (access == Access::Read) count_read(at, bytes);
  check(s, access, {at, bytes, SOURCE});
}

void check_misaligned(const void* at, const char* file, int line) {
  if (worker) fail("%s:%d: misaligned access at %p", base(file), line, at);
}

}  // namespace xtemu
