// C interface for the host; mirrored in gpu/emulated/ffi.rs.
#include <stdio.h>
#include <string.h>

#include <system_error>
#include <thread>

#include "check.hpp"
#include "worker.hpp"

using namespace xtemu;

// Block execution order for each thread scheduling order.
static void order_blocks(Launch& launch) {
  if (launch.order == Order::Forward || launch.size() > 1u << 24) return;
  uint64_t n = launch.size(), state = launch.seed;
  launch.blocks.resize(n);
  for (uint64_t i = 0; i < n; i++) launch.blocks[i] = (uint32_t)(launch.order == Order::Backward ? n - 1 - i : i);
  if (launch.order == Order::Backward) return;
  for (uint64_t i = n; i > 1; i--) std::swap(launch.blocks[i - 1], launch.blocks[random(state) % i]);
}

static std::string validate(const Launch& l) {
  auto reason = [&](const char* what) { return std::string(l.kernel->name) + ": " + what; };
  if (!l.size()) return reason("the grid has no blocks");
  if (l.grid.x > 0x7fffffff || l.grid.y > 65535 || l.grid.z > 65535)
    return reason("the grid exceeds 2147483647 x 65535 x 65535 blocks");
  if (!l.threads() || l.block.z > 64) return reason("a block must have 1 to 1024 threads, at most 64 along z");
  if (l.threads() > l.kernel->max_threads) {
    return reason((std::to_string(l.threads()) + " threads per block exceed the limit of " +
                   std::to_string(l.kernel->max_threads) + " that the kernel is compiled for")
                      .c_str());
  }
  if (l.shared > SHARED_LIMIT) return reason("more than 227 KB of dynamic shared memory");
  return "";
}

// CUDA threads per additional host thread.
constexpr uint64_t MIN_THREADS_PER_WORKER = 1 << 16;

extern "C" {

struct xtemu_config {
  uint32_t grid[3], block[3], shared;
  int order;
  uint64_t seed, fault;
  uint32_t workers;
  int checked;
  uint32_t tensor_core;
  int wgmma;
};

// As cuLaunchKernel: args[i] points to the i-th parameter. Returns 0 on success; otherwise `error` holds the reason.
int xtemu_launch(const Kernel* kernel, const xtemu_config* c, void** args, char* error, size_t size) {
  Launch launch;
  launch.kernel = kernel;
  launch.args = args;
  launch.grid = {c->grid[0], c->grid[1], c->grid[2]};
  launch.block = {c->block[0], c->block[1], c->block[2]};
  launch.shared = c->shared;
  launch.order = (Order)c->order;
  launch.seed = c->seed;
  launch.fault = c->fault;
  launch.checked = c->checked != 0;
  launch.tensor_core = (TensorCore)c->tensor_core;
  launch.wgmma = c->wgmma != 0;
  launch.error = validate(launch);
  if (launch.error.empty()) {
    order_blocks(launch);
    if (launch.checked) check_launch(launch);
    uint64_t max_workers =
        std::min<uint64_t>(launch.size(), launch.size() * launch.threads() / MIN_THREADS_PER_WORKER);
    std::vector<std::thread> workers;
    try {
      for (uint32_t i = 1; i < c->workers && i < max_workers && !launch.checked; i++)
        workers.emplace_back([&launch, i] { run_blocks(launch, (int)i); });
    } catch (const std::system_error&) {
      // the system cannot create more threads; the existing ones share the blocks
    }
    run_blocks(launch, 0);
    for (std::thread& worker_thread : workers) worker_thread.join();
  }
  snprintf(error, size, "%s", launch.error.c_str());
  return !launch.error.empty();
}

void* xtemu_allocate(size_t bytes, int checked) { return allocate_global(bytes, checked != 0); }
void xtemu_free(void* at) { free_global((char*)at); }

// Returns the index of the first byte that is outside the memory that was allocated, or `bytes`. Unless it is `bytes`,
// nothing is written.
size_t xtemu_write(void* to, const void* from, size_t bytes) {
  size_t live = first_dead(to, bytes);
  if (live < bytes) return live;
  memcpy(to, from, bytes);
  mark_written(to, bytes);
  return bytes;
}

// Returns the index of the first uninitialized byte, or `bytes`.
size_t xtemu_read(void* to, const void* from, size_t bytes) {
  memcpy(to, from, bytes);
  return first_unwritten(from, bytes);
}

// Starts counting the bytes that kernels on checked devices read in a range; xtemu_watched returns the count.
void xtemu_watch(const void* at, size_t bytes) { watch(at, bytes); }
uint64_t xtemu_watched() { return watched(); }

void xtemu_on_fault(void (*note)()) { on_fault = note; }
}
