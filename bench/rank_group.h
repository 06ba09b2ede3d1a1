#pragma once
// A bench program as several ranks: processes that run the same code from the fork on, with a place each.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "model/ranks/rank_memory.h"

namespace troupe::bench {

class RankGroup {
 public:
  /// Forks the ranks behind 0, before this process has a thread or has asked for a GPU. Rank 0 goes on in the
  /// calling process. What the others print on standard output goes nowhere; if one of them fails, rank 0
  /// ends with status 1, and they end with rank 0.
  static RankGroup start(int ranks, bool expert_parallel = false) {
    if (ranks < 1 || ranks > model::kMostRanks) die("the number of ranks has to be from 1 to 32");
    const int shared = memory_for(ranks), own = memory_for(ranks);
    const pid_t parent = ::getpid();
    struct sigaction ended {};
    ended.sa_handler = end_with_a_rank;
    ended.sa_flags = SA_NOCLDSTOP | SA_RESTART;
    TROUPE_CHECK(::sigaction(SIGCHLD, &ended, nullptr) == 0);
    for (int rank = 1; rank < ranks; ++rank) {
      const pid_t child = ::fork();
      if (child < 0) die("a rank could not be forked");
      if (child > 0) continue;
      TROUPE_CHECK(::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
      if (::getppid() != parent) std::_Exit(1);
      const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
      TROUPE_CHECK(nowhere >= 0 && ::dup2(nowhere, STDOUT_FILENO) >= 0);
      return RankGroup({{rank, ranks, expert_parallel}, shared}, own);
    }
    return RankGroup({{0, ranks, expert_parallel}, shared}, own);
  }

  /// For the subject: an executor or a collective.
  const model::RankPlace& place() const { return place_; }
  int ranks() const { return place_.shard.ranks; }
  bool first() const { return place_.shard.rank == 0; }

  /// Waits until all ranks have come here.
  void meet() {
    if (!meeting_.meet([] {})) die(meeting_.late().message.c_str());
  }

  /// What all ranks say here, by rank.
  template <class T>
  std::vector<T> say(const T& mine) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= model::RankMeeting::kSlotBytes);
    std::memcpy(meeting_.mine(), &mine, sizeof mine);
    meet();
    std::vector<T> said(static_cast<std::size_t>(ranks()));
    for (int rank = 0; rank < ranks(); ++rank)
      std::memcpy(&said[static_cast<std::size_t>(rank)], meeting_.message_of(rank), sizeof(T));
    return said;
  }

  /// Begins the subject's next epoch in all ranks, and returns its number.
  std::uint32_t next_epoch() {
    meet();
    if (first()) subject_.set_epoch(epoch_ + 1);
    meet();
    return ++epoch_;
  }

 private:
  RankGroup(const model::RankPlace& place, int own)
      : place_(place),
        subject_(value_of(model::RankMemory::attach(place.memory_fd))),
        meeting_(value_of(model::RankMeeting::attach(own, place.shard))) {}

  [[noreturn]] static void die(const char* why) {
    std::fprintf(stderr, "%s\n", why);
    std::_Exit(1);
  }
  template <class T>
  static T value_of(Result<T> result) {
    if (!result.ok()) die(result.status().message.c_str());
    return std::move(*result);
  }
  static int memory_for(int ranks) { return value_of(model::create_rank_memory(ranks)); }

  static void end_with_a_rank(int) {
    int status = 0;
    while (::waitpid(-1, &status, WNOHANG) > 0) {
      if (status != 0) std::_Exit(1);
    }
  }

  model::RankPlace place_;
  model::RankMemory subject_;
  model::RankMeeting meeting_;
  std::uint32_t epoch_ = 1;
};

}  // namespace troupe::bench
