// wgmma: 128 threads issue a product of 64 rows, 64 or 128 columns and 16 k from shared memory. Operands are read and
// accumulators written at the wait that covers it, never earlier.
#include <string.h>

#include "check.hpp"
#include "tensor_core.hpp"
#include "worker.hpp"

namespace xtemu {

static Warpgroup& current_warpgroup() {
  Worker& w = *worker;
  if (w.groups.empty()) w.groups.resize((w.threads.size() + 127) / 128);
  return w.groups[w.self->index / 128];
}

bool wgmma_available() { return worker->launch->wgmma; }

void trap(const char* file, int line) {
  fail("%s:%d: trap: wgmma in an image without machine code for sm_90a", base(file), line);
}

uint64_t wgmma_descriptor(const void* p) {
  Worker& w = *worker;
  size_t at = (size_t)((const char*)p - w.shared);
  if (at >= w.launch->shared) fail("wgmma: operand outside dynamic shared memory");
  if (at & 15) fail("wgmma: operand address is not a multiple of 16");
  return (at >> 4 & 0x3fff) | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

void wgmma_start(float* d, int columns, uint64_t a, uint64_t b, int accumulate, const char* file, int line) {
  Worker& w = *worker;
  if (!w.launch->wgmma) trap(file, line);
  if (w.threads.size() < (w.self->index | 127u) + 1)
    fail("%s:%d: wgmma in an incomplete warpgroup", base(file), line);
  Warpgroup& group = current_warpgroup();
  uint32_t i = w.self->index & 127;
  size_t nth = (size_t)group.issued[i]++;
  if (nth == group.started.size()) {
    group.started.emplace_back();
    group.started[nth] = {};
    group.started[nth].group = group.group[i];
    group.started[nth].file = file;
    group.started[nth].line = line;
    group.started[nth].columns = columns;
  }
  Wgmma& op = group.started[nth];
  if (op.line != line || op.group != group.group[i])
    fail("divergent wgmma: this thread at %s:%d, others at %s:%d", base(file), line, base(op.file), op.line);
  op.d[i] = d;
  op.a[i] = a;
  op.b[i] = b;
  op.accumulate[i] = accumulate;
  op.count++;
  if (!accumulate) memset(d, 0xff, columns / 2 * sizeof(float));  // poison until the wait
}

void wgmma_commit() { current_warpgroup().group[worker->self->index & 127]++; }

// 16 values of an operand row, K-major with the 128-byte swizzle.
static void operand_row(const Wgmma& op, uint64_t descriptor, int row, uint16_t out[16], bool checked = false) {
  Worker& w = *worker;
  if (descriptor >> 62 != 1) fail("wgmma: only the 128-byte swizzle is emulated");
  size_t base_at = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  for (int k = 0; k < 16; k += 8) {
    size_t at = base_at + (size_t)(row / 8) * stride + (size_t)(row % 8) * 128 + (size_t)k * 2;
    at ^= (at >> 7 & 7) << 4;
    if (at + 16 > w.launch->shared) fail("%s:%d: wgmma reads past dynamic shared memory", base(op.file), op.line);
    if (checked) check_access(w.shared + at, 16, Access::Read, op.file, op.line);
    memcpy(out + k, w.shared + at, 16);
  }
}

// Each warp reads its 16 rows of the first operand and all of the second one.
static void check_operands(Worker& w, const Wgmma& op, Thread* first) {
  uint16_t unused[16];
  for (int warp = 0; warp < 4; warp++) {
    AsThread as(w, first[warp * 32]);
    for (int i = 0; i < 16; i++) operand_row(op, op.a[0], warp * 16 + i, unused, true);
    for (int i = 0; i < op.columns; i++) operand_row(op, op.b[0], i, unused, true);
  }
}

static void run(Worker& w, Wgmma& op) {
  if (op.count != 128) fail("%s:%d: wgmma issued by %d of 128 threads", base(op.file), op.line, op.count);
  for (int i = 1; i < 128; i++) {
    if (op.a[i] != op.a[0] || op.b[i] != op.b[0] || op.accumulate[i] != op.accumulate[0])
      fail("%s:%d: wgmma operands differ between threads", base(op.file), op.line);
  }
  if (w.launch->checked) check_operands(w, op, &w.threads[w.self->index / 128 * 128]);
  static thread_local uint16_t a[64][16], b[128][16];
  for (int i = 0; i < 64; i++) operand_row(op, op.a[0], i, a[i]);
  for (int i = 0; i < op.columns; i++) operand_row(op, op.b[0], i, b[i]);
  for (int rows = 0; rows < 64; rows += 16) {
    for (int columns = 0; columns < op.columns; columns += 8) {
      float d[16][8] = {};
      // each warp owns 16 rows; fragments are laid out as for mma.sync
      auto each = [&](auto move) {
        for (int i = 0; i < 32; i++) {
          for (int e = 0; e < 4; e++)
            move(op.d[rows * 2 + i][columns / 2 + e], d[(i >> 2) + (e >> 1) * 8][(i & 3) * 2 + (e & 1)]);
        }
      };
      if (op.accumulate[0]) each([](float& fragment, float& value) { value = fragment; });
      tensor_step(w.launch->tensor_core, a + rows, b + columns, d);
      each([](float& fragment, float& value) { fragment = value; });
    }
  }
}

void wgmma_wait(int pending) {
  Worker& w = *worker;
  Warpgroup& group = current_warpgroup();
  if (++group.waiting < 128) {
    wait_as(w, State::InWgmma, "wgmma wait", pending);
    return;
  }
  group.waiting = 0;
  for (int i = 1; i < 128; i++)
    if (group.group[i] != group.group[0]) fail("wgmma: threads of a warpgroup committed different numbers of groups");
  size_t done = 0;
  for (; done < group.started.size() && group.started[done].group < group.group[0] - pending; done++)
    run(w, group.started[done]);
  group.started.erase(group.started.begin(), group.started.begin() + (long)done);
  for (int& issued : group.issued) issued -= (int)done;
  int warp = (int)(w.self->index / 128) * 4;
  for (int i = 0; i < 4; i++) w.ready.add(warp + i, 0xffffffffu);
  suspend(w);
}

}  // namespace xtemu
