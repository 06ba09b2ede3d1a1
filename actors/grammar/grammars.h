#pragma once
// Which sequences are held to which form, how far each is, and which rows wait for a mask. Pure: no actor, no
// clock.
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "actors/messages.h"
#include "text/grammar/constraint.h"

namespace troupe {

/// A gated row whose mask can be made: all tokens before it are known.
struct ReadyRow {
  std::uint64_t step = 0;
  SlotRef slot;
  grammar::Constraint* constraint = nullptr;  ///< null: everything is allowed. Valid until the next take()
  std::uint64_t grammar = 0;                  ///< of the constraint
};

class Grammars {
 public:
  /// The grammar's number, for GrammarStart.
  std::uint64_t add(std::shared_ptr<const grammar::ConstraintSpec> spec);
  /// Its sequences keep what they have; later ones cannot start with it.
  void release(std::uint64_t grammar);

  /// Applies the news and returns the rows that are ready, each constraint at most once. A row is returned
  /// once; one of an older epoch never, and one of a sequence that is not known with no constraint.
  const std::vector<ReadyRow>& take(const GrammarStep& news);

  std::size_t grammars() const { return specs_.size(); }
  std::size_t sequences() const { return sequences_.size(); }
  std::size_t waiting() const;  ///< rows

 private:
  struct Row {
    std::uint64_t step = 0;
    SlotRef slot;
    std::int32_t output_tokens = 0;
  };
  struct Sequence {
    grammar::Constraint constraint;
    std::uint64_t grammar = 0;
    std::vector<Row> rows;       ///< that wait for tokens, in the order they were asked in
    std::uint64_t ready_at = 0;  ///< number of the take() that returned its constraint
  };

  void start(const GrammarStart& start);
  void end(const RequestKey& key);
  void ask(const MaskAsk& ask, std::uint64_t step);
  void settle(Sequence& sequence);

  std::unordered_map<std::uint64_t, std::shared_ptr<const grammar::ConstraintSpec>> specs_;
  std::unordered_map<RequestKey, Sequence> sequences_;
  std::vector<ReadyRow> ready_;
  std::uint64_t next_ = 1;
  std::uint64_t takes_ = 0;
  std::uint32_t epoch_ = 0;
};

}  // namespace troupe
