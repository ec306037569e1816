// The lowest rank that top-k or top-p keeps, by two kernels with several blocks per row; each skips rows that do not
// have the filter. Top-p follows top-k. Order: integer sums. CPU twin: reference/sample.rs.
//   sample_histogram   the bin of distances from the maximum in which the running sum of weights, in ascending rank,
//                      exceeds the budget: 1 per logit and V - k for top-k; W and (1 - p) S for top-p
//   sample_cutoff      the ranks in this bin, and among them the first at which the running sum exceeds the budget
// y [N, V]: logits after the penalty; raw, penalized: see sample_chunks.cu -> selects [N]
// Launch: 256 threads, 4096 logits of one row per block. The last block of a row does what follows the histogram or
//   the list. bins [N, 4096] and counters [N] are zero before and after a launch.
// Cost: one read of the row by each. A bin of more than 4096 ranks (ties) is not listed; then the last block reads the
//   row up to seven times.
#include "radix_select.cuh"

#define SELECT_BINS 4096u
#define SELECT_LIST 4096u  // ranks in the list of a row

XT_DEV uint32_t bin_of(float z, float max_z) {
  float d = (max_z - z) * 46.5f;
  return d < (float)(SELECT_BINS - 1) ? SELECT_BINS - 1 - (uint32_t)d : 0;
}

// One filter of a row.
struct Filter {
  const float* y;
  float temperature, max_z;
  uint64_t low;  // top-k has removed the ranks below
};

// use(i, z) for the logits from `first` up to `end` whose rank is not below `low`.
template <class Use> XT_DEV void over(const Filter& filter, uint32_t first, uint32_t end, Use use) {
  const float* y = filter.y;
  in_flight<8>(
      first + threadIdx.x, end, 256u, [=](uint32_t i) { return y[i]; },
      [&](uint32_t i, float logit) {
        float z = logit / filter.temperature;
        if (rank_of(z, i) >= filter.low) use(i, z);
      });
}

// The block of 256 threads that reaches the end of the histogram last: finds the bin, and resets all to zero.
XT_DEV void find_bin_of_row(const SampleRow& row, uint32_t v, bool top_p, unsigned long long* bins,
                            unsigned long long* local, RowSelect* select) {
  in_flight<8>((uint32_t)threadIdx.x, SELECT_BINS, 256u, [=](uint32_t b) { return bins[b]; },
               [&](uint32_t b, unsigned long long sum) { local[b] = sum; });
  if (!XT_FAULT(BinsNotReset))
    for (uint32_t b = threadIdx.x; b < SELECT_BINS; b += 256) bins[b] = 0;
  __syncthreads();
  const uint32_t own = SELECT_BINS / 256, first = own * threadIdx.x;
  uint64_t mine = 0;
  for (uint32_t b = first; b < first + own; b++) mine += local[b];
  Running running = block_running(mine);
  uint64_t budget = (uint64_t)(v - row.top_k), removed = running.sum - mine;
  if (top_p) budget = min((uint64_t)((1.0 - (double)row.top_p) * (double)running.total), running.total - 1);
  if (removed > budget || running.sum <= budget) return;
  uint32_t bin = first;
  for (; removed + local[bin] <= budget; bin++) removed += local[bin];
  select->removed = removed, select->budget = budget;
  select->bin = bin, select->listed = 0;
}

XT_KERNEL(sample_histogram_f32, 256)(const float* y, const SampleRow* rows, const ChunkSums* raw, RowSelect* selects,
                                     unsigned long long* bins, uint32_t* counters, const float* penalized, uint32_t v,
                                     uint32_t top_p) {
  xt_grid_dependency_sync();
  XT_SHARED(unsigned long long, local, SELECT_BINS);
  SampleRow row = rows[blockIdx.x];
  if (!(top_p ? has_top_p(row) : has_top_k(row, v))) return;
  RowMaxima maxima = row_maxima(row, raw, penalized, v);
  if (maxima.fault) return;
  for (uint32_t b = threadIdx.x; b < SELECT_BINS; b += 256) local[b] = 0;
  __syncthreads();
  RowSelect* select = selects + blockIdx.x;
  bins += (size_t)blockIdx.x * SELECT_BINS;
  Filter filter = {y + (size_t)blockIdx.x * v, row.temperature, maxima.z,
                   top_p && has_top_k(row, v) ? select->cutoff : 0};
  uint32_t first = SAMPLE_BLOCK * blockIdx.y;
  over(filter, first, min(v, first + SAMPLE_BLOCK), [&](uint32_t, float z) {
    uint64_t weight = top_p ? select_weight<false>(z, filter.max_z) : 1;
    if (weight) atomicAdd(local + bin_of(z, filter.max_z), (unsigned long long)weight);
  });
  __syncthreads();
  for (uint32_t b = threadIdx.x; b < SELECT_BINS; b += 256)
    if (local[b]) atomicAdd(bins + b, local[b]);
  if (!xt_last_block(counters + blockIdx.x, XT_FAULT(HistogramOfFirstBlock) ? 1 : gridDim.y)) return;
  find_bin_of_row(row, v, top_p, bins, local, select);
}
XT_EXPORT(sample_histogram_f32)

