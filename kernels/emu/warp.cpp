// Warp collectives: a rendezvous of lanes; the last lane to arrive computes for all.
#include "worker.hpp"

#include "check.hpp"

namespace xtemu {

static PendingCollective& join(Warp& warp, uint32_t mask, Operation operation, const char* file, int line) {
  for (int i = 0; i < warp.count; i++) {
    PendingCollective& m = warp.pending[i];
    if (m.mask == mask) {
      if (m.line != line || m.file != file || m.operation != operation) {
        fail("divergent warp collective: this lane at %s:%d, others at %s:%d", base(file), line, base(m.file),
             m.line);
      }
      return m;
    }
    if (m.mask & mask) {
      fail("%s:%d: a warp collective of lanes %08x overlaps a pending one at %s:%d of lanes %08x", base(file), line,
           mask, base(m.file), m.line, m.mask);
    }
  }
  if (warp.count == 4) fail("%s:%d: more than 4 concurrent warp collectives", base(file), line);
  warp.pending[warp.count] = {mask, 0, operation, file, line};
  return warp.pending[warp.count++];
}

const uint32_t* collective(uint32_t mask, Operation operation, const char* file, int line) {
  Worker& w = *worker;
  Thread& self = *w.self;
  Warp& warp = w.warps[self.warp()];
  mask &= mask == 0xffffffffu ? warp.full : mask;  // a full mask means all lanes of a partial last warp
  if (!(mask & self.bit()))
    fail("%s:%d: lane %u is not in its own mask %08x", base(file), line, self.index & 31, mask);
  PendingCollective& collective_state = join(warp, mask, operation, file, line);
  collective_state.arrived |= self.bit();
  if (collective_state.arrived != mask) {
    wait_as(w, State::InCollective, file, line);
    return self.context.lane->out;
  }
  collective_state = warp.pending[--warp.count];
  if (operation) operation(mask, warp.lanes);
  if (w.launch->checked) check_collective(warp, mask);
  w.ready.add(self.warp(), mask & ~self.bit());
  if (w.launch->order != Order::Forward) {  // another lane may continue first
    w.ready.add(self.warp(), self.bit());
    suspend(w);
  }
  return self.context.lane->out;
}

// ---- shuffles. Reading from a lane outside the mask is undefined on a device; here it returns poison.
static inline void move(uint32_t mask, Lane* lanes, int to, int from) {
  bool present = mask >> from & 1;
  lanes[to].out[0] = present ? lanes[from].in[0] : 0xffc0deadu;
  lanes[to].out[1] = present ? lanes[from].in[1] : 0xffc0deadu;
}

void shuffle_xor(uint32_t mask, Lane* lanes) {
  for (uint32_t set = mask; set; set &= set - 1) {
    int i = lowest(set);
    move(mask, lanes, i, (i ^ (int)lanes[i].in[2]) & 31);
  }
}

void shuffle_index(uint32_t mask, Lane* lanes) {
  for (uint32_t set = mask; set; set &= set - 1) {
    int i = lowest(set);
    move(mask, lanes, i, (int)(lanes[i].in[2] & 31));
  }
}

void shuffle_up(uint32_t mask, Lane* lanes) {
  for (uint32_t set = mask; set; set &= set - 1) {
    int i = lowest(set);
    move(mask, lanes, i, i < (int)lanes[i].in[2] ? i : i - (int)lanes[i].in[2]);
  }
}

void shuffle_down(uint32_t mask, Lane* lanes) {
  for (uint32_t set = mask; set; set &= set - 1) {
    int i = lowest(set);
    move(mask, lanes, i, i + (int)lanes[i].in[2] > 31 ? i : i + (int)lanes[i].in[2]);
  }
}

void ballot(uint32_t mask, Lane* lanes) {
  uint32_t votes = 0;
  for (uint32_t set = mask; set; set &= set - 1) votes |= lanes[lowest(set)].in[0] << lowest(set);
  for (uint32_t set = mask; set; set &= set - 1) lanes[lowest(set)].out[0] = votes;
}

}  // namespace xtemu
