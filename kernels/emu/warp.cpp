// Collectives of a warp: lanes meet, the last to come computes for all.
#include "worker.hpp"

#include "check.hpp"

namespace xtemu {

static Meeting& join(Warp& warp, uint32_t mask, Operation operation, const char* file, int line) {
  for (int i = 0; i < warp.count; i++) {
    Meeting& m = warp.meetings[i];
    if (m.mask == mask) {
      if (m.line != line || m.file != file || m.operation != operation) {
        fail("divergent warp collective: this lane at %s:%d, others at %s:%d", base(file), line, base(m.file),
             m.line);
      }
      return m;
    }
    if (m.mask & mask) {
      fail("%s:%d: a warp collective of lanes %08x, and %s:%d waits for lanes %08x", base(file), line, mask,
           base(m.file), m.line, m.mask);
    }
  }
  if (warp.count == 4) fail("%s:%d: more than 4 warp collectives at once", base(file), line);
  warp.meetings[warp.count] = {mask, 0, operation, file, line};
  return warp.meetings[warp.count++];
}

const uint32_t* collective(uint32_t mask, Operation operation, const char* file, int line) {
  Worker& w = *worker;
  Thread& me = *w.me;
  Warp& warp = w.warps[me.warp()];
  mask &= mask == 0xffffffffu ? warp.full : mask;  // all of a partial last warp
  if (!(mask & me.bit()))
    fail("%s:%d: lane %u is not among the lanes %08x that it names", base(file), line, me.index & 31, mask);
  Meeting& meeting = join(warp, mask, operation, file, line);
  meeting.arrived |= me.bit();
  if (meeting.arrived != mask) {
    wait_as(w, State::InCollective, file, line);
    return me.place.lane->out;
  }
  meeting = warp.meetings[--warp.count];
  if (operation) operation(mask, warp.lanes);
  if (w.launch->checked) check_collective(warp, mask);
  w.ready.add(me.warp(), mask & ~me.bit());
  if (w.launch->order != Order::Forward) {  // another lane may be the first to go on
    w.ready.add(me.warp(), me.bit());
    suspend(w);
  }
  return me.place.lane->out;
}

// ---- shuffles. What a lane reads of one that is absent is undefined on a device: poison here.
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
