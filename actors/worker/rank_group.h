#pragma once
// Several ranks that run one model, as one worker. Every rank is told the same; this counts their answers.
//
// The group is up in an epoch when all its ranks are, and down from the first that is lost. A step, and a
// cache command, has ended when every rank has answered it. So nothing is done with a step's result while a
// rank may still read or write the blocks of that step.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages.h"
#include "ipc/wire.h"

namespace troupe {

class RankGroup {
 public:
  /// `ranks`: from 2 to 64.
  explicit RankGroup(int ranks);

  /// What an answer of one rank has led to.
  struct Outcome {
    std::optional<Bytes> record;  ///< what all ranks together answer, for who asked
    std::string fault;  ///< not empty: the ranks contradict each other, or one answers what nobody asked
  };
  /// What an event of one rank's link has led to.
  struct Change {
    std::optional<std::string> down;  ///< the group is lost, and why; before `up`
    std::optional<LinkUp> up;         ///< the group stands: the least of what the ranks hold
    std::string fault;                ///< as in Outcome
  };

  /// A rank is ready in an epoch.
  Change up(std::int32_t rank, LinkUp link);
  /// A rank is lost.
  Change down(std::int32_t rank, const std::string& why);

  /// A StepResult of rank 0 or a StepEnd of another. The record is rank 0's. One of an epoch that has passed
  /// is ignored.
  Outcome step(std::int32_t rank, Bytes record);
  /// A MediaDone. The record failed, or was dropped, if one was, and cached if all were, with the times from
  /// the first beginning to the last end.
  Outcome media(std::int32_t rank, Bytes record);
  /// A CacheDone or an Inventory. The record is a CacheDone that failed if one did, with the times from the
  /// first beginning to the last end; an Inventory is rank 0's.
  Outcome cache(std::int32_t rank, Bytes record);

  bool is_up() const { return up_; }
  std::size_t open_steps() const { return steps_.size(); }
  std::size_t open_commands() const { return commands_.size(); }
  std::size_t open_encodings() const { return encodings_.size(); }

 private:
  struct Answers {
    std::uint64_t from = 0;  // bit r: rank r has answered
    bool add(std::int32_t rank) {
      const std::uint64_t bit = std::uint64_t{1} << rank;
      if ((from & bit) != 0) return false;
      from |= bit;
      return true;
    }
  };
  struct Step {
    std::uint64_t number = 0;
    Answers answers;
    std::int32_t first_rank = 0;  // which answered first: the others are compared with it
    std::uint64_t digest = 0;
    Bytes result;
  };
  struct Command {
    Answers answers;
    wire::CacheDone done;
  };

  struct Encoding {
    Answers answers;
    wire::MediaDone done;
  };

  bool known(std::int32_t rank) const { return rank >= 0 && rank < static_cast<std::int32_t>(links_.size()); }
  bool by_all(const Answers& answers) const { return answers.from == all_; }
  LinkUp least() const;
  Outcome take_step(std::int32_t rank, std::uint64_t number, std::uint64_t digest, Bytes result);
  Outcome take_done(std::int32_t rank, const wire::CacheDone& done);
  void forget();

  std::vector<std::optional<LinkUp>> links_;  // by rank; empty: the rank is not ready
  std::uint64_t all_ = 0;
  bool up_ = false;
  std::uint32_t epoch_ = 0;  // of the group while it is up
  std::uint64_t ended_ = 0;  // the last step that all have answered
  std::deque<Step> steps_;   // that some have answered, in order
  std::map<std::uint64_t, Command> commands_;
  std::map<std::pair<SlotRef, std::int32_t>, Encoding> encodings_;
  wire::RecordWriter<wire::CacheDone> writer_;
  wire::RecordWriter<wire::MediaDone> media_writer_;
};

}  // namespace troupe
