// Block barriers: all threads of the block must arrive at the same call site. Also counters that order blocks (xt_last_block).
#include "worker.hpp"

#include "check.hpp"

namespace xtemu {

static void arrive(Vote vote, int predicate, const char* file, int line) {
  Worker& w = *worker;
  Thread& self = *w.self;
  Barrier& barrier = w.barrier;
  if (w.alive != w.threads.size())
    fail("%s:%d: barrier reached after threads of the block have exited", base(file), line);
  if (!barrier.arrived) {
    barrier = {0, vote == Vote::All, file, line};
  } else if (barrier.line != line || barrier.file != file) {
    fail("divergent barrier: this thread at %s:%d, others at %s:%d", base(file), line, base(barrier.file),
         barrier.line);
  }
  if (vote == Vote::All) barrier.vote &= predicate;
  if (vote == Vote::Any) barrier.vote |= predicate;
  if (vote == Vote::Count) barrier.vote += predicate;
  w.warps[self.warp()].at_barrier |= self.bit();
  if (++barrier.arrived < w.threads.size()) {
    wait_as(w, State::AtBarrier, file, line);
    return;
  }
  w.result = barrier.vote;
  barrier.arrived = 0;
  if (w.launch->checked) w.block_synced = tick();
  for (size_t i = 0; i < w.warps.size(); i++) {
    w.ready.add((int)i, w.warps[i].at_barrier);
    w.warps[i].at_barrier = 0;
  }
  suspend(w);  // any thread may continue first, including this one
}

void block_barrier(const char* file, int line) { arrive(Vote::Any, 0, file, line); }

int block_vote(Vote vote, int predicate, const char* file, int line) {
  arrive(vote, predicate, file, line);
  return worker->result;
}

void released_and_acquired(const void* counter) {
  if (worker->launch->checked) check_release_acquire(*worker, counter);
}

void grid_dependency_synced() { worker->self->grid_dependency_synced = true; }

}  // namespace xtemu
