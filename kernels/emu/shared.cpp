// Shared memory of a block: the dynamic part, then each variable as threads first come by it. It is
// poison (NaN) until it is written.
#include <stdlib.h>
#include <string.h>

#include "check.hpp"
#include "worker.hpp"

namespace xtemu {

// Between two variables, so that a step past one is not a step into the next.
constexpr uint32_t GAP = 256;
constexpr size_t REGION = 512 << 10;

static void poison(Worker& w, uint32_t at, uint32_t bytes) {
  memset(w.shared + at, 0xff, bytes);
  if (w.launch->checked) check_fresh(w.shared + at, bytes);
}

void begin_shared(Worker& w) {
  if (w.shared && is_arena(w.shared) != w.launch->checked) {
    free_shared(w.shared);
    w.shared = nullptr;
  }
  if (!w.shared) w.shared = w.launch->checked ? take_shared(REGION) : (char*)aligned_alloc(1024, REGION);
  if (w.launch->checked) check_gone(w.shared, REGION);
  w.variables.clear();
  w.shared_end = (w.launch->shared + 2 * GAP - 1) / GAP * GAP;
}

void poison_shared(Worker& w) {
  if (w.launch->shared) poison(w, 0, w.launch->shared);
  for (const Variable& v : w.variables) poison(w, v.at, v.bytes);
}

void* shared_variable(const void* key, size_t bytes, const char* file, int line) {
  Worker& w = *worker;
  size_t used = bytes;
  for (const Variable& v : w.variables) {
    if (v.key == key) return w.shared + v.at;
    used += v.bytes;
  }
  if (used > STATIC_LIMIT)
    fail("%s:%d: %zu bytes of shared variables, the limit is %zu", base(file), line, used, STATIC_LIMIT);
  if (used + w.launch->shared > SHARED_LIMIT)
    fail("%s:%d: %zu bytes of shared memory, the limit is %zu", base(file), line, used + w.launch->shared,
         SHARED_LIMIT);
  uint32_t at = w.shared_end;
  w.variables.push_back({key, at, (uint32_t)bytes});
  w.shared_end = (uint32_t)((at + bytes + 2 * GAP - 1) / GAP * GAP);
  poison(w, at, (uint32_t)bytes);
  return w.shared + at;
}

void* dynamic_shared(const char* file, int line) {
  Worker& w = *worker;
  if (!w.launch->shared) fail("%s:%d: dynamic shared memory, and the launch gives none", base(file), line);
  return w.shared;
}

}  // namespace xtemu
