// Deliberately faulty kernels, one per class of fault, and correct ones for comparison. Emulator only. The expected
// error of each is in gates/kernel_faults.rs.
#include "../xt.cuh"

XT_KERNEL(fault_none, 256)(const float* x, float* y) {
  xt_grid_dependency_sync();
  XT_SHARED(float, s, 256);
  uint32_t t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  y[t] = s[(t + 64) & 255];
}
XT_EXPORT(fault_none)

// Reads the value of the neighboring thread without a barrier after the writes.
XT_KERNEL(fault_missing_barrier, 256)(const float* x, float* y) {
  xt_grid_dependency_sync();
  XT_SHARED(float, s, 256);
  uint32_t t = threadIdx.x;
  s[t] = x[t];
  y[t] = t ? s[t - 1] : 0.0f;
}
XT_EXPORT(fault_missing_barrier)

// The same within one warp.
XT_KERNEL(fault_missing_warp_barrier, 32)(const float* x, float* y) {
  xt_grid_dependency_sync();
  XT_SHARED(float, s, 32);
  uint32_t t = threadIdx.x;
  s[t] = x[t];
  y[t] = s[t ^ 1];
}
XT_EXPORT(fault_missing_warp_barrier)

// A double-buffered pipeline without the barrier after one stage is consumed: a later iteration overwrites it.
XT_KERNEL(fault_stages, 64)(const float* x, float* y) {
  xt_grid_dependency_sync();
  XT_SHARED2(float, s, 2, 64);
  uint32_t t = threadIdx.x;
  float sum = 0.0f;
  s[0][t] = x[t];
  __syncthreads();
  for (uint32_t i = 0; i < 4; i++) {
    float next = x[i * 64 + t];
    sum = sum + s[i & 1][63 - t];
    s[(i + 1) & 1][t] = next;
    if (i == 1) continue;
    __syncthreads();
  }
  y[t] = sum;
}
XT_EXPORT(fault_stages)

XT_KERNEL(fault_shared_bounds, 32)(const float* x, float* y) {
  xt_grid_dependency_sync();
  XT_SHARED(float, s, 32);
  uint32_t t = threadIdx.x;
  s[t + 1] = x[t];
  __syncthreads();
  y[t] = t ? s[t] : 0.0f;
}
XT_EXPORT(fault_shared_bounds)

XT_KERNEL(fault_global_bounds, 128)(const float* x, float* y, uint32_t n) {
  xt_grid_dependency_sync();
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = x[0];
}
XT_EXPORT(fault_global_bounds)

XT_KERNEL(fault_uninitialised, 64)(const float* x, float* y) {
  xt_grid_dependency_sync();
  XT_SHARED(float, s, 64);
  uint32_t t = threadIdx.x;
  if (t) s[t] = x[t];
  __syncthreads();
  y[t] = s[t];
}
XT_EXPORT(fault_uninitialised)

XT_KERNEL(fault_missing_copy_wait, 32)(const float* x, float* y) {
  xt_grid_dependency_sync();
  XT_SHARED(float, s, 128);
  uint32_t t = threadIdx.x;
  xt_cp_async16(&s[t * 4], x + t * 4);
  xt_cp_commit();
  __syncthreads();
  y[t] = s[t];
  xt_cp_wait<0>();
}
XT_EXPORT(fault_missing_copy_wait)

XT_KERNEL(fault_divergent_barrier, 64)(const float* x, float* y) {
  xt_grid_dependency_sync();
  uint32_t t = threadIdx.x;
  if (t & 1) {
    __syncthreads();
    y[t] = x[t];
  } else {
    __syncthreads();
    y[t] = -x[t];
  }
}
XT_EXPORT(fault_divergent_barrier)

// A full-mask shuffle that half of the warp never reaches.
XT_KERNEL(fault_absent_lanes, 32)(const float* x, float* y) {
  xt_grid_dependency_sync();
  uint32_t t = threadIdx.x;
  y[t] = t < 16 ? __shfl_xor_sync(0xffffffffu, x[t], 1) : 0.0f;
}
XT_EXPORT(fault_absent_lanes)

// All blocks write to the same addresses.
XT_KERNEL(fault_blocks, 64)(const float* x, float* y) {
  xt_grid_dependency_sync();
  y[threadIdx.x] = x[blockIdx.x];
}
XT_EXPORT(fault_blocks)

