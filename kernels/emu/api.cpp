// What the host calls; mirrored in gpu/emulated.rs.
#include <stdio.h>
#include <string.h>

#include <system_error>
#include <thread>

#include "check.hpp"
#include "tensor_core.hpp"
#include "worker.hpp"

using namespace xtemu;

// The orders of blocks that belong to the orders of threads.
static void order_blocks(Launch& launch) {
  if (launch.order == Order::Forward || launch.size() > 1u << 24) return;
  uint64_t n = launch.size(), state = launch.seed;
  launch.blocks.resize(n);
  for (uint64_t i = 0; i < n; i++) launch.blocks[i] = (uint32_t)(launch.order == Order::Backward ? n - 1 - i : i);
  if (launch.order == Order::Backward) return;
  for (uint64_t i = n; i > 1; i--) std::swap(launch.blocks[i - 1], launch.blocks[random(state) % i]);
}

static std::string refusal(const Launch& l) {
  auto reason = [&](const char* what) { return std::string(l.kernel->name) + ": " + what; };
  if (!l.size()) return reason("no blocks");
  if (l.grid.x > 0x7fffffff || l.grid.y > 65535 || l.grid.z > 65535)
    return reason("a grid above 2147483647 x 65535 x 65535 blocks");
  if (!l.threads() || l.block.z > 64) return reason("a block needs 1 to 1024 threads, at most 64 along z");
  if (l.threads() > l.kernel->max_threads) {
    return reason(("blocks of " + std::to_string(l.threads()) + " threads, and it is compiled for " +
                   std::to_string(l.kernel->max_threads))
                      .c_str());
  }
  if (l.shared > SHARED_LIMIT) return reason("more than 227 KB of dynamic shared memory");
  return "";
}

// Threads from which a launch is worth another thread of the host.
constexpr uint64_t SHARE = 1 << 16;

extern "C" {

struct xtemu_config {
  uint32_t grid[3], block[3], shared;
  int order;
  uint64_t seed;
  uint32_t workers;
  int checked;
};

// As cuLaunchKernel: args[i] points to the i-th parameter. 0: done; else the reason is in `error`.
int xtemu_launch(const Kernel* kernel, const xtemu_config* c, void** args, char* error, size_t size) {
  Launch launch;
  launch.kernel = kernel;
  launch.args = args;
  launch.grid = {c->grid[0], c->grid[1], c->grid[2]};
  launch.block = {c->block[0], c->block[1], c->block[2]};
  launch.shared = c->shared;
  launch.order = (Order)c->order;
  launch.seed = c->seed;
  launch.checked = c->checked != 0;
  launch.error = refusal(launch);
  if (launch.error.empty()) {
    order_blocks(launch);
    if (launch.checked) check_launch(launch);
    uint64_t most = std::min<uint64_t>(launch.size(), launch.size() * launch.threads() / SHARE);
    std::vector<std::thread> others;
    try {
      for (uint32_t i = 1; i < c->workers && i < most && !launch.checked; i++)
        others.emplace_back([&launch, i] { work(launch, (int)i); });
    } catch (const std::system_error&) {
      // the system refuses more threads: those that there are share the blocks
    }
    work(launch, 0);
    for (std::thread& other : others) other.join();
  }
  snprintf(error, size, "%s", launch.error.c_str());
  return !launch.error.empty();
}

void* xtemu_allocate(size_t bytes, int checked) { return take_global(bytes, checked != 0); }
void xtemu_free(void* at) { free_global((char*)at); }

void xtemu_write(void* to, const void* from, size_t bytes) {
  memcpy(to, from, bytes);
  mark_written(to, bytes);
}

// The first byte that nobody wrote, or `bytes`.
size_t xtemu_read(void* to, const void* from, size_t bytes) {
  memcpy(to, from, bytes);
  return first_unwritten(from, bytes);
}

void xtemu_zero(void* at, size_t bytes) {
  memset(at, 0, bytes);
  mark_written(at, bytes);
}

// Counts the bytes that kernels of checked devices read inside of a range, from now on; how many it were.
void xtemu_watch(const void* at, size_t bytes) { watch(at, bytes); }
uint64_t xtemu_watched() { return watched(); }

void xtemu_on_fault(void (*note)()) { on_fault = note; }

float xtemu_mma_dot16(const uint16_t* a, const uint16_t* b, float c) { return tensor_dot(a, b, c); }
}
