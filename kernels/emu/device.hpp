// The interface between kernels and the emulator runtime: the functions that compiled kernels call, and kernel
// descriptors. Kernels are compiled twice (plain and checked), the runtime once.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <type_traits>
#include <utility>

#include "vectors.hpp"

namespace xtemu {

// ---- thread coordinates
struct Position {
  uint3 block;
  dim3 block_dim, grid_dim;
  uint64_t fault;  // fault_id of the planted fault that is switched on; 0: none
};

// FNV-1a of the name of a planted fault; mirrored in gpu/emulated/ffi.rs.
constexpr uint64_t fault_id(const char* name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3ull;
  return hash;
}

// Operands and result of a thread in a warp collective.
struct alignas(64) Lane {
  uint32_t in[16];
  uint32_t out[4];
};

// Context of the running thread.
struct ThreadContext {
  uint3 thread;
  const Position* position;
  Lane* lane;
};
extern __thread ThreadContext* thread_context __attribute__((tls_model("initial-exec")));

// ---- synchronization; file and line identify the call site in the kernel
void block_barrier(const char* file, int line);
enum class Vote { All, Any, Count };
int block_vote(Vote vote, int predicate, const char* file, int line);

// Called by a thread after an atomic operation with release and acquire semantics on a counter. What its block did
// before its last barrier happens before what blocks do after a later call with this counter and a barrier.
void released_and_acquired(const void* counter);

// Called by a thread that waits for the previous kernel. Before that it must not access global memory.
void grid_dependency_synced();

// Rendezvous of all lanes of `mask`. The last lane to arrive runs `operation` for all, from their `in` to their
// `out`.
typedef void (*Operation)(uint32_t mask, Lane* lanes);
const uint32_t* collective(uint32_t mask, Operation operation, const char* file, int line);
void shuffle_xor(uint32_t mask, Lane* lanes);  // in: value (2 words), operand
void shuffle_index(uint32_t mask, Lane* lanes);
void shuffle_up(uint32_t mask, Lane* lanes);
void shuffle_down(uint32_t mask, Lane* lanes);
void ballot(uint32_t mask, Lane* lanes);       // in: predicate
void ldmatrix_x4(uint32_t mask, Lane* lanes);  // in: address of a row (2 words)
void ldmatrix_x2_trans(uint32_t mask, Lane* lanes);
void mma_16816(uint32_t mask, Lane* lanes);  // in: a (4 words), b (2), c (4)

void* shared_variable(const void* key, size_t bytes, const char* file, int line);
void* dynamic_shared(const char* file, int line);

void copy_start(void* to, const void* from, bool present, const char* file, int line);
void copy_commit();
void copy_wait(int pending);

// Barriers in shared memory (mbarrier), and bulk copies of boxes of a tensor map whose bytes arrive at one.
void mbarrier_init(void* barrier, uint32_t arrivals, const char* file, int line);
void mbarrier_fence();
void mbarrier_arrive(void* barrier, uint32_t bytes, const char* file, int line);
void mbarrier_wait(void* barrier, uint32_t parity, const char* file, int line);
void tensor_map_fence(const void* map);
void bulk_copy_start(void* to, const void* map, uint32_t column, uint32_t row, void* barrier, const char* file,
                     int line);

bool wgmma_available();
[[noreturn]] void trap(const char* file, int line);
// `leading`: bytes from 64 rows of an MN-major operand to the next 64.
uint64_t wgmma_descriptor(const void* shared, uint32_t leading);
// An operand of wgmma in shared memory, or the first one in registers.
struct WgmmaOperand {
  uint64_t descriptor;
  bool mn_major;                       // stored with its rows contiguous, otherwise with k contiguous
  const uint32_t* fragment = nullptr;  // of this thread, as of mma.sync; read when the product is computed
};
// 64 x 16 by 16 x columns
void wgmma_start(float* d, int columns, WgmmaOperand a, WgmmaOperand b, int accumulate, const char* file, int line);
void wgmma_commit();
void wgmma_wait(int pending);

// ---- kernel descriptors
// Parameter descriptor: size plus pointer and float flags, so that the host can check argument types.
enum : uint32_t { POINTER = 0x100, FLOAT = 0x200 };
template <class T> constexpr uint32_t parameter() {
  return sizeof(T) | (std::is_pointer<T>::value ? POINTER : 0) | (std::is_floating_point<T>::value ? FLOAT : 0);
}

// Mirrored in gpu/emulated/ffi.rs.
struct Kernel {
  const Kernel* next;
  const char* name;
  void (*call)(void** args);
  const uint32_t* parameters;
  uint32_t count, max_threads;
};

// Calls a kernel with the argument pointers of cuLaunchKernel.
template <class F> struct Signature;
template <class... A> struct Signature<void (*)(A...)> {
  static constexpr uint32_t count = sizeof...(A);
  static constexpr uint32_t parameters[sizeof...(A) + 1] = {parameter<A>()..., 0};
  template <void (*F)(A...)> static void call(void** args) { apply<F>(args, std::index_sequence_for<A...>()); }
  template <void (*F)(A...), size_t... I>
  __attribute__((no_sanitize_thread)) static void apply(void** args, std::index_sequence<I...>) {
    (void)args;
    F(*(std::remove_const_t<A>*)args[I]...);
  }
};

// The kernels of this translation unit.
namespace {
const Kernel* kernels = nullptr;
struct Export {
  Kernel kernel;
  explicit Export(const Kernel& k) : kernel(k) {
    kernel.next = kernels;
    kernels = &kernel;
  }
};
}  // namespace

}  // namespace xtemu
