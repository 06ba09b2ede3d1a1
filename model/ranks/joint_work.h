#pragma once
// How far each rank is with items that they encode together, by notes in the ranks' memory.
//
// Ranks get the same items in the same order, and each takes them up by its own clock, between its steps. So
// they agree on an item before any of them begins it, and a rank never waits for another: it asks whether the
// others have come as far.
#include <cstdint>

#include "model/ranks/rank_memory.h"

namespace troupe::model {

class JointWork {
 public:
  /// What becomes of an item. All ranks find the same, but that who has the result may find `cached`.
  enum class Way : std::uint8_t {
    open,      ///< a rank has not come to it
    together,  ///< all take part, also those that have the result
    alone,     ///< a rank does not take part
    cached,    ///< this rank has the result, and no other needs it
  };

  /// `meeting` outlives it.
  explicit JointWork(RankMeeting& meeting) : meeting_(&meeting) {}

  /// This rank comes to the item of that number, the largest so far in the epoch, after it has done with
  /// those before. Numbers count items from 0 in all ranks alike. `cached`: it has the result already.
  void begin(std::uint32_t number, bool cached);
  /// This rank comes to the item and will not take part: its way is `alone`.
  void refuse(std::uint32_t number);
  Way way() const;

  /// This rank has sent so many parts of the item.
  void sent(int parts);
  /// True if all others have sent so many parts, or have done with the item: that ends it on this rank, too.
  bool have_sent(int parts) const;

 private:
  void leave(std::uint64_t flags, int parts);

  RankMeeting* meeting_;
  std::uint32_t number_ = 0;
  bool cached_ = false;
  bool refused_ = false;
};

}  // namespace troupe::model
