// Which threads of a block can run, and which runs next. A block has at most 32 warps of 32 lanes, so
// the set is 32 words and a word of the warps that are not empty.
#pragma once
#include <stdint.h>

namespace xtemu {

// Mirrored in gpu/emulated.rs.
enum class Order : int { Forward, Backward, Random, Priorities };

// splitmix64
inline uint64_t random(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

inline int lowest(uint32_t set) { return __builtin_ctz(set); }
inline int highest(uint32_t set) { return 31 - __builtin_clz(set); }
// The first member at or after a random place, cyclically.
inline int any(uint32_t set, uint32_t r) {
  uint64_t twice = ((uint64_t)set << 32 | set) >> (r & 31);
  return (__builtin_ctzll(twice) + (r & 31)) & 31;
}

class Ready {
 public:
  void start(Order order, uint64_t seed) {
    order_ = order;
    state_ = seed;
    clear();
  }
  void clear() {
    warps_ = 0;
    for (uint32_t& lanes : lanes_) lanes = 0;
  }
  void prioritise() {
    for (uint32_t& priority : priority_) priority = (uint32_t)random(state_);
  }

  void add(int warp, uint32_t lanes) {
    if (!lanes) return;
    lanes_[warp] |= lanes;
    warps_ |= 1u << warp;
  }

  // The index of a thread, or -1.
  int take() {
    if (!warps_) return -1;
    int warp, lane;
    switch (order_) {
    case Order::Forward:
      warp = lowest(warps_);
      lane = lowest(lanes_[warp]);
      break;
    case Order::Backward:
      warp = highest(warps_);
      lane = highest(lanes_[warp]);
      break;
    default: {
      uint64_t r = random(state_);
      warp = order_ == Order::Random ? any(warps_, (uint32_t)r) : first();
      lane = any(lanes_[warp], (uint32_t)(r >> 8));
      // now and then another warp runs ahead
      if (order_ == Order::Priorities && (r >> 16) % 512 == 0) priority_[warp] = (uint32_t)(r >> 32);
    }
    }
    lanes_[warp] &= ~(1u << lane);
    if (!lanes_[warp]) warps_ &= ~(1u << warp);
    return warp * 32 + lane;
  }

 private:
  int first() const {
    int best = lowest(warps_);
    for (uint32_t set = warps_ & (warps_ - 1); set; set &= set - 1) {
      if (priority_[lowest(set)] > priority_[best]) best = lowest(set);
    }
    return best;
  }

  Order order_;
  uint64_t state_;
  uint32_t warps_, lanes_[32], priority_[32];
};

}  // namespace xtemu
