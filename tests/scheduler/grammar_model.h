#pragma once
// A GRAMMAR that follows the messages of the scheduler and complains when they contradict one another. What
// it allows next depends on every token that it was told, so that a missing or repeated one changes the text.
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages.h"
#include "ipc/wire.h"

namespace troupe::test {

inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ull ^ (b + 0x632be59bd9b4e019ull);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 27);
}

/// The state of a grammar after the tokens so far.
struct GrammarState {
  std::uint64_t hash = 0;

  explicit GrammarState(std::uint64_t grammar = 0) : hash(mix(0x67, grammar)) {}
  void take(TokenId token) { hash = mix(hash, static_cast<std::uint64_t>(token)); }

  /// True for about a third of the tokens, and for one at least.
  bool allows(TokenId token, std::int32_t vocab) const {
    return mix(hash, 0x1000u + static_cast<std::uint64_t>(token)) % 3 == 0 ||
           token == static_cast<TokenId>(hash % static_cast<std::uint64_t>(vocab));
  }
  /// The allowed token that a sampler takes which prefers `wanted`.
  TokenId nearest(TokenId wanted, std::int32_t vocab) const {
    while (!allows(wanted, vocab)) wanted = (wanted + 1) % vocab;
    return wanted;
  }
};

class GrammarModel {
 public:
  void receive(const GrammarStep& step, std::int32_t vocab) {
    if (step.epoch < epoch_) complain("an epoch that has passed");
    if (step.epoch > epoch_) {
      waiting_.clear();
      for (auto& [key, sequence] : sequences_) sequence.late = false;
    }
    epoch_ = step.epoch;
    for (const GrammarStart& start : step.starts) {
      if (start.grammar == 0 ||
          !sequences_.emplace(start.key, Sequence{GrammarState(start.grammar), start.gated_from}).second)
        complain("a sequence starts twice");
    }
    for (const GrammarTokens& some : step.sequences) {
      const auto found = sequences_.find(some.key);
      if (found == sequences_.end() || found->second.ended) {
        complain("tokens of a sequence that does not run");
        continue;
      }
      for (std::int32_t i = 0; i < some.count; ++i) {
        found->second.state.take(step.tokens.at(static_cast<std::size_t>(some.first + i)));
        ++found->second.tokens;
        if (found->second.late) complain("a token of a row that was late");
        found->second.made = false;
      }
      ++found->second.updates;
      const auto drafts = step.tokens.begin() + some.first + some.count;
      if (some.count > 0) found->second.drafts.assign(drafts, drafts + some.drafts);
    }
    for (const RequestKey& key : step.ends) {
      const auto found = sequences_.find(key);
      if (found == sequences_.end() || std::exchange(found->second.ended, true))
        complain("an end without a start");
    }
    for (const MaskAsk& row : step.rows) {
      const auto found = sequences_.find(row.key);
      if (found == sequences_.end() || found->second.ended) {
        complain("a row of a sequence that does not run");
      } else if (row.updates < found->second.updates) {
        complain("a row in the past");
      } else if (found->second.late && row.updates > found->second.updates) {
        allow_all(step.step, row.slot);  // planned before it was known that the sequence is late
      } else {
        if (found->second.late && !found->second.made)
          complain("a late row is asked for before its mask is made");
        found->second.late = false;
        waiting_.push_back({step.step, row});
      }
    }
    answer(vocab);
  }

  /// The engine has died: forgets every sequence; counts go on.
  void restart() {
    sequences_.clear();
    waiting_.clear();
    ready_.clear();
    late_keys_.clear();
    to_make_.clear();
  }

  /// Says of a mask that can be made whether it is late.
  std::function<bool()> takes_long = [] { return false; };

  /// Sequences whose masks were found late since the last call; to be told before the masks are taken.
  MasksLate take_late() { return {epoch_, std::exchange(late_keys_, {})}; }

  /// Makes a late mask; false when there is none.
  bool make(MasksMade& made) {
    while (!to_make_.empty()) {
      const RequestKey key = *to_make_.begin();
      to_make_.erase(to_make_.begin());
      Sequence& sequence = sequences_.at(key);
      if (!sequence.late || sequence.made || sequence.ended) continue;
      sequence.made = true;
      made.keys.push_back(key);
      return true;
    }
    return false;
  }

  /// Masks that are ready, as records; taken away.
  std::vector<std::vector<std::byte>> take_masks() { return std::exchange(ready_, {}); }

  /// Sequences that have started and not ended.
  std::size_t open() const {
    std::size_t count = 0;
    for (const auto& [key, sequence] : sequences_) count += sequence.ended ? 0 : 1;
    return count;
  }
  std::int64_t answered() const { return answered_; }
  std::int64_t answered_late() const { return late_; }
  std::int64_t in_vain() const { return in_vain_; }
  const std::string& complaint() const { return complaint_; }