// The cutoff of a row from the ranks in its bin: `listed` of them, or all of the row.
template <bool COUNT>
XT_DEV uint64_t cutoff_of(const Filter& filter, uint32_t v, const uint64_t* list, const RowSelect* chosen,
                          RadixSelect* select) {
  uint32_t listed = chosen->listed, bin = chosen->bin;
  if (threadIdx.x == 0) select->removed = chosen->removed;
  auto of_list = [&](auto use) {
    in_flight<8>((uint32_t)threadIdx.x, listed, 256u, [=](uint32_t k) { return list[k]; },
                 [&](uint32_t, uint64_t rank) { use((uint32_t)~rank, from_ordered_bits((uint32_t)(rank >> 32))); });
  };
  auto of_row = [&](auto use) {
    over(filter, 0, v, [&](uint32_t i, float z) {
      if (bin_of(z, filter.max_z) == bin) use(i, z);
    });
  };
  if (listed <= SELECT_LIST) return select_digits<COUNT>(of_list, filter.max_z, filter.low, chosen->budget, select);
  return select_digits<COUNT>(of_row, filter.max_z, filter.low, chosen->budget, select);
}

XT_KERNEL_FOR(sample_cutoff_f32, 256, 4)(const float* y, const SampleRow* rows, const ChunkSums* raw,
                                         RowSelect* selects, uint64_t* lists, uint32_t* counters,
                                         const float* penalized, uint32_t v, uint32_t top_p) {
  xt_grid_dependency_sync();
  XT_SHARED(uint64_t, members, SAMPLE_BLOCK);
  XT_SHARED(RadixSelect, radix, 1);
  XT_SHARED(uint32_t, count, 1);
  XT_SHARED(uint32_t, at, 1);
  SampleRow row = rows[blockIdx.x];
  if (!(top_p ? has_top_p(row) : has_top_k(row, v))) return;
  RowMaxima maxima = row_maxima(row, raw, penalized, v);
  if (maxima.fault) return;
  if (threadIdx.x == 0) *count = 0;
  __syncthreads();
  RowSelect* select = selects + blockIdx.x;
  uint64_t* list = lists + (size_t)blockIdx.x * SELECT_LIST;
  Filter filter = {y + (size_t)blockIdx.x * v, row.temperature, maxima.z,
                   top_p && has_top_k(row, v) ? select->cutoff : 0};
  uint32_t first = SAMPLE_BLOCK * blockIdx.y, bin = select->bin;
  over(filter, first, min(v, first + SAMPLE_BLOCK), [&](uint32_t i, float z) {
    if (bin_of(z, filter.max_z) == bin) members[atomicAdd(count, 1u)] = rank_of(z, i);
  });
  __syncthreads();
  if (threadIdx.x == 0) *at = *count ? atomicAdd(&select->listed, *count) : 0;
  __syncthreads();
  for (uint32_t k = threadIdx.x; k < *count && *at + k < SELECT_LIST; k += 256) list[*at + k] = members[k];
  if (!xt_last_block(counters + blockIdx.x, XT_FAULT(ListOfFirstBlock) ? 1 : gridDim.y)) return;
  uint64_t cutoff =
      top_p ? cutoff_of<false>(filter, v, list, select, radix) : cutoff_of<true>(filter, v, list, select, radix);
  if (threadIdx.x == 0) select->cutoff = cutoff;
}
XT_EXPORT(sample_cutoff_f32)
