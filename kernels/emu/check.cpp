// The rules of a checked device. Two accesses to one place race if one of them writes, not both are
// atomic, and no meeting of their two threads lies between them.
#include "check.hpp"

#include <stdio.h>

#include <algorithm>

#include "shadow.hpp"

namespace xtemu {

void (*on_fault)() = nullptr;

// ---- the range whose reads are counted
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

// ---- the clock
static std::atomic<uint64_t> clock_{1};
uint64_t tick() { return clock_.fetch_add(1, std::memory_order_relaxed) + 1; }
static uint64_t now() { return clock_.load(std::memory_order_relaxed); }

void check_launch(Launch& launch) { launch.begin = tick(); }

void check_block(Worker& w) {
  w.block_synced = tick();
  w.launch->block_begins.push_back(w.block_synced);
  w.others.clear();
  for (Warp& warp : w.warps) {
    warp.synced = 0;
    warp.knowledge.reset();
  }
}

void check_collective(Warp& warp, uint32_t mask) {
  uint64_t time = tick();
  if (mask == warp.full) {
    warp.synced = time;
    return;
  }
  if (!warp.knowledge) warp.knowledge = std::make_unique<Knowledge>();
  auto& until = warp.knowledge->until;
  for (int other = 0; other < 32; other++) {
    uint64_t known = mask >> other & 1 ? time : 0;
    for (int i = 0; i < 32; i++)
      if (mask >> i & 1) known = std::max(known, until[i][other]);
    for (int i = 0; i < 32; i++)
      if (mask >> i & 1) until[i][other] = known;
  }
}

void check_coming(Worker& w, const void* counter, bool last) {
  auto& came = w.launch->came[counter];
  came.push_back({w.launch->block_begins.back(), tick()});
  if (!last) return;
  w.others.insert(w.others.end(), came.begin(), came.end());
  came.clear();
}

// ---- states
static void set(void* at, size_t bytes, uint8_t state) {
  const Shadow& s = shadow();
  std::fill_n(s.state + pair(s, at), (bytes + 1) / 2, state);
}
void check_fresh(void* at, size_t bytes) { set(at, bytes, LIVE | SHARED); }
void check_gone(void* at, size_t bytes) { set(at, bytes, 0); }
void check_flight(void* at, size_t bytes, bool on) { set(at, bytes, LIVE | SHARED | WRITTEN | (on ? FLIGHT : 0)); }

// ---- order
// What the running thread, at this moment, may ask of earlier accesses.
struct Asker {
  const Worker& w;
  const Thread& me;
  const Warp& warp;
  uint64_t time = now();
  bool shared = false;  // the place is shared memory

  explicit Asker(const Worker& worker) : w(worker), me(*w.me), warp(w.warps[me.warp()]) {}

  uint64_t block_begin() const { return w.launch->block_begins.back(); }

  // Whether an access at `then` was before what this block does now, by the order of launches, by a meeting of
  // blocks, or (in shared memory) by the order of blocks.
  bool before(uint64_t then) const {
    if (then < (shared ? block_begin() : w.launch->begin)) return true;
    for (const Past& past : w.others)
      if (then >= past.begin && then < past.end && past.begin != block_begin()) return true;
    return false;
  }

  // Whether lane `lane` of `in` at `then` was before this moment.
  bool ordered(uint64_t then, int in, int lane) const {
    if (before(then)) return true;
    if (then < block_begin()) return false;  // another block
    if (then < w.block_synced) return true;
    if (in != me.warp()) return false;
    return lane == (int)(me.index & 31) || then < warp.synced ||
           (warp.knowledge && then < warp.knowledge->until[me.index & 31][lane]);
  }

  // The lanes of a reader that are not before this moment.
  uint32_t unordered(const Reader& r, uint32_t lanes) const {
    if (before(r.time) || (r.time >= block_begin() && r.time < w.block_synced)) return 0;
    if (r.time < block_begin() || (int)r.warp != me.warp()) return lanes;
    uint32_t left = 0;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      if (!ordered(r.time, r.warp, lowest(rest))) left |= rest & -rest;
    }
    return left;
  }
};

