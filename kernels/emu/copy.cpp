// cp.async: a copy lands at the wait that covers it and not before. Until then its target is poison,
// and on a checked device nobody may touch it.
#include <string.h>

#include "check.hpp"
#include "worker.hpp"

namespace xtemu {

static Copies& mine() {
  Thread& me = *worker->me;
  if (!me.copies) me.copies = std::make_unique<Copies>();
  return *me.copies;
}

void copy_start(void* to, const void* from, bool present, const char* file, int line) {
  if ((uintptr_t)to & 15 || (present && (uintptr_t)from & 15))
    fail("%s:%d: cp.async at an address that is no multiple of 16", base(file), line);
  Copies& copies = mine();
  if (worker->launch->checked) {
    if (present) {
      check_access(from, 16, Access::Read, file, line);
      count_read(from, 16);
    }
    check_access(to, 16, Access::Write, file, line);
    check_flight(to, 16, true);
  }
  memset(to, 0xff, 16);
  copies.copies.push_back({to, from, present, file, line});
  copies.groups.back()++;
}

void copy_commit() { mine().groups.push_back(0); }

void copy_wait(int pending) {
  Copies& copies = mine();
  int done = (int)copies.groups.size() - 1 - pending;
  size_t landed = 0;
  for (int i = 0; i < done; i++) {
    for (int j = 0; j < copies.groups[i]; j++) {
      const Copy& c = copies.copies[landed++];
      if (worker->launch->checked) {
        check_flight(c.to, 16, false);
        if (c.present) check_access(c.from, 16, Access::Read, c.file, c.line);
        check_access(c.to, 16, Access::Write, c.file, c.line);
      }
      if (c.present)
        memcpy(c.to, c.from, 16);
      else
        memset(c.to, 0, 16);
    }
  }
  if (done <= 0) return;
  copies.copies.erase(copies.copies.begin(), copies.copies.begin() + (long)landed);
  copies.groups.erase(copies.groups.begin(), copies.groups.begin() + done);
}

void end_copies(Thread& thread) {
  if (!thread.copies->copies.empty()) {
    const Copy& c = thread.copies->copies[0];
    fail("%s:%d: the thread ended before it waited for this cp.async", base(c.file), c.line);
  }
  thread.copies->groups.assign(1, 0);
}

}  // namespace xtemu
