// A strided loop with several loads in flight. A loop that uses each value before it loads the next one waits for
// memory in every iteration; `#pragma unroll` does not change that, because the exit is tested between two loads.
#pragma once
#include "contract.cuh"

// use(i, load_at(i)) for i = first, first + step, ... below end, in this order. N loads are issued before the first use.
// end + N step must not wrap.
template <int N, class Index, class Load, class Use>
XT_DEV void in_flight(Index first, Index end, Index step, Load load_at, Use use) {
  decltype(load_at(first)) v[N];
  Index i = first;
  for (; i + (N - 1) * step < end; i += N * step) {
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = load_at(i + k * step);
#pragma unroll
    for (int k = 0; k < N; k++) use(i + k * step, v[k]);
  }
  if (i >= end) return;
  const int left = N - 1 - XT_FAULT(TailOfLoopSkipped);
#pragma unroll
  for (int k = 0; k < left; k++)
    if (i + k * step < end) v[k] = load_at(i + k * step);
#pragma unroll
  for (int k = 0; k < left; k++)
    if (i + k * step < end) use(i + k * step, v[k]);
}