// ---- errors
// "block 3 thread 17", from a time and a thread's index
static std::string who(const Worker& w, uint64_t time, uint32_t thread) {
  const auto& begins = w.launch->block_begins;
  size_t nth = (size_t)(std::upper_bound(begins.begin(), begins.end(), time) - begins.begin()) - 1;
  uint64_t block = w.launch->blocks.empty() ? nth : w.launch->blocks[nth];
  return "block " + std::to_string(block) + " thread " + std::to_string(thread);
}

[[noreturn]] static void fault(const char* what, const void* at, size_t bytes, const char* source,
                               const std::string& other = "") {
  char place[160] = "not of the device", text[400];
  if (is_arena(at)) describe(at, place, sizeof place);
  snprintf(text, sizeof text, "%s: %s of %zu bytes, %s%s%s", source, what, bytes, place,
           other.empty() ? "" : "; the other: ", other.c_str());
  if (on_fault) on_fault();
  fail("%s", text);
}

// ---- one pair of bytes
struct Where {
  const void* at;
  size_t bytes;
  const char* source;
};

static void check_read(Cell& cell, const Asker& a, Access access, const Where& where) {
  bool atomic = access == Access::Atomic;
  if (!(atomic && cell.writer.atomic) &&
      !a.ordered(cell.writer.time, cell.writer.thread >> 5, cell.writer.thread & 31)) {
    fault("race: read of an unordered write", where.at, where.bytes, where.source,
          who(a.w, cell.writer.time, cell.writer.thread));
  }
  int warp = a.me.warp();
  uint32_t bit = a.me.bit();
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

static void check_write(Cell& cell, const Asker& a, Access access, const Where& where) {
  bool atomic = access == Access::Atomic;
  if (!(atomic && cell.writer.atomic) &&
      !a.ordered(cell.writer.time, cell.writer.thread >> 5, cell.writer.thread & 31)) {
    fault("race: write after an unordered write", where.at, where.bytes, where.source,
          who(a.w, cell.writer.time, cell.writer.thread));
  }
  for (int i = 0; i < 2; i++) {
    const Reader& r = cell.reader[i];
    if (!r.time || (atomic && r.atomic)) continue;
    uint32_t left = a.unordered(r, cell.lanes[i]);
    if (left)
      fault("race: write after an unordered read", where.at, where.bytes, where.source,
            who(a.w, r.time, (uint32_t)r.warp * 32 + lowest(left)));
  }
  cell.writer = {a.time, a.me.index, atomic};
}

static void check(const Shadow& s, Access access, const Where& where) {
  Asker asker(*worker);
  size_t first = pair(s, where.at), last = pair(s, (const char*)where.at + where.bytes - 1);
  for (size_t i = first; i <= last; i++) {
    uint8_t state = s.state[i];
    if (!(state & LIVE))
      fault(access == Access::Read ? "read out of bounds" : "write out of bounds", where.at, where.bytes,
            where.source);
    if (state & FLIGHT)
      fault("access to the target of a cp.async that was not waited for", where.at, where.bytes, where.source);
    if (access != Access::Write && !(state & WRITTEN))
      fault("read of what was never written", where.at, where.bytes, where.source);
    asker.shared = state & SHARED;
    Cell& cell = s.cells[i];
    if (access != Access::Write) check_read(cell, asker, access, where);
    if (access != Access::Read) {
      check_write(cell, asker, access, where);
      s.state[i] = state | WRITTEN;
    }
  }
}

void check_access(const void* at, size_t bytes, Access access, const char* file, int line) {
  char source[128];
  snprintf(source, sizeof source, "%s:%d", base(file), line);
  if (!is_arena(at)) fault("access", at, bytes, source);
  check(shadow(), access, {at, bytes, source});
}

// ---- memory that is not the device's
extern "C" char __executable_start __attribute__((weak));
extern "C" char end __attribute__((weak));

template <class T> static bool in(const T* begin, size_t count, const void* at) {
  return (size_t)((const char*)at - (const char*)begin) < count * sizeof(T);
}

// A thread's own variables; its place, by which it reads threadIdx; constants of the program.
static bool is_private(const Worker& w, const void* at) {
  return in(w.me->stack, STACK, at) || in(&here, 1, at) || in(w.me, 1, at) || in(&w.position, 1, at) ||
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
