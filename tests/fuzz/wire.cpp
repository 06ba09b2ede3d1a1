// Records as a worker reads them: raw bytes, and plans, masks and commands built from the input. An executor
// takes or refuses each; a refused one changes nothing that a later one would notice as a crash, and every
// accepted plan is answered.
#include <array>
#include <vector>

#include "fuzz/target.h"
#include "model/echo_executor.h"

namespace troupe::model {
namespace {

wire::Capacity capacity() {
  wire::Capacity c{};
  c.kv_blocks = 16;
  c.block_tokens = 8;
  c.max_slots = 4;
  c.max_tokens_per_step = 32;
  c.max_model_len = 64;
  c.vocab_size = 70;
  c.max_steps_in_flight = 2;
  c.max_logprobs = 5;
  return c;
}

/// Mostly small numbers, which may name something that exists; sometimes any number.
std::int32_t number(fuzz::Dice& dice, std::uint32_t below) {
  return dice.below(32) == 0 ? dice.take<std::int32_t>() : static_cast<std::int32_t>(dice.below(below));
}

SlotRef slot(fuzz::Dice& dice) {
  return {static_cast<std::uint32_t>(number(dice, 5)), static_cast<std::uint32_t>(number(dice, 3))};
}

std::vector<std::int32_t> numbers(fuzz::Dice& dice, std::uint32_t most, std::uint32_t below) {
  std::vector<std::int32_t> out(dice.below(most + 1));
  for (std::int32_t& one : out) one = number(dice, below);
  return out;
}

class Player {
 public:
  void play(fuzz::Dice& dice) {
    switch (dice.below(6)) {
      case 5: media(dice); break;
      case 0: raw(dice); break;
      case 1:
      case 2: plan(dice); break;
      case 3: masks(dice); break;
      default: command(dice); break;
    }
    std::vector<std::byte> out;
    for (int i = 0; i < 4; ++i) {
      const auto polled = executor_->poll(out, TimePoint{});
      fuzz::require(polled.ok(), "a record that was accepted runs");
      if (!*polled) break;
      wire::RecordView view;
      fuzz::require(wire::RecordView::open(out, view), "an answer is a record");
      answered_ += view.header().kind == wire::RecordKind::step_result ? 1 : 0;
    }
    fuzz::require(answered_ <= accepted_, "each plan is answered once");
  }

 private:
  bool submit(std::span<const std::byte> bytes) {
    wire::RecordView view;
    return wire::RecordView::open(bytes, view) && executor_->submit(view).ok();
  }

  void raw(fuzz::Dice& dice) {
    alignas(8) std::array<std::byte, 512> memory{};
    const fuzz::Bytes rest = dice.rest();
    const std::size_t bytes = std::min(memory.size(), rest.size()) / 8 * 8;
    std::memcpy(memory.data(), rest.data(), bytes);
    if (submit(std::span(memory).first(bytes))) ++accepted_;  // at worst one too many
    for (std::size_t i = 0; i < bytes; i += 8) (void)dice.take<std::uint64_t>();
  }

  /// The model of this executor takes none: each is refused.
  void media(fuzz::Dice& dice) {
    wire::RecordWriter<wire::SequenceMedia> announced;
    announced.begin(1);
    std::vector<wire::MediaEntry> entries(dice.below(3));
    for (wire::MediaEntry& entry : entries)
      entry = {dice.below(4), number(dice, 4), number(dice, 8), number(dice, 8), number(dice, 64)};
    const auto items = announced.array(entries);
    announced.record().slot = slot(dice);
    announced.record().items = items;
    fuzz::require(!submit(announced.finish()), "a text model takes no media");
    wire::RecordWriter<wire::EncodeMedia> asked;
    asked.begin(1);
    asked.record().slot = slot(dice);
    asked.record().item = number(dice, 3);
    fuzz::require(!submit(asked.finish()), "a text model encodes nothing");
  }

