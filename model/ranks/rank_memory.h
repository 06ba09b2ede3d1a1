#pragma once
// Shared memory in which ranks on CPUs meet: a slot for what each has to tell, and words that say who has
// come.
//
// The supervisor creates it and hands the descriptor to every rank. All ranks run the same steps, so they
// meet in the same order, and a meeting needs no name: the ranks count. Each has two slots and uses them in
// turn. It may write the one that it used before the last meeting, because all have been at the last and so
// have read it.
//
// A death ends an epoch: the supervisor sets the next one, and every meeting of the old one is over at once.
// Any process may be killed at any instruction; what it leaves behind is older than the epoch and is ignored.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "base/status.h"
#include "model/ranks/shard.h"

namespace troupe::model {

/// A sealed memory file for so many ranks, in epoch 1. The caller owns the descriptor.
Result<int> create_rank_memory(int ranks);

/// The supervisor's view.
class RankMemory {
 public:
  struct Header;

  /// Maps the memory after checking its seals, size and shape. Does not keep the descriptor.
  static Result<RankMemory> attach(int fd);
  RankMemory(RankMemory&& other) noexcept;
  RankMemory& operator=(RankMemory&&) = delete;
  ~RankMemory();

  int ranks() const;
  std::uint32_t epoch() const;
  /// Ends every meeting of an older epoch; who waits in one wakes up. Call it when a rank's process has
  /// ended, before the epochs of the ranks' links are raised.
  void set_epoch(std::uint32_t epoch);

 protected:
  RankMemory(Header* header, std::size_t bytes) : header_(header), bytes_(bytes) {}
  std::byte* slot(int rank, std::uint32_t meeting) const;

  Header* header_ = nullptr;
  std::size_t bytes_ = 0;
};

/// One rank's view, for one thread.
class RankMeeting : public RankMemory {
 public:
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 20;
  /// How long a rank waits for the others: longer than a step may take them, and shorter than for ever.
  static constexpr Duration kPatience = std::chrono::seconds(60);

  /// Begins in the epoch that the memory is in now.
  static Result<RankMeeting> attach(int fd, const Shard& shard);

  const Shard& shard() const { return shard_; }

  /// Begins with the first meeting of `epoch`. If the memory is in another one by now, no meeting succeeds.
  /// `first`: number of the first meeting. Numbers are 32 bits and may wrap in an epoch of some weeks.
  void begin_epoch(std::uint32_t epoch, std::uint32_t first = 0);
  /// True once a meeting has failed: the epoch has ended, or a rank has not come in time. No meeting succeeds
  /// until the next begin_epoch().
  bool abandoned() const { return abandoned_; }
  /// True once the memory is in another epoch than the meetings.
  bool ended() const { return epoch() != epoch_; }
  /// Not ok if a rank has not come in time; says which.
  const Status& late() const { return late_; }

  /// Memory for the message, of at most kSlotBytes, that this rank gives at the next meeting.
  std::byte* mine() const { return slot(shard_.rank, next_); }
  /// Comes to the meeting and waits for all others. `waiting` is called now and then. False: abandoned.
  template <class Waiting>
  bool meet(Waiting&& waiting) {
    arrive();
    return wait([](void* w) { (*static_cast<std::remove_reference_t<Waiting>*>(w))(); },
                const_cast<void*>(static_cast<const void*>(&waiting)));
  }
  /// meet() in two parts, for who has something else to do meanwhile: all_here() is true once all have come
  /// to the meeting at which this rank has arrived, and false for good when the epoch ends.
  void arrive();
  bool all_here() const { return !ended() && all_have_come(); }
  /// After meet(), or all_here(): the message of a rank, until this rank comes to the next meeting but one.
  const std::byte* message_of(int rank) const { return slot(rank, next_ - 1); }

  /// Leaves a number of up to 48 bits that the other ranks of the epoch can read at any time, apart from
  /// meetings. What this rank wrote to memory before is there for who reads it.
  void leave_note(std::uint64_t note);
  /// The last one that the rank has left in this epoch; 0: none.
  std::uint64_t note_of(int rank) const;

  void set_patience(Duration patience) { patience_ = patience; }

 private:
  RankMeeting(RankMemory memory, const Shard& shard) : RankMemory(std::move(memory)), shard_(shard) {}
  bool wait(void (*waiting)(void*), void* context);
  bool has_come(int rank) const;
  bool all_have_come() const;

  Shard shard_;
  std::uint32_t epoch_ = 0;
  std::uint32_t next_ = 0;  ///< number of the next meeting in the epoch
  bool abandoned_ = false;
  Status late_;
  Duration patience_ = kPatience;
};

}  // namespace troupe::model
