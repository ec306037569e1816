// rms_norm     r = 1 / sqrt(sum32(x_i x_i) / C + eps);  y_i = (x_i r) w_i       x [N, C], w [C] -> y [N, C]
// Launch: a warp a row, four rows a block: heads and whole rows alike. Rows of up to 1024 stay in
// registers between the sum and the products; longer ones are read twice.
// Order: sum32, lane t takes t, t + 32, ... CPU twin: cpu/norm.rs.

XT_DEV float rrms_of(float squares, uint32_t c, float eps) { return 1.0f / sqrtf(sum32_of(squares) / (float)c + eps); }

// The elements lane, lane + 32, ... of a row of at most 32 K; zeros where there are none.
template <int K, class T>
XT_DEV void lane_load(float (&v)[K], const T* x, uint32_t c, uint32_t lane) {
#pragma unroll
  for (int k = 0; k < K; k++) v[k] = lane + 32 * k < c ? load(x + lane + 32 * k) : 0.0f;
}

template <int K>
XT_DEV float lane_squares(const float (&v)[K]) {
  float s = 0.0f;
#pragma unroll
  for (int k = 0; k < K; k++) s = fmaf(v[k], v[k], s);
  return s;
}

template <class T>
XT_DEV float lane_squares(const T* x, uint32_t c, uint32_t lane) {
  float s = 0.0f;
#pragma unroll 8
  for (uint32_t i = lane; i < c; i += 32) { float v = load(x + i); s = fmaf(v, v, s); }
  return s;
}

template <int K, class T, class O>
XT_DEV void rms_norm_short(const T* x, const float* w, O* y, uint32_t c, float eps, uint32_t lane) {
  float v[K];
  lane_load(v, x, c, lane);
  float r = rrms_of(lane_squares(v), c, eps);
#pragma unroll
  for (int k = 0; k < K; k++) {
    uint32_t i = lane + 32 * k;
    if (i < c) store(y + i, (v[k] * r) * w[i]);
  }
}

template <class T, class O>
XT_DEV void rms_norm_long(const T* x, const float* w, O* y, uint32_t c, float eps, uint32_t lane) {
  float r = rrms_of(lane_squares(x, c, lane), c, eps);
#pragma unroll 8
  for (uint32_t i = lane; i < c; i += 32) store(y + i, (load(x + i) * r) * w[i]);
}

template <class T, class O>
XT_DEV void rms_norm_of(const T* x, const float* w, O* y, uint32_t n, uint32_t c, float eps) {
  uint32_t row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= n) return;
  x += (size_t)row * c;
  y += (size_t)row * c;
  if (c <= 128) rms_norm_short<4>(x, w, y, c, eps, lane);
  else if (c <= 1024) rms_norm_short<32>(x, w, y, c, eps, lane);
  else rms_norm_long(x, w, y, c, eps, lane);
}

#define RMS_NORM(name, T, O)                                                                                     \
  XT_KERNEL(name, 128)(const T* x, const float* w, O* y, uint32_t n, uint32_t c, float eps) { rms_norm_of(x, w, y, n, c, eps); } \
  XT_EXPORT(name)
RMS_NORM(rms_norm_f32_f32, float, float)
RMS_NORM(rms_norm_f32_bf16, float, bf16)
RMS_NORM(rms_norm_bf16_f32, bf16, float)
RMS_NORM(rms_norm_bf16_bf16, bf16, bf16)
#undef RMS_NORM
