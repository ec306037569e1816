// Philox4x32-10 (Salmon et al., SC 2011) at an address: key (seed low, seed high), counter (id low, id high,
// position, purpose). CPU twin: rng.rs.
#pragma once
#include "xt.cuh"

// Returns word0 + 2^32 word1 of the block.
XT_DEV uint64_t philox_of(uint64_t seed, uint64_t id, uint32_t position, uint32_t purpose) {
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  uint32_t c0 = (uint32_t)id, c1 = (uint32_t)(id >> 32), c2 = position, c3 = purpose;
#pragma unroll
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c0 | (uint64_t)c1 << 32;
}

// The high 64 bits of the 128-bit product a b.
XT_DEV uint64_t high_product(uint64_t a, uint64_t b) {
  uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
  uint64_t low = al * bl, one = ah * bl + (low >> 32), two = al * bh + (uint32_t)one;
  return ah * bh + (one >> 32) + (two >> 32);
}
