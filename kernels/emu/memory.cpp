// Device memory. A plain device uses host memory. A checked device uses one reserved range with shadow memory: blocks
// are separated by gaps, and addresses are not reused before the range is exhausted, so that out-of-bounds accesses
// and uses after free hit unallocated memory.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "check.hpp"
#include "shadow.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; an error before, which changes nothing
#endif

namespace xtemu {

constexpr size_t GRAIN = 256, GAP = 1024;

static void* reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

const Shadow& shadow() {
  static const Shadow instance = [] {
    Shadow s{(char*)reserve(ARENA), (uint8_t*)reserve(ARENA / 2), (Cell*)reserve(ARENA / 2 * sizeof(Cell))};
    if (!s.state || !s.cells) s.memory = nullptr;
    return s;
  }();
  return instance;
}

bool is_arena(const void* at) { return shadow().memory && in_arena(shadow(), at); }

// ---- blocks of the arena
static std::mutex mutex;
static std::map<char*, size_t> live;  // address -> requested bytes
static size_t top = 0;

// Finds space for `bytes`, advancing cyclically through the arena past live blocks.
static char* find(const Shadow& s, size_t bytes, size_t alignment) {
  size_t need = (bytes + GRAIN - 1) / GRAIN * GRAIN + GAP;
  for (int round = 0; round < 2;) {
    top = (top + alignment - 1) / alignment * alignment;
    if (top + need > ARENA) {
      top = 0;
      round++;
      continue;
    }
    char* at = s.memory + top;
    auto after = live.lower_bound(at);
    if (after == live.end() || at + need <= after->first) {
      top += need;
      return at;
    }
    top = (size_t)(after->first - s.memory) + (after->second + GRAIN - 1) / GRAIN * GRAIN + GAP;
  }
  return nullptr;
}

// The largest block whose cells get memory when it is allocated. Otherwise the system maps a page of zeros at the first
// access to a cell, which is a read, and replaces the page at the write that follows.
constexpr size_t POPULATED = 256 << 10;

// Calls madvise for the whole pages of a range.
static void madvise_pages(void* at, size_t bytes, int advice) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  uintptr_t from = ((uintptr_t)at + page - 1) / page * page, to = ((uintptr_t)at + bytes) / page * page;
  if (from < to) madvise((void*)from, to - from, advice);
}

static char* allocate(size_t bytes, uint8_t state, size_t alignment) {
  const Shadow& s = shadow();
  if (!s.memory || bytes > ARENA / 4) return nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  char* at = find(s, bytes, alignment);
  if (!at) return nullptr;
  live[at] = bytes;
  const size_t pairs = (bytes + 1) / 2;
  memset(s.state + pair(s, at), state, pairs);
  if (bytes <= POPULATED) madvise_pages(s.cells + pair(s, at), pairs * sizeof(Cell), MADV_POPULATE_WRITE);
  return at;
}

static void free_block(char* at) {
  const Shadow& s = shadow();
  std::lock_guard<std::mutex> lock(mutex);
  auto block = live.find(at);
  if (block == live.end()) return;
  size_t pairs = (block->second + 1) / 2;
  memset(s.state + pair(s, at), 0, pairs);
  // the pages read as zero afterwards
  madvise_pages(at, block->second, MADV_DONTNEED);
  madvise_pages(s.cells + pair(s, at), pairs * sizeof(Cell), MADV_DONTNEED);
  live.erase(block);
}

// ---- interface
char* allocate_global(size_t bytes, bool checked) {
  char* at = checked ? allocate(bytes, LIVE, GRAIN) : (char*)aligned_alloc(1024, (bytes + 1024) / 1024 * 1024);
  if (at) memset(at, 0xff, bytes);  // NaN
  return at;
}

void free_global(char* at) {
  if (is_arena(at))
    free_block(at);
  else
    free(at);
}

char* allocate_shared(size_t bytes) { return allocate(bytes, 0, 1024); }
void free_shared(char* at) { free_global(at); }

void mark_written(void* at, size_t bytes) {
  if (!is_arena(at)) return;
  const Shadow& s = shadow();
  for (size_t i = pair(s, at), end = pair(s, (char*)at + bytes + 1); i < end; i++) s.state[i] |= WRITTEN;
}

// The first byte whose pair lacks a flag, or `bytes`. An odd address begins in the middle of a pair.
static size_t first_without(uint8_t flag, const void* at, size_t bytes) {
  if (!is_arena(at) || bytes == 0) return bytes;
  const Shadow& s = shadow();
  const size_t first = pair(s, at), odd = ((const char*)at - s.memory) % 2;
  for (size_t i = first, end = pair(s, (const char*)at + bytes + 1); i < end; i++) {
    if (!(s.state[i] & flag)) return i == first ? 0 : 2 * (i - first) - odd;
  }
  return bytes;
}

size_t first_dead(const void* at, size_t bytes) { return first_without(LIVE, at, bytes); }
size_t first_unwritten(const void* at, size_t bytes) { return first_without(WRITTEN, at, bytes); }

void describe(const void* at, char* text, size_t size) {
  const Shadow& s = shadow();
  if (s.state[pair(s, at)] & SHARED) {
    snprintf(text, size, "shared memory");
    return;
  }
  const char* from = worker && worker->shared ? worker->shared : nullptr;
  if (from && (const char*)at >= from && (const char*)at < from + (512 << 10)) {
    snprintf(text, size, "shared memory, outside its variables");
    return;
  }
  std::lock_guard<std::mutex> lock(mutex);
  auto after = live.upper_bound((char*)at);
  if (after == live.begin()) {
    snprintf(text, size, "unallocated global memory");
    return;
  }
  --after;
  snprintf(text, size, "global memory, byte %zu of a block of %zu", (size_t)((const char*)at - after->first),
           after->second);
}

}  // namespace xtemu
