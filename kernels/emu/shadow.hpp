// Shadow memory: what is known of each pair of bytes of a checked device. (Kernels keep no single
// bytes, so a pair is the smallest thing that two threads can share.)
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace xtemu {

enum : uint8_t { LIVE = 1, WRITTEN = 2, SHARED = 4, FLIGHT = 8 };

// The last access of a kind. `time` is of the clock of check.hpp, 0: never.
struct Writer {
  uint64_t time : 48, thread : 10, atomic : 1;
};
struct Reader {
  uint64_t time : 48, warp : 5, atomic : 1;
};  // and lanes, below

// The last writer, and the lanes of up to two warps that read since: of any larger set of readers two
// warps are enough, for whatever orders one warp after another orders it after all.
struct Cell {
  Writer writer;
  Reader reader[2];
  uint32_t lanes[2];
};
static_assert(sizeof(Cell) == 32, "a cell is half a line of the cache");

constexpr size_t ARENA = 16ull << 30;  // reserved, not used: pages come when they are touched

struct Shadow {
  char* memory;    // what kernels see
  uint8_t* state;  // a byte per pair
  Cell* cells;     // a cell per pair
};
const Shadow& shadow();  // memory is null where the system refuses so many addresses

inline bool in_arena(const Shadow& s, const void* at) { return (size_t)((const char*)at - s.memory) < ARENA; }
inline size_t pair(const Shadow& s, const void* at) { return (size_t)((const char*)at - s.memory) / 2; }

// "global memory of 400 bytes, at byte 400"
void describe(const void* at, char* text, size_t size);

}  // namespace xtemu
