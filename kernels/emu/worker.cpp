// The scheduler: a worker runs a block by entering the fiber of one of its threads; whoever waits or
// ends passes on to the next that is ready, and the last one comes back home.
#include "worker.hpp"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "check.hpp"

namespace xtemu {

__thread Place* here;
__thread Worker* worker;

Worker::~Worker() {
  for (char* stack : stacks) unmap_stack(stack);
  if (shared) free_shared(shared);
}

// ---- fibers of threads
static void run_threads();

static void make_current(Worker& w, Thread& thread) {
  w.me = &thread;
  here = &thread.place;
}

// The fiber to go on with: of the next thread, or home.
static Fiber& next_fiber(Worker& w) {
  int index = w.launch->stopped.load(std::memory_order_relaxed) ? -1 : w.ready.take();
  if (index < 0) return w.home;
  Thread& next = w.threads[index];
  if (!next.stack) {
    next.stack = w.stacks.empty() ? map_stack() : w.stacks.back();
    if (!w.stacks.empty()) w.stacks.pop_back();
    if (!next.stack) {
      w.reason = "no memory for the stack of a thread";
      return w.home;
    }
    start_fiber(next.fiber, next.stack, run_threads);
  }
  make_current(w, next);
  return next.fiber;
}

void suspend(Worker& w) {
  Thread* me = w.me;
  Fiber& next = next_fiber(w);
  if (&next != &me->fiber) switch_fiber(me->fiber, next);
}

void wait_as(Worker& w, State state, const char* file, int line) {
  w.me->state = state;
  w.me->file = file;
  w.me->line = line;
  suspend(w);
}

// The body of a fiber: runs threads one after another on one stack, until the next is one that waits on
// a stack of its own. A kernel that never waits so costs a call a thread, not a switch.
static void run_threads() {
  for (;;) {
    Worker& w = *worker;
    Launch& launch = *w.launch;
    launch.kernel->call(launch.args);
    Thread& ended = *w.me;
    if (ended.copies) end_copies(ended);
    ended.state = State::Done;
    w.alive--;
    char* stack = ended.stack;
    ended.stack = nullptr;
    int index = launch.stopped.load(std::memory_order_relaxed) ? -1 : w.ready.take();
    if (index >= 0 && !w.threads[index].stack) {
      w.threads[index].stack = stack;
      make_current(w, w.threads[index]);
      continue;
    }
    w.stacks.push_back(stack);  // nobody takes it before this switch is done
    Fiber* next = &w.home;
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

std::string where(const Thread& thread) {
  const uint3 &b = thread.place.position->block, &t = thread.place.thread;
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
  stop(*w.launch, where(*w.me) + ": " + text);
  switch_fiber(w.me->fiber, w.home);
  __builtin_unreachable();
}

static std::string deadlock(const Worker& w) {
  std::string text = "deadlock:";
  int shown = 0;
  for (const Thread& thread : w.threads) {
    if (thread.state == State::Done || shown++ == 4) continue;
    const char* what = thread.state == State::AtBarrier      ? "at a barrier"
                       : thread.state == State::InCollective ? "in a warp collective"
                                                             : "in a warpgroup's wait";
    text +=
        " " + where(thread) + " waits " + what + " at " + base(thread.file) + ":" + std::to_string(thread.line) + ";";
    if (shown == 4) break;
  }
  return text;
}

// ---- blocks
// What all blocks of a launch share.
static void begin(Worker& w, Launch& launch, int number) {
  uint32_t n = launch.threads();
  w.launch = &launch;
  w.ready.start(launch.order, launch.seed * 0x9e3779b97f4a7c15ull + number);
  w.position = {{0, 0, 0}, launch.block, launch.grid};
  w.threads.resize(n);
  w.warps.resize((n + 31) / 32);
  for (uint32_t i = 0; i < n; i++) {
    Thread& thread = w.threads[i];
    const dim3& d = launch.block;
    thread.place = {{i % d.x, i / d.x % d.y, i / d.x / d.y}, &w.position, &w.warps[i / 32].lanes[i % 32]};
    thread.index = i;
  }
  for (uint32_t i = 0; i < w.warps.size(); i++) {
    uint32_t lanes = n - i * 32;
    w.warps[i].full = lanes >= 32 ? 0xffffffffu : (1u << lanes) - 1;
  }
  begin_shared(w);
}

static void run_block(Worker& w, uint64_t number) {
  const dim3& g = w.launch->grid;
  w.position.block = {(unsigned)(number % g.x), (unsigned)(number / g.x % g.y), (unsigned)(number / g.x / g.y)};
  w.alive = (uint32_t)w.threads.size();
  w.barrier = {};
  if (!w.groups.empty()) w.groups.clear();
  for (uint32_t i = 0; i < w.warps.size(); i++) {
    Warp& warp = w.warps[i];
    warp.count = 0;
    warp.at_barrier = 0;
    w.ready.add((int)i, warp.full);
  }
  for (Thread& thread : w.threads) thread.state = State::Runs;
  if (w.launch->order == Order::Priorities) w.ready.prioritise();
  if (w.launch->checked) check_block(w);
  poison_shared(w);

  Fiber& first = next_fiber(w);
  if (&first != &w.home) switch_fiber(w.home, first);

  if (w.alive && !w.launch->stopped) stop(*w.launch, w.reason.empty() ? deadlock(w) : w.reason);
  if (w.launch->stopped) {  // fibers left in the middle
    w.ready.clear();
    w.reason.clear();
    for (Thread& thread : w.threads) {
      if (thread.stack) w.stacks.push_back(thread.stack);
      thread.stack = nullptr;
      thread.copies.reset();
    }
  }
}

void work(Launch& launch, int number) {
  static thread_local Worker kept;  // its stacks serve the next launch of this thread of the host
  Worker& w = kept;
  worker = &w;
  begin(w, launch, number);
  for (uint64_t i; (i = launch.next++) < launch.size() && !launch.stopped;) {
    run_block(w, launch.blocks.empty() ? i : launch.blocks[i]);
  }
  worker = nullptr;
  here = nullptr;
}

}  // namespace xtemu