 private:
  struct Sequence {
    GrammarState state;
    std::int32_t gated_from = 0;
    std::int32_t tokens = 0, updates = 0;
    std::vector<TokenId> drafts{};
    bool ended = false;
    bool late = false;  // until its row is asked for again
    bool made = false;  // the mask after its last token
  };
  struct Waiting {
    std::uint64_t step = 0;
    MaskAsk row;
  };

  void complain(const std::string& what) {
    if (complaint_.empty()) complaint_ = what;
  }

  void allow_all(std::uint64_t step, SlotRef slot) {
    wire::RecordWriter<wire::StepMasks> writer;
    writer.begin(epoch_);
    const wire::RowMask mask{slot, wire::MaskForm::all, {}};
    const auto rows = writer.array(std::span<const wire::RowMask>(&mask, 1));
    writer.record().step = step;
    writer.record().rows = rows;
    const std::span<const std::byte> bytes = writer.finish();
    ready_.emplace_back(bytes.begin(), bytes.end());
    ++in_vain_;
  }

  void answer(std::int32_t vocab) {
    std::vector<Waiting> still;
    for (const Waiting& one : waiting_) {
      Sequence& sequence = sequences_.at(one.row.key);
      if (sequence.late) {
        allow_all(one.step, one.row.slot);
        continue;
      }
      if (!sequence.ended && sequence.updates < one.row.updates) {
        still.push_back(one);
        continue;
      }
      if (!sequence.ended && !sequence.made && takes_long()) {
        sequence.late = true;
        late_keys_.push_back(one.row.key);
        to_make_.insert(one.row.key);
        std::erase_if(still, [&](const Waiting& other) {
          if (other.row.key == one.row.key) allow_all(other.step, other.row.slot);
          return other.row.key == one.row.key;
        });
        allow_all(one.step, one.row.slot);
        continue;
      }
      ++(sequence.ended ? late_ : answered_);
      if (sequence.ended) {
        send(one, {{}});
        continue;
      }
      if (sequence.updates > one.row.updates) complain("a mask comes too late");
      send(one, masks_of(sequence, one.row.places, vocab));
    }
    waiting_ = std::move(still);
  }

  using Words = std::vector<std::uint32_t>;  ///< of a mask; none: everything is allowed

  /// Behind the sequence's tokens and behind its draft tokens, up to the first that is not allowed.
  static std::vector<Words> masks_of(const Sequence& sequence, std::int32_t places, std::int32_t vocab) {
    std::vector<Words> masks;
    GrammarState state = sequence.state;
    for (std::int32_t i = 0; i < places; ++i) {
      const bool gated = sequence.tokens + i >= sequence.gated_from;
      Words& words = masks.emplace_back();
      if (gated) words.resize(static_cast<std::size_t>((vocab + 31) / 32));
      for (TokenId token = 0; gated && token < vocab; ++token) {
        if (state.allows(token, vocab)) words[static_cast<std::size_t>(token / 32)] |= 1u << token % 32;
      }
      if (i >= static_cast<std::int32_t>(sequence.drafts.size())) break;
      const TokenId draft = sequence.drafts[static_cast<std::size_t>(i)];
      if (gated && !state.allows(draft, vocab)) break;
      state.take(draft);
    }
    return masks;
  }

  /// In one record, or in one for each mask.
  void send(const Waiting& row, const std::vector<Words>& masks) {
    wire::RecordWriter<wire::StepMasks> writer;
    std::vector<wire::RowMask> rows;
    for (std::size_t i = 0; i < masks.size(); ++i) {
      if (rows.empty()) writer.begin(epoch_);
      const wire::MaskForm form = masks[i].empty() ? wire::MaskForm::all : wire::MaskForm::bits;
      rows.push_back(
          {row.row.slot, form, writer.array(masks[i]), static_cast<std::uint32_t>(masks.size() - i - 1)});
      if (row.step % 2 == 0 && i + 1 < masks.size()) continue;
      const auto span = writer.array(std::span<const wire::RowMask>(rows));
      writer.record().step = row.step;
      writer.record().rows = span;
      const std::span<const std::byte> bytes = writer.finish();
      ready_.emplace_back(bytes.begin(), bytes.end());
      rows.clear();
    }
  }

  std::uint32_t epoch_ = 0;
  std::map<RequestKey, Sequence> sequences_;
  std::vector<Waiting> waiting_;
  std::vector<std::vector<std::byte>> ready_;
  std::vector<RequestKey> late_keys_;
  std::set<RequestKey> to_make_;
  std::int64_t answered_ = 0, late_ = 0, in_vain_ = 0;
  std::string complaint_;
};

}  // namespace troupe::test
