#pragma once
// The links of a server. Those of one engine: those of its ranks as one, which change their epoch together,
// with the memory in which the ranks meet, and the one between the front and it. Those of all engines, and
// those between the front and the text processes, and its sockets to the media processes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "actors/supervisor/media_socket.h"
#include "ipc/fd.h"
#include "ipc/link.h"

namespace troupe::supervisor {

/// Memory in which several ranks meet. It is made, and its epoch is set, by code that the supervisor does not
/// know.
struct RanksMemory {
  ipc::Fd fd;  ///< invalid: there is none
  std::function<void(std::uint32_t)>
      set_epoch;  ///< ends every meeting of older epochs; empty without a descriptor
};

class RankLinks {
 public:
  RankLinks() = default;
  /// `tell_ranks` is RanksMemory::set_epoch; `front` is the link between front and engine.
  RankLinks(std::vector<ipc::LinkMonitor> links, std::function<void(std::uint32_t)> tell_ranks,
            ipc::LinkMonitor front)
      : links_(std::move(links)), tell_ranks_(std::move(tell_ranks)) {
    front_.push_back(std::move(front));
  }

  std::size_t size() const { return links_.size(); }
  const ipc::LinkMonitor& operator[](std::size_t rank) const { return links_[rank]; }
  std::uint32_t epoch() const { return links_.front().epoch(); }

  const ipc::LinkMonitor& front() const { return front_.front(); }

  /// One more link between this server's front, a relay, and the engine. Before any decode front.
  void add_front(ipc::LinkMonitor link) {
    front_.push_back(std::move(link));
    ++own_fronts_;
  }

  /// The link to the front of a decode instance, of which this server has the engine's end. Its front's end
  /// is another supervisor's to tell of while that lives.
  void set_decode_front(ipc::LinkMonitor link) {
    drop_decode_front();
    front_.push_back(std::move(link));
  }
  void drop_decode_front() { front_.erase(front_.begin() + own_fronts_, front_.end()); }
  /// That front has ended, and so has its supervisor: the engine ends its sequences.
  void decode_front_reaped() {
    std::for_each(front_.begin() + own_fronts_, front_.end(),
                  [](ipc::LinkMonitor& front) { front.reaped(ipc::Side::upper); });
    drop_decode_front();
  }

  /// The front has ended and was waited for: the engine ends its sequences.
  void front_reaped() {
    std::for_each(front_.begin(), front_.begin() + own_fronts_,
                  [](ipc::LinkMonitor& front) { front.reaped(ipc::Side::upper); });
  }
  /// The engine has ended and was waited for. Returns the new epoch of the ranks' links.
  std::uint32_t engine_reaped() {
    for (ipc::LinkMonitor& front : front_) front.reaped(ipc::Side::lower);
    return raise([this](std::size_t) { return true; }, ipc::Side::upper);
  }
  /// A worker has.
  std::uint32_t worker_reaped(std::size_t rank) {
    return raise([rank](std::size_t one) { return one == rank; }, ipc::Side::lower);
  }

 private:
  // The ranks' memory first: a rank that sees the new epoch on its link must not meet the others in the old
  // one.
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
  std::vector<ipc::LinkMonitor> front_;  // own ones, then a decode instance's; none before there are links
  std::ptrdiff_t own_fronts_ = 1;
  std::function<void(std::uint32_t)> tell_ranks_;
};

class ServerLinks {
 public:
  void add_engine(RankLinks links) { engines_.push_back(std::move(links)); }
  void add_text(ipc::LinkMonitor link) { texts_.push_back(std::move(link)); }
  /// The link between the front of this decode instance and the engine of a prefill instance.
  void add_peer(ipc::LinkMonitor link) { peers_.push_back(std::move(link)); }
  /// The link between the front and the relay that stands for an engine on another machine.
  void add_remote(ipc::LinkMonitor link) { remotes_.push_back(std::move(link)); }
  void add_media(MediaSocket socket) { media_.push_back(std::move(socket)); }

  std::size_t engines() const { return engines_.size(); }
  RankLinks& engine(std::size_t index) { return engines_[index]; }
  const RankLinks& engine(std::size_t index) const { return engines_[index]; }
  /// A link of the front's.
  const ipc::LinkMonitor& of_front() const {
    return engines_.empty() ? remotes_.front() : engines_.front().front();
  }
  const ipc::LinkMonitor& text(std::size_t index) const { return texts_[index]; }
  ipc::LinkMonitor& peer(std::size_t index) { return peers_[index]; }
  const std::vector<MediaSocket>& media() const { return media_; }

  /// The front has ended and was waited for. Engines end its sequences, and text processes drop its texts.
  void front_reaped() {
    for (RankLinks& engine : engines_) engine.front_reaped();
    for (ipc::LinkMonitor& peer : peers_) peer.reaped(ipc::Side::upper);
    for (ipc::LinkMonitor& remote : remotes_) remote.reaped(ipc::Side::upper);
    for (ipc::LinkMonitor& text : texts_) text.reaped(ipc::Side::upper);
    for (const MediaSocket& socket : media_) socket.front_ended();
  }
  /// A text process has: the front asks the next one.
  void text_reaped(std::size_t index) { texts_[index].reaped(ipc::Side::lower); }
  /// A relay has: the engine behind it is lost.
  void relay_reaped(std::size_t index) { remotes_[index].reaped(ipc::Side::lower); }

 private:
  std::vector<RankLinks> engines_;         // by index
  std::vector<ipc::LinkMonitor> peers_;    // by port of a prefill instance
  std::vector<ipc::LinkMonitor> remotes_;  // by index of --engines
  std::vector<ipc::LinkMonitor> texts_;    // by index
  std::vector<MediaSocket> media_;         // likewise
};

}  // namespace troupe::supervisor
