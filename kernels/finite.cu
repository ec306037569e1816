// all_finite   found = 1 if any x[i] is a NaN or an infinity; found is 0 before the launch
// Launch: 256 threads per block, at most 1024 blocks, grid-stride loop over n. One integer atomicMax per warp that
//   finds a non-finite value; it is independent of order. CPU twin: cpu/pointwise.rs.
#include "in_flight.cuh"

template <class T> XT_DEV void find_not_finite(const T* x, uint32_t* found, uint64_t n) {
  bool bad = false;
  uint64_t step = (uint64_t)gridDim.x * blockDim.x;
  in_flight<8>((uint64_t)blockIdx.x * blockDim.x + threadIdx.x, n, step, [=](uint64_t i) { return load(x + i); },
               [&](uint64_t, float v) { bad = bad | ((xt_f_bits(v) & 0x7f800000u) == 0x7f800000u); });
  if (__any_sync(0xffffffffu, bad) && (threadIdx.x & 31) == 0) atomicMax(found, 1u);
}

XT_KERNEL(all_finite_f32, 256)(const float* x, uint32_t* found, uint64_t n) {
  xt_grid_dependency_sync();
  find_not_finite(x, found, n);
}
XT_EXPORT(all_finite_f32)

XT_KERNEL(all_finite_bf16, 256)(const bf16* x, uint32_t* found, uint64_t n) {
  xt_grid_dependency_sync();
  find_not_finite(x, found, n);
}
XT_EXPORT(all_finite_bf16)
