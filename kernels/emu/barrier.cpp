// Barriers of a block: all threads that the block began with come to one place in the source. And meetings of
// blocks, where the last to come goes on.
#include "worker.hpp"

#include "check.hpp"

namespace xtemu {

static void arrive(Vote vote, int predicate, const char* file, int line) {
  Worker& w = *worker;
  Thread& me = *w.me;
  Barrier& barrier = w.barrier;
  if (w.alive != w.threads.size()) fail("%s:%d: a barrier, and threads of the block have ended", base(file), line);
  if (!barrier.arrived) {
    barrier = {0, vote == Vote::All, file, line};
  } else if (barrier.line != line || barrier.file != file) {
    fail("divergent barrier: this thread at %s:%d, others at %s:%d", base(file), line, base(barrier.file),
         barrier.line);
  }
  if (vote == Vote::All) barrier.vote &= predicate;
  if (vote == Vote::Any) barrier.vote |= predicate;
  if (vote == Vote::Count) barrier.vote += predicate;
  w.warps[me.warp()].at_barrier |= me.bit();
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
  suspend(w);  // any thread may be the first to go on, this one too
}

void block_barrier(const char* file, int line) { arrive(Vote::Any, 0, file, line); }

int block_vote(Vote vote, int predicate, const char* file, int line) {
  arrive(vote, predicate, file, line);
  return worker->result;
}

void come_to(const void* counter, bool last) {
  if (worker->launch->checked) check_coming(*worker, counter, last);
}

}  // namespace xtemu
