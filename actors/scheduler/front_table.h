#pragma once
// The processes that take tokens: which of them are behind, and which SESSION HOSTs they have.
#include <cstdint>
#include <vector>

#include "actors/scheduler/sequence_table.h"
#include "actors/scheduler/step_output.h"

namespace troupe {

/// A sequence belongs to the front that submitted it. While a front is behind, its sequences are held: they
/// keep slots and blocks, and no plan names them. A held one that is isolated does not keep back the
/// sequences of other fronts.
class FrontTable {
 public:
  /// Says for each sequence of the front whether it is held from now on.
  void hold(std::uint32_t front, bool on, ScheduledSequences& table);
  bool is_held(std::uint32_t front) const;
  /// The front has died: it is not held any more, and its destinations are used for others. Requires that
  /// none of its sequences reports again.
  void drop(std::uint32_t front);

  /// The index of StepOutput::hosts for this SESSION HOST.
  std::uint32_t destination(std::uint32_t front, std::uint32_t host);

  /// Adds an entry for the sequence to what its SESSION HOST is sent: tokens and scores that are appended to
  /// the same StepTokens before the next entry belong to it.
  SequenceTokens& report(ScheduledSequence& sequence, StepOutput& out) const;

 private:
  struct Destination {
    std::uint32_t front = 0;
    std::uint32_t host = 0;
    bool used = false;  ///< false: its front was dropped
  };
  std::vector<std::uint32_t> held_;
  std::vector<Destination> destinations_;  ///< by ScheduledSequence::destination
};

}  // namespace troupe
