// CUDA execution-model emulator: one fiber per CUDA thread, blocks on worker threads.
#include "emu.hpp"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#undef min
#undef max
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif
#include "check.hpp"

namespace xtemu {
thread_local TCtx* cur;
struct Block; struct Sched;
enum St : uint8_t { NEW, READY, BAR, WARP, GRID, WGW, DONE };
struct CpA { void* s; const void* g; uint32_t n, srcn; };
struct Thread {
  TCtx c; Block* blk; uint32_t idx; uint32_t gid; St st; uint8_t barid; const char* file; int line;
  void* sp; char* stack; uint32_t out[4];
  uint16_t wep; // warp epoch, for the race checker
  uint32_t prio; // order 3
  std::vector<CpA>* cp; std::vector<int>* groups;   // cp.async: pending copies and group sizes
#if defined(__SANITIZE_ADDRESS__)
  void* fake;
#endif
#ifndef __x86_64__
  ucontext_t uc;
#endif
};
struct Pend { uint32_t mask, arrived; WarpFn f; const char* file; int line; };
struct Warp { uint32_t in[32][16]; Pend p[4]; int np; };
struct WgOp { float* d[128]; uint64_t da[128], db[128]; int acc[128]; int n, group; const char* file; int line; };
struct Wg { std::vector<WgOp> ops; int cnt[128], grp[128]; int waiting; const char* file; int line; };
struct Bar { int n, want; int red_kind, red; const char* file; int line; };
struct Shm { char* p; size_t n; };
struct Block {
  uint3 bid; std::vector<Thread> th; std::vector<Warp> wp; std::vector<Wg> wg; int live; Bar bar[16]; uint16_t ep;
  std::unordered_map<const void*, Shm> sh; Shm dyn; int redres;
};
struct Launch {
  const KernelDesc* k; void** args; dim3 g, b; uint32_t smem; bool coop; uint64_t seed; int order;
  std::atomic<uint64_t> next{0}; std::atomic<bool> abort{false}; std::mutex mu; std::string err; std::vector<uint32_t> perm; uint32_t id;
};
struct Sched {
  Launch* L; std::vector<Thread*> ready; size_t head; Thread* me; Thread* zombie; void* main_sp; uint64_t rng; int live_threads; int ngrid; const char* gfile; int gline;
  std::vector<char*> stacks; std::vector<Thread*> gw; uint16_t gep;
#if defined(__SANITIZE_ADDRESS__)
  void* mfake; const void* mbot; size_t msz;
#endif
#ifndef __x86_64__
  ucontext_t muc;
#endif
};
static thread_local Sched* S;
#if defined(__SANITIZE_ADDRESS__)
static const size_t STK = 64 << 10;
#else
static const size_t STK = 128 << 10;
#endif
static std::mutex g_pool_mu; static std::vector<char*> g_pool;
static char* stack_get() {
  if (!S->stacks.empty()) { char* p = S->stacks.back(); S->stacks.pop_back(); return p; }
  { std::lock_guard<std::mutex> l(g_pool_mu); if (!g_pool.empty()) { char* p = g_pool.back(); g_pool.pop_back(); return p; } }
  char* p = (char*)mmap(nullptr, STK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) { perror("xtemu: mmap of a fiber stack"); abort(); }
  mprotect(p, 4096, PROT_NONE);                     // guard page: stack overflow faults
  return p;
}
static inline uint64_t rnd(uint64_t& s) { s += 0x9e3779b97f4a7c15ull; uint64_t z = s; z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull; z = (z ^ (z >> 27)) * 0x94d049bb133111ebull; return z ^ (z >> 31); }

#ifdef __x86_64__
extern "C" void xtemu_switch(void** save, void* to);
asm(R"(.text
.p2align 4
.globl xtemu_switch
.hidden xtemu_switch
.type xtemu_switch,@function
xtemu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size xtemu_switch, .-xtemu_switch
)");
#endif
static Thread* pick();
static void prep(Thread* t);
static inline void reap() { if (S->zombie) { S->stacks.push_back(S->zombie->stack); S->zombie->stack = nullptr; S->zombie = nullptr; } }
// Leave the running fiber: straight into the next ready one, or to the scheduler when there is none (deadlock, abort, all done).
static void to_main(bool dying) {
  Thread* t = S->me; Thread* n = S->L->abort.load(std::memory_order_relaxed) ? nullptr : pick();
  if (n == t) return;
  void* to_sp; if (n) { if (n->st == NEW) prep(n); }
#if defined(__SANITIZE_ADDRESS__)
  if (n) __sanitizer_start_switch_fiber(dying ? nullptr : &t->fake, n->stack, STK);
  else   __sanitizer_start_switch_fiber(dying ? nullptr : &t->fake, S->mbot, S->msz);
#endif
  if (dying) S->zombie = t;
#ifdef __x86_64__
  if (n) { S->me = n; cur = &n->c; to_sp = n->sp; } else to_sp = S->main_sp;
  xtemu_switch(&t->sp, to_sp);
#else
  (void)to_sp; if (n) { S->me = n; cur = &n->c; swapcontext(&t->uc, &n->uc); } else swapcontext(&t->uc, &S->muc);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(t->fake, nullptr, nullptr);
#endif
  reap();
}
static void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  { const void* b; size_t z; __sanitizer_finish_switch_fiber(nullptr, &b, &z); if (!S->msz) { S->mbot = b; S->msz = z; } }
#endif
  reap();
  Thread* t = S->me;
  S->L->k->call(S->L->args);
  if (t->cp && !t->cp->empty()) fail("thread exits with cp.async copies that were never waited for");
  t->st = DONE; t->blk->live--; S->live_threads--;
  to_main(true);
  __builtin_trap();
}
static void prep(Thread* t) {
  t->st = READY; t->stack = stack_get();
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(t->stack + 4096, STK - 4096);   // a finished fiber leaves its frames' red zones behind
#endif
#ifdef __x86_64__
  uintptr_t top = ((uintptr_t)t->stack + STK) & ~(uintptr_t)63; void** sp = (void**)(top - 64 - ((uintptr_t)t->stack / STK * 5 % 61) * 64);   // colour: else every stack top maps to the same cache sets
  *--sp = nullptr; *--sp = (void*)&fiber_main; for (int i = 0; i < 6; i++) *--sp = nullptr; t->sp = sp;
#else
  getcontext(&t->uc); t->uc.uc_stack.ss_sp = t->stack; t->uc.uc_stack.ss_size = STK; t->uc.uc_link = nullptr; makecontext(&t->uc, fiber_main, 0);
#endif
}
static void resume(Thread* t) {
  S->me = t; cur = &t->c;
  if (t->st == NEW) prep(t);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&S->mfake, t->stack, STK);
