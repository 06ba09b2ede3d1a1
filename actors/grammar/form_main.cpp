// The process that checks and compiles forms: answers one job after another until its socket closes.
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "actors/grammar/form_worker.h"
#include "base/child_words.h"
#include "base/process_limits.h"
#include "base/usable_cores.h"

namespace troupe {
namespace {

constexpr std::uint64_t kMemoryBytes = std::uint64_t{2} << 30;  // beside what the process has when it starts
constexpr int kNice =
    10;  // a tenth of a core that others want; 19 would be a hundredth, and a form take seconds

/// Memory that a form leaves free is kept for the next one, which would take a fifth longer to get it again.
/// When none comes, it goes back to the system.
constexpr int kKeptBytes = 16 << 20;
constexpr int kIdleMs = 1000;

void keep_memory() {
  ::mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  ::mallopt(M_MMAP_THRESHOLD, kKeptBytes);
}

bool read_job(int fd, std::string& bytes) {
  pollfd waited{fd, POLLIN, 0};
  if (::poll(&waited, 1, kIdleMs) == 0) ::malloc_trim(0);
  return frames::read(fd, bytes) == frames::Outcome::done;
}

/// Takes what is left over of the processor, and not all of the memory.
void limit_self() {
  if (nice(kNice) < 0) std::fputs("troupe text --forms: the priority stays as it is\n", stderr);
  limit_process(kMemoryBytes);
}

}  // namespace

int form_main(const std::vector<std::string>& words) {
  const int fd = descriptor_of(words, "--fd=");
  if (fd < 0) {
    std::fputs("troupe text --forms is a child process of `troupe engine`: not to be started by hand\n",
               stderr);
    return 2;
  }
  limit_self();
  std::string bytes, image;
  if (frames::read(fd, bytes) != frames::Outcome::done || frames::read(fd, image) != frames::Outcome::done)
    return 0;
  auto worker = FormWorker::make(bytes, std::move(image), static_cast<int>(half_the_cores()));
  if (!worker) return 1;
  keep_memory();
  if (!frames::write(fd, frames::kReady)) return 0;
  while (read_job(fd, bytes)) {
    const auto answer = worker->answer(bytes);
    if (!answer) return 1;
    if (!frames::write(fd, *answer)) return 0;
  }
  return 0;
}

}  // namespace troupe
