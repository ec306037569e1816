// Shadow memory: state and access history of each pair of bytes of a checked device. Kernels never access single
// bytes, so a pair is the smallest unit that two threads can share.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace xtemu {

enum : uint8_t { LIVE = 1, WRITTEN = 2, SHARED = 4, IN_FLIGHT = 8 };

// The last access of a kind. `time` is the logical clock of check.hpp; 0: never.
struct Writer {
  uint64_t time : 48, thread : 10, atomic : 1;
};
struct Reader {
  uint64_t time : 48, warp : 5, atomic : 1;
};  // lanes are in Cell

// The last writer, and the lanes of up to two warps that have read since. Two reading warps are sufficient: whatever
// orders a warp after a reader of another warp orders it after all of them.
struct Cell {
  Writer writer;
  Reader reader[2];
  uint32_t lanes[2];
};
static_assert(sizeof(Cell) == 32, "a cell is half a cache line");

constexpr size_t ARENA = 16ull << 30;  // address space; pages are allocated on first touch

struct Shadow {
  char* memory;    // device memory
  uint8_t* state;  // one byte per pair
  Cell* cells;     // one cell per pair
};
const Shadow& shadow();  // memory is null if the address space cannot be reserved

inline bool in_arena(const Shadow& s, const void* at) { return (size_t)((const char*)at - s.memory) < ARENA; }
inline size_t pair(const Shadow& s, const void* at) { return (size_t)((const char*)at - s.memory) / 2; }

// Describes an address, such as "global memory, byte 400 of a block of 400".
void describe(const void* at, char* text, size_t size);

}  // namespace xtemu
