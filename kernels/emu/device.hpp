// The seam between kernels and the emulator's runtime: what compiled kernels call, and how they
// describe themselves. Kernels are compiled twice (plain and checked), the runtime once.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include <type_traits>
#include <utility>

#include "vectors.hpp"

namespace xtemu {

// ---- where a thread is
struct Position {
  uint3 block;
  dim3 block_dim, grid_dim;
};

// A thread's place in a collective of its warp: its operands and its result.
struct alignas(64) Lane {
  uint32_t in[16];
  uint32_t out[4];
};

// What a running kernel sees of its thread.
struct Place {
  uint3 thread;
  const Position* position;
  Lane* lane;
};
extern __thread Place* here __attribute__((tls_model("initial-exec")));

// ---- what a thread asks for; `file` and `line` are where it does
void block_barrier(const char* file, int line);
enum class Vote { All, Any, Count };
int block_vote(Vote vote, int predicate, const char* file, int line);

// A block, by one of its threads, has come to where blocks meet; the last one goes on with what all have written.
void come_to(const void* counter, bool last);

// All lanes of `mask` meet; the last to come runs `operation` for all, from their `in` to their `out`.
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

uint64_t wgmma_descriptor(const void* shared);
void wgmma_start(float* d, uint64_t a, uint64_t b, int accumulate, const char* file, int line);
void wgmma_commit();
void wgmma_wait(int pending);

// ---- how a kernel describes itself
// A parameter: its size, and whether it is a pointer or a float, which no driver can check.
enum : uint32_t { POINTER = 0x100, FLOAT = 0x200 };
template <class T> constexpr uint32_t parameter() {
  return sizeof(T) | (std::is_pointer<T>::value ? POINTER : 0) | (std::is_floating_point<T>::value ? FLOAT : 0);
}

// Mirrored in gpu/emulated.rs.
struct Kernel {
  const Kernel* next;
  const char* name;
  void (*call)(void** args);
  const uint32_t* parameters;
  uint32_t count, max_threads;
};

// How to call a kernel with the argument pointers of cuLaunchKernel.
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
