// Bulk copies of boxes of a matrix (TMA): cp.async.bulk.tensor.2d with the 128-byte swizzle.
#include <string.h>

#include "check.hpp"
#include "mbarrier.hpp"
#include "worker.hpp"

namespace xtemu {

void tensor_map_fence(const void* map) { worker->fenced_maps.insert(map); }

// Bytes of row `i` of the box that are inside the matrix.
static uint64_t present(const BulkCopy& copy, uint64_t i) {
  const TensorMap& map = copy.map;
  if (copy.row + i >= map.rows || copy.column >= map.columns) return 0;
  return 2 * std::min(map.box_columns, map.columns - copy.column);
}
static const char* source(const BulkCopy& copy, uint64_t i) {
  return copy.map.base + (copy.row + i) * copy.map.pitch + copy.column * 2;
}

BulkCopy bulk_copy(void* to, const void* map, uint32_t column, uint32_t row, const char* file, int line) {
  Worker& w = *worker;
  if (!w.launch->wgmma)
    fail("%s:%d: trap: a bulk copy in an image without machine code for sm_90a", base(file), line);
  if (!w.fenced_maps.count(map)) fail("%s:%d: a tensor map without a fence in this block", base(file), line);
  BulkCopy copy{(char*)to, {}, column, row, w.self, file, line};
  if (w.launch->checked) check_access(map, sizeof copy.map, Access::Read, file, line);
  memcpy(&copy.map, map, sizeof copy.map);
  if (copy.map.magic != TENSOR_MAP) fail("%s:%d: not a tensor map", base(file), line);
  size_t at = (size_t)((char*)to - w.shared);
  if (at % 1024 || at + copy.bytes() > w.launch->shared)
    fail("%s:%d: the destination of a bulk copy is not aligned to 1024 bytes in dynamic shared memory", base(file),
         line);
  if (w.launch->checked) {
    for (uint64_t i = 0; i < copy.map.box_rows; i++) {
      uint64_t bytes = present(copy, i);
      if (!bytes) continue;
      check_access(source(copy, i), bytes, Access::Read, file, line);
      count_read(source(copy, i), bytes);
    }
    check_access(to, copy.bytes(), Access::Write, file, line);
    mark_in_flight(to, copy.bytes(), true);
  }
  memset(to, 0xff, copy.bytes());
  return copy;
}

void land(const BulkCopy& copy) {
  Worker& w = *worker;
  if (w.launch->checked) {
    mark_in_flight(copy.to, copy.bytes(), false);
    AsThread as(w, *copy.thread);
    check_access(copy.to, copy.bytes(), Access::Write, copy.file, copy.line);
  }
  for (uint64_t i = 0; i < copy.map.box_rows; i++) {
    alignas(16) char row[SWIZZLED_ROW] = {};
    memcpy(row, source(copy, i), present(copy, i));
    for (uint64_t c = 0; c < 8; c++) memcpy(copy.to + i * SWIZZLED_ROW + (c ^ (i & 7)) * 16, row + c * 16, 16);
  }
}

}  // namespace xtemu
