// quantize_heads  head vectors in int8: scale s = largest |x| / 127, code = x / s to the nearest integer, ties to even
//                   x [R, hd] -> y [R, hd / 4 + 1] words: four codes each, then the bits of s
//                 Launch: one warp per vector, four vectors per block.
// gather_int8     y[m] = code * s of the vectors of slot[m], rounded to the type of y
//                   pool [S, nkv, hd / 4 + 1] words, slot [M] -> y [M, nkv, hd]
//                 Launch: one thread per four values.
// Order: no sums. hd is a multiple of 4. CPU twin: operands/int8_head.rs.
#include "contract.cuh"

// The code of x in the low byte. 0 if the scale is 0 or not finite.
XT_DEV uint32_t int8_code(float x, float scale) {
  float quotient = x / scale, whole = (quotient + 12582912.0f) - 12582912.0f;
  if (XT_FAULT(KernelInt8CodesTruncated)) whole = (float)(int32_t)quotient;
  if ((xt_f_bits(quotient) & 0x7f800000u) == 0x7f800000u) return 0;
  return (uint32_t)(int32_t)(whole > 127.0f ? 127.0f : whole < -127.0f ? -127.0f : whole) & 0xffu;
}

template <class T> XT_DEV void quantize_heads(const T* x, uint32_t* y, uint32_t hd, uint32_t vectors) {
  uint32_t lane = threadIdx.x % 32, words = hd / 4;
  size_t n = (size_t)blockIdx.x * 4 + threadIdx.x / 32;
  if (n >= vectors) return;
  x += n * hd;
  y += n * (words + 1);
  uint32_t largest = 0;
  for (uint32_t i = lane; i < hd; i += 32) {
    uint32_t magnitude = xt_f_bits(load(x + i)) & 0x7fffffffu;
    if (XT_FAULT(KernelInt8NanSkipped) && magnitude > 0x7f800000u) continue;
    if (magnitude > largest) largest = magnitude;
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    uint32_t other = __shfl_xor_sync(0xffffffffu, largest, o);
    if (other > largest) largest = other;
  }
  float scale = xt_bits_f(largest) / 127.0f;
  for (uint32_t i = lane; i < words; i += 32) {
    uint32_t word = 0;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) word |= int8_code(load(x + 4 * i + k), scale) << 8 * k;
    y[i] = word;
  }
  if (lane == 0) y[words] = xt_f_bits(scale);
}

template <class T>
XT_DEV void gather_int8(const uint32_t* pool, const uint32_t* slot, T* y, uint32_t nkv, uint32_t hd, uint32_t n) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, words = hd / 4;
  if (i >= n) return;
  uint32_t vector = i / words, word = i % words;
  const uint32_t* from = pool + ((size_t)slot[vector / nkv] * nkv + vector % nkv) * (words + 1);
  uint32_t codes = from[word];
  if (XT_FAULT(KernelInt8ScaleOfNeighbour) && vector % nkv) from -= words + 1;
  float scale = xt_bits_f(from[words]);
#pragma unroll
  for (uint32_t k = 0; k < 4; k++)
    store(y + (size_t)vector * hd + 4 * word + k, (float)(int8_t)(codes >> 8 * k & 0xffu) * scale);
}

#define INT8(T, type)                                                                                                \
  XT_KERNEL(quantize_heads_##T, 128)(const type* x, uint32_t* y, uint32_t hd, uint32_t vectors) {                    \
    xt_grid_dependency_sync();                                                                                       \
    quantize_heads(x, y, hd, vectors);                                                                               \
  }                                                                                                                  \
  XT_EXPORT(quantize_heads_##T)                                                                                      \
  XT_KERNEL(gather_int8_##T, 256)(const uint32_t* pool, const uint32_t* slot, type* y, uint32_t nkv, uint32_t hd,    \
                                  uint32_t n) {                                                                      \
    xt_grid_dependency_sync();                                                                                       \
    gather_int8(pool, slot, y, nkv, hd, n);                                                                          \
  }                                                                                                                  \
  XT_EXPORT(gather_int8_##T)
INT8(f32, float)
INT8(bf16, bf16)
#undef INT8
