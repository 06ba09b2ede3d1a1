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

/// Where one sequence is in its form. Used by one thread at a time: by MaskFiller's from Grammars::take()
/// until the row is answered, or, when the mask is late, until Grammars::made(); else by GRAMMAR.
struct Follower {
  grammar::Constraint constraint;
  RequestKey key;
  std::vector<TokenId> tokens{};  ///< to accept before the mask is made
  grammar::TokenMask mask{};      ///< the one that was made last
  std::vector<TokenId> drafts{};  ///< how the answer may go on
  std::size_t most_forced = 0;    ///< tokens of ahead.forced
  grammar::Ahead ahead{};         ///< behind the drafts
  std::int64_t mask_ns = 0;       ///< processor time that the mask took, with its tokens, and
  std::int64_t cost_ns = 0;       ///< all masks

  // Guarded by the MaskFiller's mutex.
  enum class State : std::uint8_t { idle, waiting, running };
  State state = State::idle;
  bool late = false;  ///< the row was answered without it
};

/// A gated row that can be answered: all tokens before it are known, and its draft tokens.
struct ReadyRow {
  enum class Mask : std::uint8_t {
    all,   ///< everything is allowed
    make,  ///< the follower's, which has to be made
    made,  ///< the follower's
    late,  ///< not made in time: everything is allowed, and SCHEDULER is told
  };
  std::uint64_t step = 0;
  SlotRef slot;
  Mask mask = Mask::all;
  std::shared_ptr<Follower> follower;  ///< of `make` and `made`
  RequestKey key{};
  std::size_t places = 1;  ///< most masks that it may have
  std::size_t free = 0;    ///< of them, the first ones that allow everything whatever the follower's say
};

/// What following their forms may cost the sequences of one request.
class FormAccount {
 public:
  /// Processor time of one mask. False from when it is too much.
  bool charge(std::int64_t cost_ns);
  void add_sequence() { ++sequences_; }

 private:
  std::int64_t sequences_ = 0;
  std::int64_t debt_ns_ = 0;
};

class Grammars {
 public:
  /// The grammar's number, for GrammarStart.
  std::uint64_t add(std::shared_ptr<const grammar::ConstraintSpec> spec);
  /// Its sequences keep what they have; later ones cannot start with it.
  void release(std::uint64_t grammar);

  /// Applies the update and returns the rows that are ready. Of each sequence one has a mask at most. A row
  /// is returned once; one of an older epoch never, and one of a sequence that is not known, or that is late
  /// and has not been asked for again, with a mask that allows everything. For each `make` follows a done()
  /// or a late().
  std::vector<ReadyRow>& take(const GrammarStep& update);

  /// The mask of a `make` was made in time; without effect for a row whose mask was there already. True for
  /// the former.
  bool done(const RequestKey& key);
  /// It was not: appends the sequence's other rows, which wait for tokens that will not come.
  void late(const RequestKey& key, std::vector<ReadyRow>& rows);
  /// The late mask has been made. False when the sequence has ended and needs no mask.
  bool made(const RequestKey& key);

  /// Charges the sequence's request for a mask. False from when that is too much.
  bool charge(const RequestKey& key, std::int64_t cost_ns);
  /// The sequence's grammar; 0 when it has ended.
  std::uint64_t grammar_of(const RequestKey& key) const;

  std::uint32_t epoch() const { return epoch_; }
  std::size_t grammars() const { return specs_.size(); }
  std::size_t sequences() const { return sequences_.size(); }
  std::size_t waiting() const;  ///< rows

 private:
  struct Row {
    std::uint64_t step = 0;
    SlotRef slot;
    std::int32_t updates = 0;
    std::int32_t places = 1;
    std::int32_t forced = 0;
  };
  struct Grammar {
    std::shared_ptr<const grammar::ConstraintSpec> spec;
    std::shared_ptr<FormAccount> account;
  };
  struct Sequence {
    std::shared_ptr<Follower> follower;
    std::uint64_t grammar = 0;
    std::shared_ptr<FormAccount> account;
    std::int32_t gated_from = 0;
    std::vector<Row> rows{};            ///< that wait for tokens, in the order they were asked in
    std::vector<TokenId> new_tokens{};  ///< tokens that the follower has not been given
    std::vector<TokenId> drafts{};      ///< that came with the last ones
    std::int32_t tokens = 0;            ///< all of them
    std::int32_t updates = 0;           ///< in which they came
    std::int32_t made_for = -1;         ///< tokens before the mask that lies ready; -1: none does
    bool busy = false;                  ///< the follower is given away
    bool late = false;                  ///< and SCHEDULER was told; until the row is asked for again
    std::uint64_t ready_at = 0;         ///< number of the take() that returned its mask
  };

  void start(const GrammarStart& start);
  void end(const RequestKey& key);
  void ask(const MaskAsk& ask, std::uint64_t step);
  void settle(Sequence& sequence, std::vector<ReadyRow>& rows);

  std::unordered_map<std::uint64_t, Grammar> specs_;
  std::unordered_map<RequestKey, Sequence> sequences_;
  std::vector<ReadyRow> ready_;
  std::uint64_t next_ = 1;
  std::uint64_t takes_ = 0;
  std::uint32_t epoch_ = 0;
};

}  // namespace troupe
