#pragma once
// Writes StepPlans and CacheCommands as an engine would, and reads StepResults.
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "ipc/wire.h"

namespace troupe::model::test {

/// One plan: call the adders, then plan(). Steps count up from 1.
class Plans {
 public:
  Plans& finish(SlotRef slot) {
    finished_.push_back(slot);
    return *this;
  }
  Plans& start(SlotRef slot, int prompt_tokens, int known_tokens, const wire::Sampling& sampling = {},
               const std::vector<TokenId>& stop_ids = {}, const std::vector<wire::LogitBias>& bias = {},
               int max_tokens = 0, int proposes = 0, const std::vector<TokenId>& prediction = {}) {
    open();
    wire::StartSequence s;
    s.slot = slot;
    s.prompt_tokens = prompt_tokens;
    s.known_tokens = known_tokens;
    s.max_tokens = max_tokens;
    s.proposes = proposes;
    s.sampling = sampling;
    s.stop_ids = writer_.array(stop_ids);
    s.logit_bias = writer_.array(bias);
    s.prediction = writer_.array(prediction);
    started_.push_back(s);
    return *this;
  }
  Plans& ids(SlotRef slot, int position, const std::vector<TokenId>& ids) {
    open();
    runs_.push_back({slot, position, 0, writer_.array(ids)});
    return *this;
  }
  Plans& blocks(SlotRef slot, int first, const std::vector<BlockId>& blocks) {
    open();
    block_runs_.push_back({slot, first, 0, writer_.array(blocks)});
    return *this;
  }
  Plans& row(SlotRef slot, int position, int tokens, bool samples) {
    rows_.push_back({slot, position, tokens, samples ? std::uint32_t{wire::kSamples} : 0, 0});
    return *this;
  }
  /// A row that samples when its mask is there.
  Plans& gated_row(SlotRef slot, int position, int tokens) {
    rows_.push_back({slot, position, tokens, wire::kSamples | wire::kGated, 0});
    return *this;
  }
  /// A row from the slot's last token, at `position` at the latest, with up to tokens - 1 draft tokens.
  Plans& row_from_last(SlotRef slot, int position, int tokens, std::uint32_t more_flags = 0) {
    rows_.push_back({slot, position, tokens, wire::kSamples | wire::kFromLast | more_flags, 0});
    return *this;
  }
  /// A row that samples again.
  Plans& again_row(SlotRef slot, int position, int tokens, std::uint32_t more_flags = 0) {
    rows_.push_back({slot, position, tokens, wire::kSamples | wire::kAgain | more_flags, 0});
    return *this;
  }
  Plans& after(std::uint64_t command) {
    after_ = command;
    return *this;
  }

  /// The record, good until the next adder. `step` 0: the one after the last.
  wire::RecordView plan(std::uint64_t step = 0) {
    open();
    const auto finished = writer_.array(finished_);
    const auto started = writer_.array(started_);
    const auto runs = writer_.array(runs_);
    const auto block_runs = writer_.array(block_runs_);
    const auto rows = writer_.array(rows_);
    wire::StepPlan& record = writer_.record();
    record.step = step != 0 ? step : ++step_;
    record.after_cache_command = after_;
    record.finished = finished;
    record.started = started;
    record.tokens = runs;
    record.blocks = block_runs;
    record.rows = rows;
    is_open_ = false;
    after_ = 0;
    finished_.clear();
    started_.clear();
    runs_.clear();
    block_runs_.clear();
    rows_.clear();
    wire::RecordView view;
    TROUPE_CHECK(wire::RecordView::open(writer_.finish(), view));
    return view;
  }

  /// The step numbers start over, as after a reset.
  void restart() { step_ = 0; }
  /// The last plan was refused: its number is still free.
  void take_back() { --step_; }

 private:
  void open() {
    if (!is_open_) writer_.begin(1);
    is_open_ = true;
  }

  wire::RecordWriter<wire::StepPlan> writer_;
  bool is_open_ = false;
  std::uint64_t step_ = 0;
  std::uint64_t after_ = 0;
  std::vector<SlotRef> finished_;
  std::vector<wire::StartSequence> started_;
  std::vector<wire::TokenRun> runs_;
  std::vector<wire::BlockRun> block_runs_;
  std::vector<wire::PlanRow> rows_;
};

/// Masks of one step: call the adders, then masks().
class Masks {
 public:
  Masks& add(SlotRef slot, wire::MaskForm form, const std::vector<std::uint32_t>& words = {},
             std::uint32_t more = 0, const std::vector<TokenId>& forced = {}) {
    if (rows_.empty()) writer_.begin(1);
    rows_.push_back({slot, form, writer_.array(words), more, writer_.array(forced)});
    return *this;
  }
  Masks& all(SlotRef slot) { return add(slot, wire::MaskForm::all); }
  Masks& allow(SlotRef slot, const std::vector<std::uint32_t>& ids) {
    return add(slot, wire::MaskForm::allowed, ids);
  }

  /// The record, good until the next adder.
  wire::RecordView masks(std::uint64_t step) {
    if (rows_.empty()) writer_.begin(1);
    const auto rows = writer_.array(rows_);
    writer_.record().step = step;
    writer_.record().rows = rows;
    rows_.clear();
    wire::RecordView view;
    TROUPE_CHECK(wire::RecordView::open(writer_.finish(), view));
    return view;
  }

 private:
  wire::RecordWriter<wire::StepMasks> writer_;
  std::vector<wire::RowMask> rows_;
};

/// One command; ids count up from 1.
class Commands {
 public:
  wire::RecordView copy(const std::vector<wire::BlockCopy>& copies, std::uint64_t id = 0) {
    return make(wire::CacheOp::copy_blocks, copies, 0, id);
  }
  wire::RecordView swap_out(const std::vector<wire::BlockCopy>& copies, std::uint64_t after = 0) {
    return make(wire::CacheOp::swap_out, copies, after);
  }
  wire::RecordView swap_in(const std::vector<wire::BlockCopy>& copies, std::uint64_t after = 0) {
    return make(wire::CacheOp::swap_in, copies, after);
  }
  wire::RecordView make(wire::CacheOp op, const std::vector<wire::BlockCopy>& copies, std::uint64_t after,
                        std::uint64_t id = 0) {
    writer_.begin(1);
    const auto span = writer_.array(copies);
    writer_.record().id = id != 0 ? id : ++id_;
    writer_.record().after = after;
    writer_.record().op = op;
    writer_.record().copies = span;
    wire::RecordView view;
    TROUPE_CHECK(wire::RecordView::open(writer_.finish(), view));
    return view;
  }

 private:
  wire::RecordWriter<wire::CacheCommand> writer_;
  std::uint64_t id_ = 0;
};

inline wire::RecordView open_view(const std::vector<std::byte>& bytes) {
  wire::RecordView view;
  TROUPE_CHECK(wire::RecordView::open(bytes, view));
  return view;
}

}  // namespace troupe::model::test
