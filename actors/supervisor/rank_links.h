#pragma once
// The links of all ranks as one: they change their epoch together, with the memory in which the ranks meet.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "ipc/fd.h"
#include "ipc/link.h"

namespace troupe::supervisor {

/// Memory in which several ranks meet. It is made, and its epoch is set, by code that the supervisor does not know.
struct RanksMemory {
  ipc::Fd fd;                                      ///< invalid: there is none
  std::function<void(std::uint32_t)> set_epoch;    ///< ends every meeting of older epochs; empty without a descriptor
};

class RankLinks {
 public:
  RankLinks() = default;
  /// `tell_ranks` is RanksMemory::set_epoch.
  RankLinks(std::vector<ipc::LinkMonitor> links, std::function<void(std::uint32_t)> tell_ranks)
      : links_(std::move(links)), tell_ranks_(std::move(tell_ranks)) {}

  std::size_t size() const { return links_.size(); }
  const ipc::LinkMonitor& operator[](std::size_t rank) const { return links_[rank]; }
  std::uint32_t epoch() const { return links_.front().epoch(); }

  /// The engine has ended and was waited for. Returns the new epoch of all links.
  std::uint32_t engine_reaped() {
    return raise([this](std::size_t) { return true; }, ipc::Side::engine);
  }
  /// A worker has.
  std::uint32_t worker_reaped(std::size_t rank) {
    return raise([rank](std::size_t one) { return one == rank; }, ipc::Side::worker);
  }

 private:
  // The ranks' memory first: a rank that sees the new epoch on its link must not meet the others in the old one.
  template <class Lost>
  std::uint32_t raise(Lost&& lost, ipc::Side side) {
    const std::uint32_t next = epoch() + 1;
    if (tell_ranks_) tell_ranks_(next);
    for (std::size_t rank = 0; rank < links_.size(); ++rank) {
      if (lost(rank)) {
        links_[rank].reaped(side);
      } else {
        links_[rank].set_epoch(next);
      }
    }
    return next;
  }

  std::vector<ipc::LinkMonitor> links_;
  std::function<void(std::uint32_t)> tell_ranks_;
};

}  // namespace troupe::supervisor
