// The state of a launch, and of the worker (a thread of the host) that runs its blocks, one at a time.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device.hpp"
#include "fiber.hpp"
#include "ready.hpp"

namespace xtemu {

// ---- a launch
// What a block has done, from its begin to where it met others.
struct Past {
  uint64_t begin, end;
};

struct Launch {
  const Kernel* kernel;
  void** args;
  dim3 grid, block;
  uint32_t shared;  // bytes of dynamic shared memory
  Order order;
  uint64_t seed;
  bool checked;

  std::vector<uint32_t> blocks;  // the order of blocks; empty: rising
  std::atomic<uint64_t> next{0};
  std::atomic<bool> stopped{false};  // a worker has failed
  std::mutex mutex;
  std::string error;  // the first

  uint64_t begin = 0;                             // checked: when it began
  std::vector<uint64_t> block_begins;             // checked: when each block began, in the order they ran
  std::map<const void*, std::vector<Past>> came;  // checked: the blocks that came to a counter

  uint32_t threads() const { return block.x * block.y * block.z; }
  uint64_t size() const { return (uint64_t)grid.x * grid.y * grid.z; }
};

// ---- a thread
enum class State : uint8_t { Runs, AtBarrier, InCollective, InWgmma, Done };

// A cp.async that has not landed.
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
  Place place;  // first: `here` points to it
  uint32_t index;
  State state;
  char* stack;  // none: has not run yet
  Fiber fiber;
  const char* file;  // where it waits
  int line;
  std::unique_ptr<Copies> copies;

  int warp() const { return (int)(index >> 5); }
  uint32_t bit() const { return 1u << (index & 31); }
};

// ---- a warp
// Lanes on their way into one collective.
struct Meeting {
  uint32_t mask, arrived;
  Operation operation;
  const char* file;
  int line;
};

// checked: what each lane knows of each other lane's past, where collectives had less than all lanes
struct Knowledge {
  uint64_t until[32][32];
};

struct Warp {
  Lane lanes[32];
  Meeting meetings[4];
  int count;
  uint32_t full;  // lanes that exist
  uint32_t at_barrier;
  uint64_t synced;  // checked: when all lanes last met
  std::unique_ptr<Knowledge> knowledge;
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
  uint64_t a[128], b[128];
  int accumulate[128];
  int count, group;
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
  Thread* me = nullptr;  // who runs
  Fiber home{};
  Ready ready;
  Position position{};
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> groups;
  Barrier barrier{};
  int result = 0;             // of the last vote
  uint32_t alive = 0;         // threads that have not ended
  uint64_t block_synced = 0;  // checked: when all threads last met
  std::vector<Past> others;   // checked: what other blocks did before they met this one, the last
  char* shared = nullptr;     // 256 KB: dynamic, then the variables
  std::vector<Variable> variables;
  uint32_t shared_end = 0;
  std::vector<char*> stacks;  // unused
  std::string reason;

  ~Worker();
};
extern __thread Worker* worker __attribute__((tls_model("initial-exec")));

// Another thread takes over until this one is ready again.
void suspend(Worker& w);
void wait_as(Worker& w, State state, const char* file, int line);

// Ends the launch with an error of the running thread: never returns.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Runs blocks of the launch until there are none.
void work(Launch& launch, int number);

// "block (1,0,0) thread (3,0,0)"
std::string where(const Thread& thread);
// The name without its directory.
const char* base(const char* file);

// ---- shared memory
constexpr size_t SHARED_LIMIT = 227 << 10, STATIC_LIMIT = 48 << 10;
void begin_shared(Worker& w);   // of a launch
void poison_shared(Worker& w);  // of a block

// ---- copies and tensor cores, at a thread's end
void end_copies(Thread& thread);

}  // namespace xtemu
