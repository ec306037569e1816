// Shared memory of a block: the dynamic part, then each variable at its first use. Poisoned (NaN) until written.
#include <stdlib.h>
#include <string.h>

#include "check.hpp"
#include "worker.hpp"

namespace xtemu {

// Gap between two variables, so that an overrun of one does not reach the next.
constexpr uint32_t GAP = 256;
constexpr size_t REGION = 512 << 10;

static void poison(Worker& w, uint32_t at, uint32_t bytes) {
  memset(w.shared + at, 0xff, bytes);
  if (w.launch->checked) mark_fresh(w.shared + at, bytes);
}

void init_shared(Worker& w) {
  if (w.shared && is_arena(w.shared) != w.launch->checked) {
    free_shared(w.shared);
    w.shared = nullptr;
  }
  if (!w.shared) w.shared = w.launch->checked ? allocate_shared(REGION) : (char*)aligned_alloc(1024, REGION);
  if (w.launch->checked) mark_free(w.shared, REGION);
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
    fail("%s:%d: %zu bytes of static shared memory exceed the limit of %zu", base(file), line, used, STATIC_LIMIT);
  if (used + w.launch->shared > SHARED_LIMIT)
    fail("%s:%d: %zu bytes of shared memory exceed the limit of %zu", base(file), line, used + w.launch->shared,
         SHARED_LIMIT);
  uint32_t at = w.shared_end;
  w.variables.push_back({key, at, (uint32_t)bytes});
  w.shared_end = (uint32_t)((at + bytes + 2 * GAP - 1) / GAP * GAP);
  poison(w, at, (uint32_t)bytes);
  return w.shared + at;
}

void* dynamic_shared(const char* file, int line) {
  Worker& w = *worker;
  if (!w.launch->shared)
    fail("%s:%d: the kernel uses dynamic shared memory, but the launch requests none", base(file), line);
  return w.shared;
}

}  // namespace xtemu