#endif
#ifdef __x86_64__
  xtemu_switch(&S->main_sp, t->sp);
#else
  swapcontext(&S->muc, &t->uc);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(S->mfake, nullptr, nullptr);
#endif
  reap();
}
static Thread* pick() {
  auto& r = S->ready; Thread* t;
  if (S->head == r.size()) return nullptr;
  switch (S->L->order) {
    case 0: t = r[S->head++]; if (S->head > 4096 && S->head * 2 > r.size()) { r.erase(r.begin(), r.begin() + S->head); S->head = 0; } return t;
    case 1: t = r.back(); r.pop_back(); return t;                                                    // last in, first out
    case 3: {                                                                                         // random fixed priority per warp, a few random changes: one warp runs far ahead of another
      size_t k = 0; for (size_t i = 1; i < r.size(); i++) if (r[i]->prio > r[k]->prio) k = i;
      t = r[k]; r[k] = r.back(); r.pop_back();
      if (rnd(S->rng) % 512 == 0) { uint32_t p = (uint32_t)rnd(S->rng), w = t->idx >> 5; for (auto& x : t->blk->th) if (x.idx >> 5 == w) x.prio = p; }
      return t; }
    default: { size_t k = rnd(S->rng) % r.size(); t = r[k]; r[k] = r.back(); r.pop_back(); return t; }  // random
  }
}
static std::string where(const Thread* t) {
  char b[256]; snprintf(b, sizeof b, "block (%u,%u,%u) thread (%u,%u,%u)", t->c.bid.x, t->c.bid.y, t->c.bid.z, t->c.tid.x, t->c.tid.y, t->c.tid.z); return b;
}
static void set_err(const std::string& s) {
  std::lock_guard<std::mutex> l(S->L->mu); if (S->L->err.empty()) S->L->err = std::string(S->L->k->name) + ": " + s; S->L->abort = true;
}
[[noreturn]] void fail(const char* fmt, ...) {
  char b[512]; va_list ap; va_start(ap, fmt); vsnprintf(b, sizeof b, fmt, ap); va_end(ap);
  set_err(where(S->me) + ": " + b);
  to_main(false); __builtin_trap();                // never resumed
}
static void wait_as(St st, const char* f, int l) { Thread* t = S->me; t->st = st; t->file = f; t->line = l; to_main(false); }
static inline void make_ready(Thread* t) { t->st = READY; S->ready.push_back(t); }