// A floating-point atomicAdd: the sum depends on the order of arrival.
XT_KERNEL(fault_arrival_order, 64)(const float* x, float* y) {
  xt_grid_dependency_sync();
  atomicAdd(y, x[blockIdx.x * blockDim.x + threadIdx.x]);
}
XT_EXPORT(fault_arrival_order)

// An unallocated address.
XT_KERNEL(fault_null, 32)(const float* x, float* y) {
  xt_grid_dependency_sync();
  y[threadIdx.x] = *(x + ((size_t)1 << 50));
}
XT_EXPORT(fault_null)

// A misaligned vector load.
XT_KERNEL(fault_misaligned, 32)(const float* x, float* y) {
  xt_grid_dependency_sync();
  float4 v = *reinterpret_cast<const float4*>(x + 1);
  y[threadIdx.x] = v.x + v.w;
}
XT_EXPORT(fault_misaligned)

// Loads of two values, the last of which is out of bounds by one value if `x` has an odd number of them.
XT_KERNEL(fault_wide_bounds, 256)(const uint64_t* x, uint32_t* y) {
  xt_grid_dependency_sync();
  uint32_t t = threadIdx.x;
  y[t] = (uint32_t)(x[t] >> 32);
}
XT_EXPORT(fault_wide_bounds)

// A load of two values, of which another thread writes the second one without a barrier.
XT_KERNEL(fault_wide_read, 32)(const uint32_t* x, uint32_t* y) {
  xt_grid_dependency_sync();
  XT_SHARED(uint64_t, s, 33);
  uint32_t t = threadIdx.x;
  s[t] = x[t];
  if (t == 0) s[32] = 0;
  __syncthreads();
  ((uint32_t*)s)[2 * t + 3] = x[t];
  y[t] = (uint32_t)(s[t] >> 32);
}
XT_EXPORT(fault_wide_read)

// A store of two values, of which another thread reads the second one without a barrier. Each pair of bytes is written
// and read alone before, so all have the same history.
XT_KERNEL(fault_wide_write, 32)(const uint32_t* x, uint32_t* y) {
  xt_grid_dependency_sync();
  XT_SHARED(uint64_t, s, 32);
  uint32_t t = threadIdx.x;
  volatile uint16_t* pairs = (volatile uint16_t*)&s[t];
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 4; i++) {
    pairs[i] = 0;
    sum += pairs[i];
  }
  __syncthreads();
  s[t] = x[t];
  y[t] = t ? sum + ((uint32_t*)s)[2 * t - 1] : 0;
}
XT_EXPORT(fault_wide_write)

// Reads a result of the previous kernel before it waits for that kernel.
XT_KERNEL(fault_early_read, 32)(const float* x, float* y) {
  float v = x[threadIdx.x];
  xt_grid_dependency_sync();
  y[threadIdx.x] = v;
}
XT_EXPORT(fault_early_read)

// Half of the threads do not wait for the previous kernel: the next one could start before it has finished.
XT_KERNEL(fault_no_sync, 32)(const float* x, float* y) {
  if (threadIdx.x >= 16) return;
  xt_grid_dependency_sync();
  y[threadIdx.x] = x[threadIdx.x];
}
XT_EXPORT(fault_no_sync)

// Correct: the last of three blocks adds the results of all of them.
XT_KERNEL(fault_none_of_blocks, 64)(const float* x, float* y) {
  xt_grid_dependency_sync();
  uint32_t t = threadIdx.x;
  y[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];
  if (xt_last_block(reinterpret_cast<uint32_t*>(y + 255), 3)) y[t] = (y[t] + y[64 + t]) + y[128 + t];
}
XT_EXPORT(fault_none_of_blocks)

// A block writes its result after it has arrived at the block counter.
XT_KERNEL(fault_late_for_blocks, 64)(const float* x, float* y) {
  xt_grid_dependency_sync();
  uint32_t t = threadIdx.x;
  bool last = xt_last_block(reinterpret_cast<uint32_t*>(y + 255), 3);
  y[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];
  if (last) y[t] = (y[t] + y[64 + t]) + y[128 + t];
}
XT_EXPORT(fault_late_for_blocks)