  void plan(fuzz::Dice& dice) {
    plan_.begin(1);
    std::vector<SlotRef> finished(dice.below(3));
    for (SlotRef& one : finished) one = slot(dice);
    std::vector<wire::StartSequence> started(dice.below(3));
    for (wire::StartSequence& one : started) {
      one.slot = slot(dice);
      one.prompt_tokens = number(dice, 20);
      one.known_tokens = dice.below(4) == 0 ? number(dice, 24) : one.prompt_tokens;
      one.sampling.top_k = number(dice, 3);
      one.sampling.logprobs = static_cast<std::int32_t>(dice.below(8)) - 1;
      one.sampling.prompt_logprobs = static_cast<std::int32_t>(dice.below(8)) - 1;
      if (dice.below(16) == 0) one.sampling.temperature = dice.take<float>();
      const auto stops = numbers(dice, 2, 80);
      one.stop_ids = plan_.array(stops);
    }
    std::vector<wire::TokenRun> runs(dice.below(4));
    for (wire::TokenRun& one : runs) {
      one.slot = slot(dice);
      one.position = number(dice, 20);
      one.ids = plan_.array(numbers(dice, 20, 72));
    }
    std::vector<wire::BlockRun> blocks(dice.below(4));
    for (wire::BlockRun& one : blocks) {
      one.slot = slot(dice);
      one.first = number(dice, 4);
      one.blocks = plan_.array(numbers(dice, 4, 17));
    }
    std::vector<wire::PlanRow> rows(dice.below(4));
    for (wire::PlanRow& one : rows) {
      one.slot = slot(dice);
      one.position = number(dice, 20);
      one.tokens = number(dice, 20);
      one.flags = dice.below(4);
    }
    const auto finished_span = plan_.array(finished);
    const auto started_span = plan_.array(started);
    const auto runs_span = plan_.array(runs);
    const auto blocks_span = plan_.array(blocks);
    const auto rows_span = plan_.array(rows);
    wire::StepPlan& record = plan_.record();
    record.step = dice.below(16) == 0 ? dice.take<std::uint64_t>() : step_ + 1;
    record.after_cache_command = dice.below(8) == 0 ? static_cast<std::uint64_t>(number(dice, 4)) : 0;
    record.finished = finished_span;
    record.started = started_span;
    record.tokens = runs_span;
    record.blocks = blocks_span;
    record.rows = rows_span;
    if (!submit(plan_.finish())) return;
    ++accepted_;
    ++step_;
  }

  void masks(fuzz::Dice& dice) {
    masks_.begin(1);
    std::vector<wire::RowMask> rows(dice.below(3));
    for (wire::RowMask& one : rows) {
      one.slot = slot(dice);
      one.form = static_cast<wire::MaskForm>(number(dice, 5));
      one.more = static_cast<std::uint32_t>(number(dice, 3));
      std::vector<std::uint32_t> words(dice.below(5));
      for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(number(dice, 72));
      one.words = masks_.array(words);
      std::vector<TokenId> forced(dice.below(16) == 0 ? dice.below(4) : 0);
      for (TokenId& id : forced) id = number(dice, 72);
      one.forced = masks_.array(forced);
    }
    const auto span = masks_.array(rows);
    masks_.record().step = step_ - dice.below(3);
    masks_.record().rows = span;
    (void)submit(masks_.finish());
  }

  void command(fuzz::Dice& dice) {
    command_.begin(1);
    std::vector<wire::BlockCopy> copies(dice.below(4));
    for (wire::BlockCopy& one : copies) one = {number(dice, 17), number(dice, 17)};
    const auto span = command_.array(copies);
    wire::CacheCommand& record = command_.record();
    record.id = dice.below(16) == 0 ? dice.take<std::uint64_t>() : id_ + 1;
    record.after = static_cast<std::uint64_t>(number(dice, 3));
    record.op = static_cast<wire::CacheOp>(number(dice, 4));
    record.copies = span;
    if (submit(command_.finish())) ++id_;
  }

  std::unique_ptr<Executor> executor_ = make_echo_executor(capacity());
  wire::RecordWriter<wire::StepPlan> plan_;
  wire::RecordWriter<wire::StepMasks> masks_;
  wire::RecordWriter<wire::CacheCommand> command_;
  std::uint64_t step_ = 0, id_ = 0, accepted_ = 0, answered_ = 0;
};

FUZZ_TARGET(wire) {
  fuzz::Dice dice(input);
  Player player;
  for (int i = 0; i < 64 && !dice.empty(); ++i) player.play(dice);
}

}  // namespace
}  // namespace troupe::model