static void bar_arrive(int id, int want, int kind, int pred, const char* f, int l) {
  Thread* t = S->me; Block* b = t->blk; Bar& B = b->bar[id];
  if (b->live != (int)b->th.size() && want == (int)b->th.size()) fail("%s:%d: barrier reached after some threads of the block exited", f, l);
  if (B.n == 0) { B.file = f; B.line = l; B.want = want; B.red_kind = kind; B.red = kind == 0; }
  else if (B.line != l || B.file != f) fail("divergent barrier: this thread is at %s:%d, others wait at %s:%d", f, l, B.file, B.line);
  else if (B.want != want) fail("%s:%d: barrier %d with different counts", f, l, id);
  if (kind == 0) B.red &= pred; else if (kind == 1) B.red |= pred; else if (kind == 2) B.red += pred;
  B.n++; t->barid = id; t->st = BAR;
  if (B.n == B.want) {
    b->redres = B.red; B.n = 0; b->ep++;
    for (auto& x : b->th) if (x.st == BAR && x.barid == id) make_ready(&x);
    t->file = f; t->line = l; to_main(false);
  } else wait_as(BAR, f, l);
}
void sync_block(const char* f, int l) { bar_arrive(0, (int)S->me->blk->th.size(), -1, 0, f, l); }
int sync_block_red(int k, int p, const char* f, int l) { bar_arrive(0, (int)S->me->blk->th.size(), k, p, f, l); return S->me->blk->redres; }
void named_barrier(int id, int n, const char* f, int l) { if (id < 1 || id > 15 || n % 32) fail("%s:%d: bad named barrier", f, l); bar_arrive(id, n, -1, 0, f, l); }
void grid_sync(const char* f, int l) {
  if (!S->L->coop) fail("%s:%d: grid barrier in a launch that is not cooperative", f, l);
  sync_block(f, l);
  S->ngrid++; S->me->st = GRID; S->gw.push_back(S->me);
  if (S->ngrid == S->live_threads) { S->gep++; S->ngrid = 0; auto v = std::move(S->gw); S->gw.clear(); for (auto t : v) { t->blk->ep++; make_ready(t); } to_main(false); }
  else wait_as(GRID, f, l);
}
void spin_hint() { make_ready(S->me); to_main(false); }

