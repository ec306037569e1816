// The scheduler. A worker runs a block by switching to the fiber of one of its threads. A thread that waits or exits
// switches to the next runnable thread; the last one switches back to the scheduler.
#include "worker.hpp"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "check.hpp"

namespace xtemu {

__thread ThreadContext* thread_context;
__thread Worker* worker;

Worker::~Worker() {
  for (char* stack : stacks) unmap_stack(stack);
  if (shared) free_shared(shared);
}

// ---- fibers of threads
static void run_threads();

static void make_current(Worker& w, Thread& thread) {
  w.self = &thread;
  thread_context = &thread.context;
}

// The fiber to switch to: that of the next runnable thread, or the scheduler.
static Fiber& next_fiber(Worker& w) {
  int index = w.launch->stopped.load(std::memory_order_relaxed) ? -1 : w.ready.pop();
  if (index < 0) return w.scheduler;
  Thread& next = w.threads[index];
  if (!next.stack) {
    next.stack = w.stacks.empty() ? map_stack() : w.stacks.back();
    if (!w.stacks.empty()) w.stacks.pop_back();
    if (!next.stack) {
      w.reason = "cannot allocate a thread stack";
      return w.scheduler;
    }
    start_fiber(next.fiber, next.stack, run_threads);
  }
  make_current(w, next);
  return next.fiber;
}

void suspend(Worker& w) {
  Thread* self = w.self;
  Fiber& next = next_fiber(w);
  if (&next != &self->fiber) switch_fiber(self->fiber, next);
}

void wait_as(Worker& w, State state, const char* file, int line) {
  w.self->state = state;
  w.self->file = file;
  w.self->line = line;
  suspend(w);
}

// The body of a fiber: runs threads one after another on one stack, until the next runnable thread is suspended on
// its own stack. A kernel without synchronization thus costs one call per thread instead of one switch.
static void run_threads() {
  for (;;) {
    Worker& w = *worker;
    Launch& launch = *w.launch;
    launch.kernel->call(launch.args);
    Thread& ended = *w.self;
    if (ended.copies) end_copies(ended);
    if (!ended.grid_dependency_synced) fail("a thread ended without xt_grid_dependency_sync");
    ended.state = State::Done;
    if (!--w.alive) end_mbarriers(w);
    char* stack = ended.stack;
    ended.stack = nullptr;
    int index = launch.stopped.load(std::memory_order_relaxed) ? -1 : w.ready.pop();
    if (index >= 0 && !w.threads[index].stack) {
      w.threads[index].stack = stack;
      make_current(w, w.threads[index]);
      continue;
    }
    w.stacks.push_back(stack);  // not reused before this switch is complete
    Fiber* next = &w.scheduler;
    if (index >= 0) {
      make_current(w, w.threads[index]);
      next = &w.threads[index].fiber;
    }
    switch_fiber(ended.fiber, *next);
  }
}

// ---- errors
const char* base(const char* file) {
  const char* slash = strrchr(file, '/');
  return slash ? slash + 1 : file;
}

std::string thread_name(const Thread& thread) {
  const uint3 &b = thread.context.position->block, &t = thread.context.thread;
  char text[96];
  snprintf(text, sizeof text, "block (%u,%u,%u) thread (%u,%u,%u)", b.x, b.y, b.z, t.x, t.y, t.z);
  return text;
}

static void stop(Launch& launch, const std::string& what) {
  std::lock_guard<std::mutex> lock(launch.mutex);
  if (launch.error.empty()) launch.error = std::string(launch.kernel->name) + ": " + what;
  launch.stopped = true;
}

[[noreturn]] void fail(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  Worker& w = *worker;
  stop(*w.launch, thread_name(*w.self) + ": " + text);
  switch_fiber(w.self->fiber, w.scheduler);
  __builtin_unreachable();
}

static std::string deadlock(const Worker& w) {
  std::string text = "deadlock:";
  int shown = 0;
  for (const Thread& thread : w.threads) {
    if (thread.state == State::Done || shown++ == 4) continue;
    const char* what = thread.state == State::AtBarrier      ? "at a barrier"
                       : thread.state == State::AtMbarrier   ? "at an mbarrier"
                       : thread.state == State::InCollective ? "in a warp collective"
                                                             : "in a wgmma wait";
    text += " " + thread_name(thread) + " waits " + what + " at " + base(thread.file) + ":" +
            std::to_string(thread.line) + ";";
    if (shown == 4) break;
  }
  return text;
}

// ---- blocks
// Initializes what all blocks of a launch share.
static void begin(Worker& w, Launch& launch, int number) {
  uint32_t n = launch.threads();
  w.launch = &launch;
  w.ready.start(launch.order, launch.seed * 0x9e3779b97f4a7c15ull + number);
  w.position = {{0, 0, 0}, launch.block, launch.grid, launch.fault};
  w.threads.resize(n);
  w.warps.resize((n + 31) / 32);
  for (uint32_t i = 0; i < n; i++) {
    Thread& thread = w.threads[i];
    const dim3& d = launch.block;
    thread.context = {{i % d.x, i / d.x % d.y, i / d.x / d.y}, &w.position, &w.warps[i / 32].lanes[i % 32]};
    thread.index = i;
  }
  for (uint32_t i = 0; i < w.warps.size(); i++) {
    uint32_t lanes = n - i * 32;
    w.warps[i].full = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
  }
  init_shared(w);
}

static void run_block(Worker& w, uint64_t number) {
  const dim3& g = w.launch->grid;
  w.position.block = {(unsigned)(number % g.x), (unsigned)(number / g.x % g.y), (unsigned)(number / g.x / g.y)};
  w.alive = (uint32_t)w.threads.size();
  w.barrier = {};
  if (!w.groups.empty()) w.groups.clear();
  if (!w.mbarriers.empty()) w.mbarriers.clear();
  if (!w.fenced_maps.empty()) w.fenced_maps.clear();
  for (uint32_t i = 0; i < w.warps.size(); i++) {
    Warp& warp = w.warps[i];
    warp.count = 0;
    warp.at_barrier = 0;
    w.ready.add((int)i, warp.full);
  }
  for (Thread& thread : w.threads) {
    thread.state = State::Runs;
    thread.grid_dependency_synced = false;
    thread.acquired.clear();
  }
  if (w.launch->order == Order::Priorities) w.ready.randomize_priorities();
  if (w.launch->checked) check_block(w);
  poison_shared(w);

  Fiber& first = next_fiber(w);
  if (&first != &w.scheduler) switch_fiber(w.scheduler, first);

  if (w.alive && !w.launch->stopped) stop(*w.launch, w.reason.empty() ? deadlock(w) : w.reason);
  if (w.launch->stopped) {  // abandon suspended fibers
    w.ready.clear();
    w.reason.clear();
    for (Thread& thread : w.threads) {
      if (thread.stack) w.stacks.push_back(thread.stack);
      thread.stack = nullptr;
      thread.copies.reset();
    }
  }
}

void run_blocks(Launch& launch, int number) {
  static thread_local Worker thread_worker;  // its stacks are reused by the next launch on this host thread
  Worker& w = thread_worker;
  worker = &w;
  begin(w, launch, number);
  for (uint64_t i; (i = launch.next++) < launch.size() && !launch.stopped;) {
    run_block(w, launch.blocks.empty() ? i : launch.blocks[i]);
  }
  worker = nullptr;
  thread_context = nullptr;
}

}  // namespace xtemu
