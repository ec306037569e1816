// Barriers in shared memory that count arrivals and bytes of bulk copies, and these copies.
#pragma once
#include <stdint.h>

#include <vector>

namespace xtemu {

struct Thread;
struct Worker;

// A tensor map as the emulated host encodes it. Mirrored in gpu/emulated/tensor_map.rs.
struct TensorMap {
  uint64_t magic;
  const char* base;
  uint64_t columns, rows, pitch;  // elements, rows, bytes from row to row
  uint64_t box_columns, box_rows;
};
constexpr uint64_t TENSOR_MAP = 0x70616d726f736e74;
constexpr uint64_t SWIZZLED_ROW = 128;  // bytes of a row of a box

// A bulk copy that has not arrived.
struct BulkCopy {
  char* to;
  TensorMap map;
  uint64_t column, row;
  Thread* thread;  // that issued it
  const char* file;
  int line;

  uint64_t bytes() const { return map.box_rows * SWIZZLED_ROW; }
};

// checked: for each thread of a block, a time before which all its accesses happen before the current point.
typedef std::vector<uint64_t> Clocks;

struct Mbarrier {
  uint32_t arrivals;  // of a phase
  uint32_t pending;   // arrivals that the current phase still expects
  uint64_t bytes;     // that the current phase still expects
  uint32_t parity;    // of the current phase
  bool fenced;        // bulk copies see its initialization
  std::vector<BulkCopy> copies;
  std::vector<Thread*> waiting;
  Clocks released, completed;  // checked: by the arrivals so far, by those of all completed phases
};

// bulk_copy.cpp: a copy whose destination is poisoned, and its arrival.
BulkCopy bulk_copy(void* to, const void* map, uint32_t column, uint32_t row, const char* file, int line);
void land(const BulkCopy& copy);
// Fails if a copy of this block has not arrived: called by its last thread.
void end_mbarriers(Worker& w);

}  // namespace xtemu
