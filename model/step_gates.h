#pragma once
// Which rows of the steps in flight wait for a grammar's mask before they sample, and the masks that have
// come.
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ipc/wire.h"

namespace troupe::model {

/// One thread. Masks are kept as bits, whatever form they came in.
class StepGates {
 public:
  /// `memory`: memory_words() words, which outlive it; a step's masks lie side by side there, those of a row
  /// in a place for each that it may have. Empty: it
  /// allocates its own with the first gated row.
  explicit StepGates(const wire::Capacity& capacity, std::span<std::uint32_t> memory = {});

  /// Masks of one step: one for each slot, or for each token that the rows may yield.
  static std::size_t most_masks(const wire::Capacity& capacity);
  /// Words for the masks of all steps in flight and of one more.
  static std::size_t memory_words(const wire::Capacity& capacity);

  std::size_t mask_words() const { return words_; }

  /// Takes note of an admitted plan's gated rows. Its steps rise by one; at most max_steps_in_flight are
  /// open.
  void open(const wire::RecordView& record, const wire::StepPlan& plan);

  /// Takes masks of an open step. invalid_argument, and nothing is taken, when one
  /// - is of a step that is not in flight, or of a row that is not gated, or that has its masks;
  /// - says that others follow than the one before it said, or more than the row may have;
  /// - forces more tokens than can be drafted and one, or ids outside the vocabulary, or is not the row's
  /// last;
  /// - has a wrong number of words, or ids that do not ascend or are outside the vocabulary;
  /// - allows no token. Bits past the vocabulary are ignored.
  Status take(const wire::RecordView& record, const wire::StepMasks& masks);

  /// True when no row of the open step waits any more.
  bool ready(std::uint64_t step) const { return at(step).missing == 0; }

  /// The number of gated rows of an open step. They are numbered in plan order.
  std::size_t rows(std::uint64_t step) const { return at(step).rows.size(); }
  /// The masks of a row that has them; at least 1.
  std::int32_t count(std::uint64_t step, std::size_t row) const;
  /// One of them: mask_words() words. Null: all tokens are allowed.
  const std::uint32_t* mask(std::uint64_t step, std::size_t row, std::int32_t index = 0) const;
  /// Where it is: masks() has it place * mask_words() words from its begin. -1: all tokens are allowed.
  std::int32_t place(std::uint64_t step, std::size_t row, std::int32_t index = 0) const;
  /// RowMask::forced of the last of them. Valid until close().
  std::span<const TokenId> forced(std::uint64_t step, std::size_t row) const;
  /// All masks of the step, at their places. Places without a mask, and of masks that allow all, are not set.
  std::span<const std::uint32_t> masks(std::uint64_t step) const;

  /// The step's result is out: it is not in flight any more.
  void close(std::uint64_t step) { at(step).is_open = false; }

  /// Forgets all steps.
  void reset();

 private:
  struct Progress {
    std::int32_t count = 0;  // masks that have come
    std::int32_t more = -1;  // that are still to come; -1: the first will say

    bool complete() const { return more == 0; }
  };
  struct Row {
    SlotRef slot{};
    std::size_t first = 0;  // place of its first mask
    std::int32_t most = 1;
    Progress has{};
    Progress checked{};                        // with the record that is being checked
    std::uint32_t all = 0;                     // bit i: mask i allows everything
    std::size_t first_forced = 0, forced = 0;  // its part of Gate::forced
  };
  struct Gate {
    std::uint64_t step = 0;
    bool is_open = false;
    std::size_t missing = 0;
    std::vector<Row> rows;
    std::size_t places = 0;  // of the rows' masks
    std::vector<TokenId> forced;
  };

  const Gate& at(std::uint64_t step) const;
  Gate& at(std::uint64_t step) { return const_cast<Gate&>(std::as_const(*this).at(step)); }
  Row* find(Gate& gate, SlotRef slot, std::size_t& hint) const;
  Status check(const wire::RecordView& record, const wire::RowMask& mask, Row* row) const;
  Status check_forced(std::span<const TokenId> ids, bool is_last) const;
  Status check_words(wire::MaskForm form, std::span<const std::uint32_t> words) const;
  void expand(wire::MaskForm form, std::span<const std::uint32_t> words, std::span<std::uint32_t> bits) const;
  std::span<std::uint32_t> bits_of(const Gate& gate, std::size_t place) const;
  static bool note(const Row& row, const wire::RowMask& mask, Progress& progress);

  const std::uint32_t vocab_;
  const std::size_t words_;   // of a mask
  const std::size_t places_;  // for masks of a step
  const std::size_t most_forced_;
  std::vector<Gate> gates_;  // of step s at s % gates_.size()
  std::span<std::uint32_t> memory_;
  std::vector<std::uint32_t> own_;
};

}  // namespace troupe::model