uint32_t* warp_coll(uint32_t mask, WarpFn fn, const uint32_t* in, int nin, const char* f, int l) {
  Thread* t = S->me; Block* b = t->blk; uint32_t lane = t->idx & 31; Warp& w = b->wp[t->idx >> 5];
  uint32_t base = t->idx & ~31u, nl = b->th.size() - base; uint32_t full = nl >= 32 ? 0xffffffffu : (1u << nl) - 1;
  if (mask == 0xffffffffu) mask &= full;            // a partial last warp
  if (!(mask >> lane & 1)) fail("%s:%d: lane %u is not in its own mask %08x", f, l, lane, mask);
  Pend* p = nullptr;
  for (int i = 0; i < w.np; i++) {
    if (w.p[i].mask == mask) { p = &w.p[i]; break; }
    if (w.p[i].mask & mask) fail("%s:%d: warp collective with mask %08x while %s:%d waits with overlapping mask %08x", f, l, mask, w.p[i].file, w.p[i].line, w.p[i].mask);
  }
  if (!p) { if (w.np == 4) fail("too many warp collectives in flight"); p = &w.p[w.np++]; *p = {mask, 0, fn, f, l}; }
  else if (p->line != l || p->file != f || p->f != fn) fail("divergent warp collective: this lane is at %s:%d, others at %s:%d", f, l, p->file, p->line);
  if (nin) memcpy(w.in[lane], in, nin * 4);
  p->arrived |= 1u << lane;
  if (p->arrived == mask) {
    uint32_t out[32][4];
    if (fn) { fn(mask, w.in, out); }
    *p = w.p[--w.np];
    for (uint32_t m = mask; m; m &= m - 1) { Thread* x = &b->th[base + __builtin_ctz(m)]; if (fn) memcpy(x->out, out[__builtin_ctz(m)], 16); x->wep++; if (x != t) make_ready(x); }
    if (S->L->order) { make_ready(t); t->file = f; t->line = l; to_main(false); }
  } else wait_as(WARP, f, l);
  return t->out;
}
void op_shfl(uint32_t mask, uint32_t (*in)[16], uint32_t (*out)[4]) {
  for (uint32_t m = mask; m; m &= m - 1) {
    int i = __builtin_ctz(m), a = (int)in[i][3], w = (int)in[i][4], s = i, seg = i & ~(w - 1);
    switch (in[i][2]) { case SH_IDX: s = seg | (a & (w - 1)); break; case SH_UP: s = i - a < seg ? i : i - a; break;
      case SH_DOWN: s = i + a >= seg + w ? i : i + a; break; case SH_XOR: s = (i ^ a) >= seg + w ? i : i ^ a; break; }
    if (!(mask >> s & 1)) { out[i][0] = out[i][1] = 0xffc0dead; }   // reading an absent lane: undefined on the device -> poison
    else { out[i][0] = in[s][0]; out[i][1] = in[s][1]; }
  }
}
void op_ballot(uint32_t mask, uint32_t (*in)[16], uint32_t (*out)[4]) {
  uint32_t r = 0; for (uint32_t m = mask; m; m &= m - 1) { int i = __builtin_ctz(m); r |= in[i][0] << i; }
  for (uint32_t m = mask; m; m &= m - 1) out[__builtin_ctz(m)][0] = r;
}
static const uint16_t* ptr16(const uint32_t* in) { uint64_t p; memcpy(&p, in, 8); return (const uint16_t*)p; }
void op_ldm4(uint32_t, uint32_t (*in)[16], uint32_t (*out)[4]) {
  for (int i = 0; i < 32; i++) { const uint16_t* p = ptr16(in[i]); if ((uintptr_t)p & 15) { fail("ldmatrix row address not 16-byte aligned"); } check_access(p, 16, false); }
  for (int L = 0; L < 32; L++) for (int j = 0; j < 4; j++) memcpy(&out[L][j], ptr16(in[8 * j + L / 4]) + 2 * (L % 4), 4);
}
void op_ldm2t(uint32_t, uint32_t (*in)[16], uint32_t (*out)[4]) {
  for (int i = 0; i < 16; i++) { const uint16_t* p = ptr16(in[i]); if ((uintptr_t)p & 15) fail("ldmatrix row address not 16-byte aligned"); check_access(p, 16, false); }
  for (int L = 0; L < 32; L++) for (int j = 0; j < 2; j++) {
    uint32_t lo = ptr16(in[8 * j + 2 * (L % 4)])[L / 4], hi = ptr16(in[8 * j + 2 * (L % 4) + 1])[L / 4]; out[L][j] = lo | hi << 16; }
}
static inline float b2f(uint32_t h) { uint32_t u = h << 16; float f; memcpy(&f, &u, 4); return f; }
// Tensor-core arithmetic, as published models describe it (arXiv 2511.10909, 2512.07004): the addends c and a_k*b_k are
// aligned to the largest exponent among them, each cut toward zero at F fractional bits, summed exactly, and the sum is cut
// toward zero to f32. Hopper and Blackwell: F = 25, all 16 products at once. Ampere and Ada: F = 24, two halves of 8.
// Products are not renormalised before alignment; a zero counts with exponent -126 (per factor). F = 0: exact sum in double, one rounding.
static std::atomic<int> g_mma_F{25}, g_mma_split{1};
static inline void unpack(uint32_t mbits, int mant, uint32_t h, int64_t* m, int* e) {   // value = m * 2^(e - mant)
  uint32_t ex = h >> mant & 0xff, fr = h & mbits; *m = ex ? (int64_t)(fr | (mbits + 1)) : (int64_t)fr; *e = ex ? (int)ex - 127 : -126;
}
static float tc_dot(const uint16_t* a, const uint16_t* b, int n, float c, int F) {
  int64_t sg[17]; int ex[17], mx = -1000; uint32_t cb; memcpy(&cb, &c, 4); bool special = (cb >> 23 & 0xff) == 0xff;
  for (int i = 0; i < n; i++) {
    special |= (a[i] >> 7 & 0xff) == 0xff || (b[i] >> 7 & 0xff) == 0xff;
    int64_t ma, mb; int ea, eb; unpack(0x7f, 7, a[i] & 0x7fff, &ma, &ea); unpack(0x7f, 7, b[i] & 0x7fff, &mb, &eb);
    int64_t p = ma * mb; sg[i] = ((a[i] ^ b[i]) & 0x8000) ? -p : p; ex[i] = ea + eb; if (ex[i] > mx) mx = ex[i];   // 14 fractional bits
  }
  if (special) { double s = c; for (int i = 0; i < n; i++) s += (double)b2f(a[i]) * (double)b2f(b[i]); uint32_t q = 0x7fffffff; float f = (float)s; if (s != s) memcpy(&f, &q, 4); return f; }
  int64_t mc; int ec; unpack(0x7fffff, 23, cb & 0x7fffffff, &mc, &ec); if (ec > mx) mx = ec;
  int64_t sum = 0; int d;
  auto cut = [&](int64_t m, int have, int dist) { uint64_t v = (uint64_t)(m < 0 ? -m : m) << (F - have); v = dist > 62 ? 0 : v >> dist; return m < 0 ? -(int64_t)v : (int64_t)v; };
  for (int i = 0; i < n; i++) { d = mx - ex[i]; sum += cut(sg[i], 14, d); }
  sum += cut(cb >> 31 ? -mc : mc, 23, mx - ec);
  if (!sum) return 0.0f;
  uint64_t v = sum < 0 ? (uint64_t)-sum : (uint64_t)sum; int top = 63 - __builtin_clzll(v), e = mx - F + top;      // value = v * 2^(mx-F)
  int drop = top - 23; if (e < -126) drop += -126 - e;
  v = drop > 0 ? (drop > 62 ? 0 : v >> drop) : v << -drop;
  uint32_t r; if (e > 127) r = 0x7f800000; else if (e < -126) r = (uint32_t)v; else r = (uint32_t)(e + 127) << 23 | (uint32_t)(v & 0x7fffff);
  r |= sum < 0 ? 0x80000000u : 0; float f; memcpy(&f, &r, 4); return f;
}
float mma_dot16(const uint16_t* a, const uint16_t* b, float c) {
  int F = g_mma_F.load(std::memory_order_relaxed);
  if (!F) { double s = c; for (int k = 0; k < 16; k++) s += (double)b2f(a[k]) * (double)b2f(b[k]); return (float)s; }
  if (g_mma_split.load(std::memory_order_relaxed) == 2) return tc_dot(a + 8, b + 8, 8, tc_dot(a, b, 8, c, F), F);
  return tc_dot(a, b, 16, c, F);
}
void op_mma16816(uint32_t, uint32_t (*in)[16], uint32_t (*out)[4]) {
  uint16_t A[16][16], B[8][16];                                                             // B by column
  for (int L = 0; L < 32; L++) {
    int g = L >> 2, q = (L & 3) * 2; const uint32_t* a = in[L];
    memcpy(&A[g][q], a, 4); memcpy(&A[g + 8][q], a + 1, 4); memcpy(&A[g][q + 8], a + 2, 4); memcpy(&A[g + 8][q + 8], a + 3, 4);
    memcpy(&B[g][q], a + 4, 4); memcpy(&B[g][q + 8], a + 5, 4);
  }
  for (int L = 0; L < 32; L++) for (int e = 0; e < 4; e++) {
    int r = (L >> 2) + (e >> 1) * 8, c = (L & 3) * 2 + (e & 1); float cf; memcpy(&cf, &in[L][6 + e], 4);
    float f = mma_dot16(A[r], B[c], cf); memcpy(&out[L][e], &f, 4);
  }
}
// cp.async is performed only at the matching wait; until then the destination holds poison.
void cp_async(void* s, const void* g, size_t n, size_t srcn) {
  Thread* t = S->me; if (!t->cp) { t->cp = new std::vector<CpA>; t->groups = new std::vector<int>; t->groups->push_back(0); }
  if (((uintptr_t)s | (uintptr_t)g) & 15) fail("cp.async address not 16-byte aligned");
  check_access(s, n, true); memset(s, 0xff, n); t->cp->push_back({s, g, (uint32_t)n, (uint32_t)srcn}); t->groups->back()++;
}
void cp_commit() { Thread* t = S->me; if (!t->groups) { t->cp = new std::vector<CpA>; t->groups = new std::vector<int>; t->groups->push_back(0); } t->groups->push_back(0); }
void cp_wait(int keep) {
  Thread* t = S->me; if (!t->groups) return; auto& g = *t->groups; auto& c = *t->cp; int done = (int)g.size() - 1 - keep; size_t k = 0;
  for (int i = 0; i < done; i++) for (int j = 0; j < g[i]; j++, k++) { if (c[k].srcn) { check_access(c[k].g, c[k].srcn, false); memcpy(c[k].s, c[k].g, c[k].srcn); } memset((char*)c[k].s + c[k].srcn, 0, c[k].n - c[k].srcn); check_access(c[k].s, c[k].n, true); }
  if (done > 0) { c.erase(c.begin(), c.begin() + k); g.erase(g.begin(), g.begin() + done); }
}
// wgmma is asynchronous: operands are read and accumulators written only at the matching wait_group.
uint64_t wgmma_desc(const void* p) {
  Block* b = S->me->blk; size_t o = (const char*)p - b->dyn.p;
  if ((const char*)p < b->dyn.p || o >= b->dyn.n) fail("wgmma operand is not in dynamic shared memory");
  if (o & 15) fail("wgmma operand not 16-byte aligned");
  return (o >> 4 & 0x3fff) | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
void wgmma(float* d, uint64_t da, uint64_t db, int acc, const char* f, int l) {
  Thread* t = S->me; int i = t->idx & 127; Wg& w = t->blk->wg[t->idx >> 7]; size_t k = w.cnt[i]++;
  if (t->blk->th.size() < (t->idx | 127u) + 1) fail("%s:%d: wgmma in an incomplete warpgroup", f, l);
  if (k == w.ops.size()) { w.ops.emplace_back(); w.ops[k].n = 0; w.ops[k].group = w.grp[i]; w.ops[k].file = f; w.ops[k].line = l; }
  WgOp& o = w.ops[k]; if (o.line != l || o.group != w.grp[i]) fail("divergent wgmma: this thread at %s:%d, others at %s:%d", f, l, o.file, o.line);
  o.d[i] = d; o.da[i] = da; o.db[i] = db; o.acc[i] = acc; o.n++;
  if (!acc) for (int e = 0; e < 32; e++) { uint32_t p = 0xffffffffu; memcpy(&d[e], &p, 4); }   // until the wait: poison
}
void wgmma_commit() { Thread* t = S->me; t->blk->wg[t->idx >> 7].grp[t->idx & 127]++; }
float mma_dot16(const uint16_t* a, const uint16_t* b, float c);
static void wg_row(Block* b, uint64_t desc, int r, uint16_t out[16]) {
  if (desc >> 62 != 1) fail("only the 128-byte swizzle is emulated");
  size_t base = (desc & 0x3fff) << 4, sbo = (desc >> 32 & 0x3fff) << 4;
  for (int k = 0; k < 16; k += 8) { size_t a = base + (size_t)(r / 8) * sbo + (r % 8) * 128 + k * 2; a ^= (a >> 7 & 7) << 4;
    if (a + 16 > b->dyn.n) fail("wgmma descriptor reads past dynamic shared memory"); check_access(b->dyn.p + a, 16, false); memcpy(out + k, b->dyn.p + a, 16); }
}
static void wg_exec(Block* b, WgOp& o) {
  if (o.n != 128) fail("%s:%d: wgmma issued by %d of 128 threads", o.file, o.line, o.n);
  for (int i = 1; i < 128; i++) if (o.da[i] != o.da[0] || o.db[i] != o.db[0] || o.acc[i] != o.acc[0]) fail("%s:%d: wgmma descriptors differ among threads", o.file, o.line);
  uint16_t A[64][16], B[64][16]; for (int r = 0; r < 64; r++) { wg_row(b, o.da[0], r, A[r]); wg_row(b, o.db[0], r, B[r]); }
  for (int t = 0; t < 128; t++) for (int e = 0; e < 32; e++) {
    int row = (t >> 5) * 16 + ((t & 31) >> 2) + (e >> 1 & 1) * 8, col = (e >> 2) * 8 + (t & 3) * 2 + (e & 1);
    o.d[t][e] = mma_dot16(A[row], B[col], o.acc[0] ? o.d[t][e] : 0.0f);
  }
}
void wgmma_wait(int keep, const char* f, int l) {
  Thread* t = S->me; Block* b = t->blk; Wg& w = b->wg[t->idx >> 7];
  if (++w.waiting == 128) {
    w.waiting = 0; int done = w.grp[0] - keep; size_t k = 0;
    for (int i = 1; i < 128; i++) if (w.grp[i] != w.grp[0]) fail("threads of a warpgroup committed different numbers of groups");
    for (; k < w.ops.size() && w.ops[k].group < done; k++) wg_exec(b, w.ops[k]);
    w.ops.erase(w.ops.begin(), w.ops.begin() + k); for (int i = 0; i < 128; i++) w.cnt[i] -= (int)k;
    uint32_t base = t->idx & ~127u; for (uint32_t i = base; i < base + 128; i++) if (b->th[i].st == WGW) make_ready(&b->th[i]);
  } else wait_as(WGW, f, l);
}
void proxy_fence() {}
void* shared_mem(const void* key, size_t n) {
  Block* b = S->me->blk; Shm& s = b->sh[key];
  if (!s.p) { s.p = (char*)dev_alloc(n, SPACE_SHARED); s.n = n; memset(s.p, 0xff, n); }
  return s.p;
}
void* dyn_shared() { return S->me->blk->dyn.p; }

static void init_block(Block& b, uint64_t i) {
  Launch* L = S->L; b.bid = {(unsigned)(i % L->g.x), (unsigned)(i / L->g.x % L->g.y), (unsigned)(i / L->g.x / L->g.y)};
  uint32_t n = L->b.x * L->b.y * L->b.z; b.th.resize(n); b.wp.resize((n + 31) / 32); for (auto& w : b.wp) w.np = 0; b.wg.clear(); b.wg.resize((n + 127) / 128); for (auto& g : b.wg) { memset(g.cnt, 0, sizeof g.cnt); memset(g.grp, 0, sizeof g.grp); g.waiting = 0; }
  b.live = n; memset(b.bar, 0, sizeof b.bar); b.ep = 0; b.dyn = {nullptr, 0};
  if (L->smem) { b.dyn.n = L->smem; b.dyn.p = (char*)dev_alloc(L->smem, SPACE_SHARED); memset(b.dyn.p, 0xff, L->smem); }
  for (uint32_t t = 0; t < n; t++) {
    Thread& x = b.th[t]; x.c.tid = {t % L->b.x, t / L->b.x % L->b.y, t / L->b.x / L->b.y}; x.c.bid = b.bid; x.c.bdim = L->b; x.c.gdim = L->g;
    x.blk = &b; x.idx = t; x.gid = (uint32_t)(i * n + t); x.st = NEW; x.stack = nullptr; x.cp = nullptr; x.groups = nullptr; x.wep = 0;
    S->ready.push_back(&x);
  }
  if (L->order == 3) for (uint32_t w = 0; w < (n + 31) / 32; w++) { uint32_t p = (uint32_t)rnd(S->rng); for (uint32_t t = w * 32; t < n && t < w * 32 + 32; t++) b.th[t].prio = p; }
  S->live_threads += n;
}
static void fini_block(Block& b) {
  for (auto& s : b.sh) dev_free(s.second.p); b.sh.clear(); if (b.dyn.p) dev_free(b.dyn.p); b.dyn.p = nullptr;
  for (auto& t : b.th) { delete t.cp; delete t.groups; t.cp = nullptr; t.groups = nullptr; if (t.stack) { S->stacks.push_back(t.stack); t.stack = nullptr; } }
}
static void run_ready(Block* bs, size_t nb) {
  Launch* L = S->L;
  while (S->live_threads > 0 && !L->abort.load(std::memory_order_relaxed)) {
    Thread* t = pick();
    if (!t) {
      std::string e = "deadlock:"; int shown = 0;
      for (size_t i = 0; i < nb && shown < 4; i++) for (auto& t : bs[i].th) if (t.st != DONE && shown < 4) {
        char b[400]; snprintf(b, sizeof b, " %s waits %s at %s:%d;", where(&t).c_str(), t.st == BAR ? "in __syncthreads" : t.st == WARP ? "in a warp collective" : "in a grid barrier", t.file, t.line); e += b; shown++; }
      set_err(e); break;
    }
    resume(t);
  }
  S->ready.clear(); S->head = 0;
}
static void worker(Launch* L, int w) {
  Sched s{}; s.L = L; s.rng = L->seed * 0x9e3779b97f4a7c15ull + w; S = &s;
  uint64_t n = (uint64_t)L->g.x * L->g.y * L->g.z;
  if (L->coop) {
    std::vector<Block> bs(n); for (uint64_t i = 0; i < n; i++) init_block(bs[i], i);
    run_ready(bs.data(), n); for (auto& b : bs) fini_block(b);
  } else {
    Block b;
    for (uint64_t i; (i = L->next++) < n && !L->abort;) { s.live_threads = 0; init_block(b, L->perm.empty() ? i : L->perm[i]); run_ready(&b, 1); fini_block(b); }
  }
  { std::lock_guard<std::mutex> l(g_pool_mu); g_pool.insert(g_pool.end(), s.stacks.begin(), s.stacks.end()); }
  S = nullptr; cur = nullptr;
}
static std::map<std::string, KernelDesc>& table() { static std::map<std::string, KernelDesc> t; return t; }
void reg(const KernelDesc& d) { table()[d.name] = d; }
// for the checker
bool who(uint32_t* gid, uint32_t* blk, uint32_t* warp, uint32_t* bep, uint32_t* wep, uint32_t* gep, uint32_t* launch) {
  if (!S || !S->me || !cur) return false; Thread* t = S->me; Launch* L = S->L; uint32_t n = L->b.x * L->b.y * L->b.z;
  *gid = t->gid; *blk = t->gid / n; *warp = t->idx >> 5; *bep = t->blk->ep; *wep = t->wep; *gep = S->gep; *launch = L->id; return true;
}
const char* kname() { return S->L->k->name; }
}  // namespace xtemu
using namespace xtemu;
static thread_local std::string g_err;
extern "C" {
// mirrors cuLaunchKernel: args[i] points at the i-th parameter's value. 0 = ok.
int xtemu_launch(const char* name, const uint32_t grid[3], const uint32_t block[3], uint32_t smem, int coop, void** args, uint64_t seed, int order, int workers) {
  auto it = table().find(name); if (it == table().end()) { g_err = std::string("no kernel named ") + name; return 1; }
  static std::atomic<uint32_t> ids{1};
  Launch L; L.k = &it->second; L.args = args; L.g = {grid[0], grid[1], grid[2]}; L.b = {block[0], block[1], block[2]}; L.smem = smem; L.coop = coop; L.seed = seed; L.order = order; L.id = ids++;
  uint64_t nb = (uint64_t)grid[0] * grid[1] * grid[2], nt = (uint64_t)block[0] * block[1] * block[2];
  if (!nb || !nt || nt > 1024 || block[2] > 64 || grid[1] > 65535 || grid[2] > 65535 || smem > 227 * 1024) { g_err = std::string(name) + ": invalid launch configuration"; return 2; }
  if (order && nb < (1u << 24)) { L.perm.resize(nb); for (uint64_t i = 0; i < nb; i++) L.perm[i] = (uint32_t)i; uint64_t r = seed; for (uint64_t i = nb; i > 1; i--) std::swap(L.perm[i - 1], L.perm[order == 1 ? i - 1 : rnd(r) % i]); }
  if (workers <= 1 || coop || nb < 2) worker(&L, 0);
  else { std::vector<std::thread> ts; for (int w = 1; w < workers; w++) ts.emplace_back(worker, &L, w); worker(&L, 0); for (auto& t : ts) t.join(); }
  if (!L.err.empty()) { g_err = L.err; return 3; }
  std::string c = check_take_report(); if (!c.empty()) { g_err = std::string(name) + ": " + c; return 4; }
  return 0;
}
void xtemu_mma_model(int F, int split) { g_mma_F = F; g_mma_split = split; }
float xtemu_mma_dot16(const uint16_t* a, const uint16_t* b, float c) { return mma_dot16(a, b, c); }
const char* xtemu_error() { return g_err.c_str(); }
int xtemu_nparams(const char* name, const uint32_t** sizes) { auto it = table().find(name); if (it == table().end()) return -1; *sizes = it->second.psize; return it->second.nparams; }
int xtemu_kernel_count() { return (int)table().size(); }
void* xtemu_malloc(size_t n) { void* p = dev_alloc(n, SPACE_GLOBAL); if (p) memset(p, 0xff, n); return p; }
void xtemu_free(void* p) { dev_free(p); }
void xtemu_copy_in(void* d, const void* s, size_t n) { memcpy(d, s, n); check_mark_init(d, n); }
void xtemu_copy_out(void* d, const void* s, size_t n) { memcpy(d, s, n); }
void xtemu_memset(void* d, int v, size_t n) { memset(d, v, n); check_mark_init(d, n); }
int xtemu_checked() {
#ifdef XTEMU_CHECK
  return 1;
#else
  return 0;
#endif
}
}
