// Kernels that are wrong on purpose, one for each class of fault, and a right one beside. In the emulator
// only: gates/kernel_faults.rs holds what must be said of each.
#include "../xt.cuh"

XT_KERNEL(fault_none, 256)(const float* x, float* y) {
  XT_SHARED(float, s, 256);
  uint32_t t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  y[t] = s[(t + 64) & 255];
}
XT_EXPORT(fault_none)

// Reads its neighbour's value before all have written.
XT_KERNEL(fault_missing_barrier, 256)(const float* x, float* y) {
  XT_SHARED(float, s, 256);
  uint32_t t = threadIdx.x;
  s[t] = x[t];
  y[t] = t ? s[t - 1] : 0.0f;
}
XT_EXPORT(fault_missing_barrier)

// The same inside a warp.
XT_KERNEL(fault_missing_warp_barrier, 32)(const float* x, float* y) {
  XT_SHARED(float, s, 32);
  uint32_t t = threadIdx.x;
  s[t] = x[t];
  y[t] = s[t ^ 1];
}
XT_EXPORT(fault_missing_warp_barrier)

// Two stages, and the barrier after the use of a stage is missing: the next but one overwrites it.
XT_KERNEL(fault_stages, 64)(const float* x, float* y) {
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
  XT_SHARED(float, s, 32);
  uint32_t t = threadIdx.x;
  s[t + 1] = x[t];
  __syncthreads();
  y[t] = t ? s[t] : 0.0f;
}
XT_EXPORT(fault_shared_bounds)

XT_KERNEL(fault_global_bounds, 128)(const float* x, float* y, uint32_t n) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = x[0];
}
XT_EXPORT(fault_global_bounds)

XT_KERNEL(fault_uninitialised, 64)(const float* x, float* y) {
  XT_SHARED(float, s, 64);
  uint32_t t = threadIdx.x;
  if (t) s[t] = x[t];
  __syncthreads();
  y[t] = s[t];
}
XT_EXPORT(fault_uninitialised)

XT_KERNEL(fault_missing_copy_wait, 32)(const float* x, float* y) {
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

// Half a warp waits for the other half.
XT_KERNEL(fault_absent_lanes, 32)(const float* x, float* y) {
  uint32_t t = threadIdx.x;
  y[t] = t < 16 ? __shfl_xor_sync(0xffffffffu, x[t], 1) : 0.0f;
}
XT_EXPORT(fault_absent_lanes)

// Blocks write one place.
XT_KERNEL(fault_blocks, 64)(const float* x, float* y) { y[threadIdx.x] = x[blockIdx.x]; }
XT_EXPORT(fault_blocks)

// A sum in whatever order threads come.
XT_KERNEL(fault_arrival_order, 64)(const float* x, float* y) {
  atomicAdd(y, x[blockIdx.x * blockDim.x + threadIdx.x]);
}
XT_EXPORT(fault_arrival_order)

// An address that is nobody's.
XT_KERNEL(fault_null, 32)(const float* x, float* y) { y[threadIdx.x] = *(x + ((size_t)1 << 50)); }
XT_EXPORT(fault_null)

// A vector at an address that is not its own.
XT_KERNEL(fault_misaligned, 32)(const float* x, float* y) {
  float4 v = *reinterpret_cast<const float4*>(x + 1);
  y[threadIdx.x] = v.x + v.w;
}
XT_EXPORT(fault_misaligned)

// Not a fault: the last of three blocks adds what all have left.
XT_KERNEL(fault_none_of_blocks, 64)(const float* x, float* y) {
  uint32_t t = threadIdx.x;
  y[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];
  if (xt_last_block(reinterpret_cast<uint32_t*>(y + 255), 3)) y[t] = (y[t] + y[64 + t]) + y[128 + t];
}
XT_EXPORT(fault_none_of_blocks)

// A block leaves something after it came to the meeting.
XT_KERNEL(fault_late_for_blocks, 64)(const float* x, float* y) {
  uint32_t t = threadIdx.x;
  bool last = xt_last_block(reinterpret_cast<uint32_t*>(y + 255), 3);
  y[blockIdx.x * 64 + t] = x[blockIdx.x * 64 + t];
  if (last) y[t] = (y[t] + y[64 + t]) + y[128 + t];
}
XT_EXPORT(fault_late_for_blocks)
