// State of a launch, and of a worker (a host thread) that runs its blocks one at a time.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device.hpp"
#include "fiber.hpp"
#include "mbarrier.hpp"
#include "ready.hpp"
#include "tensor_core.hpp"

namespace xtemu {

// ---- a launch
// What a block released at a counter: all accesses from its start to its last barrier, and those of the releasing
// thread, and of those that it had waited for, up to the release.
struct Released {
  uint64_t begin, end;
  Clocks clocks;

  bool has(uint64_t time, uint32_t by) const {
    return time >= begin && (time < end || (by < clocks.size() && time < clocks[by]));
  }
};

struct Launch {
  const Kernel* kernel;
  void** args;
  dim3 grid, block;
  uint32_t shared;  // bytes of dynamic shared memory
  Order order;
  uint64_t seed;
  uint64_t fault;
  bool checked;
  TensorCore tensor_core;
  bool wgmma;  // the image has machine code for sm_90a

  std::vector<uint32_t> blocks;  // execution order of the blocks; empty: ascending
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stopped{false};  // a worker has failed
  std::mutex mutex;
  std::string error;  // the first error

  uint64_t begin = 0;                                     // checked: start time
  std::vector<uint64_t> block_begins;                     // checked: start time of each block, in execution order
  std::map<const void*, std::vector<Released>> released;  // checked: per counter

  uint32_t threads() const { return block.x * block.y * block.z; }
  uint64_t size() const { return (uint64_t)grid.x * grid.y * grid.z; }
};

// ---- a thread
enum class State : uint8_t { Runs, AtBarrier, AtMbarrier, InCollective, InWgmma, Done };

// A pending cp.async.
struct Copy {
  void* to;
  const void* from;
  bool present;
  const char* file;
  int line;
};
struct Copies {
  std::vector<Copy> copies;
  std::vector<int> groups{0};
};

struct Thread {
  ThreadContext context;  // first member: thread_context points to it
  uint32_t index;
  State state;
  char* stack;  // nullptr: has not run yet
  Fiber fiber;
  const char* file;  // call site at which it waits
  int line;
  std::unique_ptr<Copies> copies;
  bool grid_dependency_synced = false;  // it has waited for the previous kernel
  Clocks acquired;                      // checked: by waits at mbarriers; empty: none

  int warp() const { return (int)(index >> 5); }
  uint32_t bit() const { return 1u << (index & 31); }
};

// ---- a warp
// A warp collective that some lanes have reached.
struct PendingCollective {
  uint32_t mask, arrived;
  Operation operation;
  const char* file;
  int line;
};

// checked: vector clocks of the lanes, needed after collectives of fewer than all lanes
struct LaneClocks {
  uint64_t until[32][32];
};

struct Warp {
  Lane lanes[32];
  PendingCollective pending[4];
  int count;
  uint32_t full;  // existing lanes
  uint32_t at_barrier;
  uint64_t synced;  // checked: time of the last collective of all lanes
  std::unique_ptr<LaneClocks> lane_clocks;
};

// ---- barriers, warpgroups, shared memory
struct Barrier {
  uint32_t arrived;
  int vote;
  const char* file;
  int line;
};

struct Wgmma {
  float* d[128];
  WgmmaOperand a[128], b[128];
  int accumulate[128];
  int columns, count, group;
  const char* file;
  int line;
};
struct Warpgroup {
  std::vector<Wgmma> started;
  int issued[128] = {}, group[128] = {};
  int waiting = 0;
};

struct Variable {
  const void* key;
  uint32_t at, bytes;
};

// ---- a worker
struct Worker {
  Launch* launch = nullptr;
  Thread* self = nullptr;  // running thread
  Fiber scheduler{};
  ReadySet ready;
  Position position{};
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> groups;
  std::map<const void*, Mbarrier> mbarriers;  // of the block, by address
  std::set<const void*> fenced_maps;          // tensor maps that the block may use
  Barrier barrier{};
  int result = 0;                  // result of the last vote
  uint32_t alive = 0;              // threads that have not exited
  uint64_t block_synced = 0;       // checked: time of the last barrier
  std::vector<Released> acquired;  // checked: what other blocks released before this block acquired it
  char* shared = nullptr;          // dynamic shared memory, then the variables
  std::vector<Variable> variables;
  uint32_t shared_end = 0;
  std::vector<char*> stacks;  // free stacks
  std::string reason;

  ~Worker();
};
extern __thread Worker* worker __attribute__((tls_model("initial-exec")));

// Attributes accesses to another thread while it lives.
struct AsThread {
  Worker& w;
  Thread* self;
  AsThread(Worker& worker, Thread& thread) : w(worker), self(worker.self) { w.self = &thread; }
  ~AsThread() { w.self = self; }
};

// Switches to another thread until this one is runnable again.
void suspend(Worker& w);
void wait_as(Worker& w, State state, const char* file, int line);

// Ends the launch with an error of the running thread. Never returns.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Runs blocks of the launch until none is left.
void run_blocks(Launch& launch, int number);

// "block (1,0,0) thread (3,0,0)"
std::string thread_name(const Thread& thread);
// File name without directory.
const char* base(const char* file);

// ---- shared memory
constexpr size_t SHARED_LIMIT = 227 << 10, STATIC_LIMIT = 48 << 10;
void init_shared(Worker& w);    // once per launch
void poison_shared(Worker& w);  // once per block

// ---- checks when a thread exits
void end_copies(Thread& thread);

}  // namespace xtemu
