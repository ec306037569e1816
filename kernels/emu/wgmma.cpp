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

uint64_t wgmma_descriptor(const void* p, uint32_t leading) {
  Worker& w = *worker;
  size_t at = (size_t)((const char*)p - w.shared);
  if (at >= w.launch->shared) fail("wgmma: operand outside dynamic shared memory");
  if (at & 15) fail("wgmma: operand address is not a multiple of 16");
  return (at >> 4 & 0x3fff) | (uint64_t)(leading >> 4) << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}

void wgmma_start(float* d, int columns, WgmmaOperand a, WgmmaOperand b, int accumulate, const char* file, int line) {
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

// Where 8 values of an operand are in shared memory, 16 bytes with the 128-byte swizzle: those of `row` from k on, of an
// MN-major operand those of `k` from `row` on. Canonical layouts of the PTX ISA; offsets of the descriptor: leading,
// stride.
static const char* eight_values(const Wgmma& op, const WgmmaOperand& x, int row, int k) {
  Worker& w = *worker;
  if (x.descriptor >> 62 != 1) fail("wgmma: only the 128-byte swizzle is emulated");
  auto bytes = [&](int bit) { return (size_t)(x.descriptor >> bit & 0x3fff) << 4; };
  size_t at = bytes(0), leading = bytes(16), stride = bytes(32);
  if (x.mn_major)
    at += row / 64 * leading + row % 64 * 2 + k / 8 * stride + k % 8 * 128;
  else
    at += row / 8 * stride + row % 8 * 128 + k * 2;
  at ^= (at >> 7 & 7) << 4;
  if (at + 16 > w.launch->shared) fail("%s:%d: wgmma reads past dynamic shared memory", base(op.file), op.line);
  return w.shared + at;
}

// f(row, k) for the groups of 8 values of rows first .. end of an operand.
template <class F> static void each_eight(bool mn_major, int first, int end, F f) {
  int rows = mn_major ? 8 : 1, ks = mn_major ? 1 : 8;
  for (int row = first; row < end; row += rows)
    for (int k = 0; k < 16; k += ks) f(row, k);
}

// The first operand from the registers of the 128 threads.
static void read_fragments(const Wgmma& op, uint16_t (*out)[16]) {
  for (int i = 0; i < 128; i++) {
    for (int r = 0; r < 4; r++) {
      int row = i / 32 * 16 + i % 32 / 4 + r % 2 * 8, k = r / 2 * 8 + i % 4 * 2;
      out[row][k] = (uint16_t)op.a[i].fragment[r];
      out[row][k + 1] = (uint16_t)(op.a[i].fragment[r] >> 16);
    }
  }
}

static void read_operand(const Wgmma& op, const WgmmaOperand& x, int rows, uint16_t (*out)[16]) {
  each_eight(x.mn_major, 0, rows, [&](int row, int k) {
    uint16_t values[8];
    memcpy(values, eight_values(op, x, row, k), sizeof values);
    for (int i = 0; i < 8; i++) (x.mn_major ? out[row + i][k] : out[row][k + i]) = values[i];
  });
}

// Each warp reads its 16 rows of the first operand and all of the second one.
static void check_operands(Worker& w, const Wgmma& op, Thread* first) {
  auto check = [&](const WgmmaOperand& x, int begin, int end) {
    each_eight(x.mn_major, begin, end, [&](int row, int k) {
      check_access(eight_values(op, x, row, k), 16, Access::Read, op.file, op.line);
    });
  };
  for (int warp = 0; warp < 4; warp++) {
    AsThread as(w, first[warp * 32]);
    if (!op.a[0].fragment) check(op.a[0], warp * 16, warp * 16 + 16);
    check(op.b[0], 0, op.columns);
  }
}

static void run(Worker& w, Wgmma& op) {
  if (op.count != 128) fail("%s:%d: wgmma issued by %d of 128 threads", base(op.file), op.line, op.count);
  for (int i = 1; i < 128; i++) {
    if (op.a[i].descriptor != op.a[0].descriptor || op.b[i].descriptor != op.b[0].descriptor ||
        op.accumulate[i] != op.accumulate[0])
      fail("%s:%d: wgmma operands differ between threads", base(op.file), op.line);
  }
  if (w.launch->checked) check_operands(w, op, &w.threads[w.self->index / 128 * 128]);
  static thread_local uint16_t a[64][16], b[128][16];
  if (op.a[0].fragment)
    read_fragments(op, a);
  else
    read_operand(op, op.a[0], 64, a);
  read_operand(op, op.b[0], op.columns, b);
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
