// Sequences with images and videos through an executor's own records.
#include <algorithm>
#include <map>

#include "gpu/cuda.h"
#include "model/cpu_executor.h"
#include "model/cuda/executor.h"
#include "model/support/plans.h"
#include "model/support/vision_golden.h"
#include "support/patience.h"

namespace troupe::model {
namespace {

using test::Plans;
using test::VisionGolden;

/// The parameter: on a GPU. Without one its cases are skipped.
class VisionExecutor : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const Status usable = cuda_usable(); on_gpu() && !usable.ok()) GTEST_SKIP() << usable.message;
    make("vision_small");
  }
  static bool on_gpu() { return GetParam(); }

  void make(const std::string& golden) {
    config::Options options;
    options.model.directory = test::golden_directory(golden).string();
    options.model.dtype = config::DTypeOption::float32;
    options.device.cpu_threads = 2;
    const auto files = open_model(options.model);
    ASSERT_TRUE(files.ok()) << files.status().message;
    wire::Capacity capacity;
    capacity.kv_blocks = 16;
    capacity.max_slots = 4;
    capacity.max_tokens_per_step = 64;
    capacity.max_model_len = 256;
    capacity.vocab_size = files->spec.vocab;
    options.scheduler.max_num_seqs = capacity.max_slots;
    options.scheduler.max_num_batched_tokens = capacity.max_tokens_per_step;
    options.scheduler.max_model_len = capacity.max_model_len;
    options.device.num_gpu_blocks_override = capacity.kv_blocks;
    executor_.reset();
    auto made = on_gpu() ? make_cuda_executor(*files, options) : make_cpu_executor(*files, options, capacity);
    ASSERT_TRUE(made.ok()) << made.status().message;
    executor_ = std::move(*made);
  }

  Status announce(SlotRef slot, const std::vector<MediaItem>& items) {
    wire::RecordWriter<wire::SequenceMedia> writer;
    writer.begin(1);
    std::vector<wire::MediaEntry> entries;
    for (const MediaItem& item : items) {
      entries.push_back({static_cast<std::uint32_t>(item.kind), item.grid.frames, item.grid.rows,
                         item.grid.columns, item.first});
    }
    const auto span = writer.array(entries);
    writer.record().slot = slot;
    writer.record().items = span;
    return submit(writer.finish());
  }

  Status encode(SlotRef slot, int item, std::span<const std::byte> patches) {
    wire::EncodeMedia command;
    command.slot = slot;
    command.item = item;
    if (names_) command.name = {1, static_cast<std::uint64_t>(item) + 1};
    return executor_->encode(command, patches);
  }

  /// Announces and asks for all items of the golden, whose patches stay until they are encoded.
  void see(SlotRef slot, const VisionGolden& golden) {
    ASSERT_TRUE(announce(slot, golden.items).ok());
    std::uint64_t offset = 0;
    for (std::size_t i = 0; i < golden.items.size(); ++i) {
      const std::uint64_t bytes = VisionGolden::bytes_of(golden.items[i]);
      const Status asked =
          encode(slot, static_cast<int>(i), std::as_bytes(std::span(golden.patches)).subspan(offset, bytes));
      ASSERT_TRUE(asked.ok()) << asked.message;
      offset += bytes;
    }
  }

  Status submit(std::span<const std::byte> bytes) {
    wire::RecordView view;
    if (!wire::RecordView::open(bytes, view)) return invalid("no record");
    return executor_->submit(view);
  }

  void start(SlotRef slot, const VisionGolden& golden, int first_block) {
    const int tokens = static_cast<int>(golden.ids.size());
    plans_.start(slot, tokens, tokens, {.temperature = 0});
    plans_.ids(slot, 0, golden.ids);
    plans_.blocks(slot, 0, {first_block, first_block + 1, first_block + 2, first_block + 3});
  }

  bool submit_plan() {
    const Status status = executor_->submit(plans_.plan());
    if (!status.ok()) plans_.take_back();
    refusal_ = status.message;
    return status.ok();
  }

  /// Polls until a step has come back; its tokens are added to those of their slots, MediaDones are counted.
  void finish_step() {
    const TimePoint until = Clock::now() + troupe::test::kPatience;
    while (Clock::now() < until) {
      const auto got = executor_->poll(bytes_, Clock::now() + std::chrono::milliseconds(10));
      ASSERT_TRUE(got.ok()) << got.status().message;
      if (*got && take()) return;
    }
    FAIL() << "no step came back";
  }

  /// True if it was a step's result.
  bool take() {
    const wire::RecordView view = test::open_view(bytes_);
    if (const auto* done = view.as<wire::MediaDone>()) {
      (done->dropped != 0 ? dropped_ : encoded_).push_back({done->slot, done->item});
      EXPECT_LE(done->started_ns, done->finished_ns);
      cached_ += done->cached != 0 ? 1 : 0;
      return false;
    }
    const auto* result = view.as<wire::StepResult>();
    if (result == nullptr) return false;
    for (const wire::ResultRow& row : view.array(result->rows)) {
      EXPECT_EQ(row.error, wire::RowError::none);
      const auto tokens = view.array(result->tokens);
      for (int i = 0; i < row.count; ++i)
        tokens_[row.slot].push_back(tokens[static_cast<std::size_t>(row.first + i)]);
    }
    return true;
  }

  /// The prompt in chunks, then greedy tokens.
  std::vector<TokenId> answer(SlotRef slot, const VisionGolden& golden, int chunk, int first_block) {
    tokens_[slot].clear();
    const int tokens = static_cast<int>(golden.ids.size());
    start(slot, golden, first_block);
    for (int at = 0; at < tokens && !HasFatalFailure(); at += chunk) {
      const int count = std::min(chunk, tokens - at);
      plans_.row(slot, at, count, at + count == tokens);
      EXPECT_TRUE(submit_plan()) << refusal_;
      finish_step();
    }
    for (int i = 1; i < static_cast<int>(golden.greedy.size()) && !HasFatalFailure(); ++i) {
      plans_.row(slot, tokens + i - 1, 1, true);
      EXPECT_TRUE(submit_plan()) << refusal_;
      finish_step();
    }
    plans_.finish(slot);
    return tokens_[slot];
  }

  std::unique_ptr<Executor> executor_;
  Plans plans_;
  std::string refusal_;
  std::vector<std::byte> bytes_;
  std::map<SlotRef, std::vector<TokenId>> tokens_;
  std::vector<std::pair<SlotRef, int>> encoded_, dropped_;
  bool names_ = false;  // items have names by their index
  int cached_ = 0;      // MediaDones that say so
};

INSTANTIATE_TEST_SUITE_P(On, VisionExecutor, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "cuda" : "cpu"; });

TEST_P(VisionExecutor, AnswersAsTheReferenceHoweverThePromptIsCut) {
  std::uint32_t generation = 0;
  for (const char* prompt : {"mixed", "long", "text"}) {
    const VisionGolden golden = test::load_vision_golden(prompt);
    for (const int chunk : {64, 7, 1}) {
      const SlotRef slot{1, ++generation};
      encoded_.clear();
      if (!golden.items.empty()) see(slot, golden);
      EXPECT_EQ(answer(slot, golden, chunk, 4), golden.greedy) << prompt << " in chunks of " << chunk;
      EXPECT_EQ(encoded_.size(), golden.items.size());
    }
  }
}

// Two sequences with media and one of text in the same steps.
TEST_P(VisionExecutor, SequencesRunBesideEachOther) {
  const VisionGolden mixed = test::load_vision_golden("mixed"), text = test::load_vision_golden("text");
  const SlotRef one{0, 1}, two{1, 1}, three{2, 1};
  see(one, mixed);
  see(three, mixed);
  start(one, mixed, 0);
  start(two, text, 4);
  start(three, mixed, 8);
  const int length = static_cast<int>(mixed.ids.size()), short_length = static_cast<int>(text.ids.size());
  int at = 0;
  for (int step = 0; at < length; ++step) {
    const int count = std::min(5, length - at);
    plans_.row(one, at, count, at + count == length);
    if (step == 0) plans_.row(two, 0, short_length, true);
    if (step > 0) plans_.row(two, short_length + step - 1, 1, true);
    plans_.row(three, at, count, at + count == length);
    ASSERT_TRUE(submit_plan()) << refusal_;
    finish_step();
    at += count;
  }
  for (int i = 1; i < static_cast<int>(mixed.greedy.size()); ++i) {
    plans_.row(one, length + i - 1, 1, true);
    plans_.row(three, length + i - 1, 1, true);
    ASSERT_TRUE(submit_plan()) << refusal_;
    finish_step();
  }
  EXPECT_EQ(tokens_[one], mixed.greedy);
  EXPECT_EQ(tokens_[three], mixed.greedy);
  const auto& of_text = tokens_[two];
  EXPECT_TRUE(
      std::equal(of_text.begin(),
                 of_text.begin() + static_cast<std::ptrdiff_t>(std::min(of_text.size(), text.greedy.size())),
                 text.greedy.begin()));
}

// Steps of text run between the pieces; a step that needs an item waits for it.
TEST_P(VisionExecutor, TextDoesNotWaitForEncoding) {
  const VisionGolden mixed = test::load_vision_golden("mixed"), text = test::load_vision_golden("text");
  const SlotRef seen{0, 1}, plain{1, 1};
  see(seen, mixed);
  start(plain, text, 4);
  plans_.row(plain, 0, static_cast<int>(text.ids.size()), true);
  ASSERT_TRUE(submit_plan()) << refusal_;
  finish_step();
  if (!on_gpu()) {
    EXPECT_TRUE(encoded_.empty()) << "a piece after the step, not before";
  }
  start(seen, mixed, 0);
  plans_.row(seen, 0, static_cast<int>(mixed.ids.size()), true);
  ASSERT_TRUE(submit_plan()) << refusal_;
  finish_step();
  EXPECT_EQ(encoded_.size(), 3u);
  EXPECT_EQ(tokens_[seen].front(), mixed.greedy.front());
  EXPECT_FALSE(executor_->waits_for_record());
}

// A row behind an item's last one would need what is gone.
TEST_P(VisionExecutor, AnItemIsUsedUpByItsLastRow) {
  const VisionGolden mixed = test::load_vision_golden("mixed");
  const SlotRef slot{0, 1};
  see(slot, mixed);
  start(slot, mixed, 0);
  plans_.row(slot, 0, mixed.items[0].end(), false);
  ASSERT_TRUE(submit_plan()) << refusal_;
  plans_.row(slot, mixed.items[0].end() - 1, 2, false);
  EXPECT_FALSE(submit_plan());
  EXPECT_NE(refusal_.find("item 0, which was used up"), std::string::npos) << refusal_;
}

// One that ends without having been started, and one with the same name behind it.
TEST_P(VisionExecutor, WhatWasUsedServesLaterItemsOfThatName) {
  const VisionGolden mixed = test::load_vision_golden("mixed");
  names_ = true;
  see({0, 1}, mixed);
  plans_.finish({0, 1});
  ASSERT_TRUE(submit_plan()) << "a plan with nothing else";
  finish_step();
  EXPECT_EQ(cached_, 0);
  see({0, 2}, mixed);
  EXPECT_EQ(answer({0, 2}, mixed, 7, 4), mixed.greedy);
  EXPECT_EQ(cached_, 0) << "of a sequence that was dropped nothing is kept";
  see({0, 3}, mixed);
  EXPECT_EQ(answer({0, 3}, mixed, 7, 4), mixed.greedy);
  EXPECT_EQ(cached_, 3);
  executor_->reset(2);
  plans_.restart();
  see({0, 1}, mixed);
  EXPECT_EQ(answer({0, 1}, mixed, 64, 0), mixed.greedy);
  EXPECT_EQ(cached_, 6) << "another engine";
}

// The sequence ends before its items are encoded: they are answered for, and the slot is free.
TEST_P(VisionExecutor, AFinishedSequencesItemsAreDropped) {
  const VisionGolden mixed = test::load_vision_golden("mixed");
  see({0, 1}, mixed);
  start({0, 1}, mixed, 0);
  plans_.row({0, 1}, 0, 2, false);  // before the first item
  ASSERT_TRUE(submit_plan()) << refusal_;
  plans_.finish({0, 1});
  ASSERT_TRUE(submit_plan()) << refusal_;
  finish_step();
  finish_step();
  const TimePoint until = Clock::now() + troupe::test::kPatience;
  while (encoded_.size() + dropped_.size() < 3 && Clock::now() < until) {
    const auto got = executor_->poll(bytes_, Clock::now() + std::chrono::milliseconds(10));
    ASSERT_TRUE(got.ok());
    if (*got) take();
  }
  EXPECT_GE(dropped_.size(), 2u);
  EXPECT_EQ(encoded_.size() + dropped_.size(), 3u);
  see({0, 2}, mixed);
  EXPECT_EQ(answer({0, 2}, mixed, 64, 4), mixed.greedy);
}

TEST_P(VisionExecutor, AResetForgetsEverything) {
  const VisionGolden mixed = test::load_vision_golden("mixed");
  see({0, 1}, mixed);
  executor_->reset(2);
  plans_.restart();
  see({0, 1}, mixed);
  EXPECT_EQ(answer({0, 1}, mixed, 64, 0), mixed.greedy);
}

TEST_P(VisionExecutor, RefusesWhatMakesNoSense) {
  const VisionGolden mixed = test::load_vision_golden("mixed");
  const std::span<const std::byte> patches = std::as_bytes(std::span(mixed.patches));
  const auto refused = [](const Status& status, const std::string& part) {
    EXPECT_FALSE(status.ok()) << part;
    EXPECT_NE(status.message.find(part), std::string::npos) << status.message;
  };
  const auto image = [](int first, PatchGrid grid) { return MediaItem{MediaKind::image, grid, first}; };
  refused(announce({9, 1}, mixed.items), "no such slot");
  refused(announce({0, 1}, {}), "there are none");
  refused(announce({0, 1}, {image(0, {1, 3, 2})}), "1 × 3 × 2 patches at 0 cannot be");
  refused(announce({0, 1}, {image(0, {2, 2, 2})}), "cannot be");
  refused(announce({0, 1}, {image(-1, {1, 2, 2})}), "cannot be");
  refused(announce({0, 1}, {image(256, {1, 2, 2})}), "cannot be");
  refused(announce({0, 1}, {image(0, {1, 2147483646, 2147483646})}), "cannot be");
  refused(announce({0, 1}, {image(0, {1, 4, 4}), image(3, {1, 2, 2})}), "item 1 ");
  refused(announce({0, 1}, {MediaItem{static_cast<MediaKind>(3), {1, 2, 2}, 0}}), "kind 3");
  refused(encode({0, 1}, 0, patches.first(588)), "is not known");

  ASSERT_TRUE(announce({0, 1}, mixed.items).ok());
  refused(announce({0, 1}, mixed.items), "have come already");
  const std::uint64_t bytes = VisionGolden::bytes_of(mixed.items[0]);
  refused(encode({0, 1}, 3, patches.first(bytes)), "item 3 is not known");
  refused(encode({0, 1}, -1, patches.first(bytes)), "item -1 is not known");
  refused(encode({0, 1}, 0, patches.first(bytes - 1)), "were found");
  refused(encode({0, 1}, 0, {}), "0 were found");

  start({0, 1}, mixed, 0);
  plans_.row({0, 1}, 0, mixed.items[0].first + 1, false);
  EXPECT_FALSE(submit_plan());
  EXPECT_NE(refusal_.find("a row covers item 0, which was not to be encoded"), std::string::npos) << refusal_;
  ASSERT_TRUE(encode({0, 1}, 0, patches.first(bytes)).ok());
  refused(encode({0, 1}, 0, patches.first(bytes)), "already");

  const int tokens = mixed.items[0].end() - 1;
  plans_.start({0, 1}, tokens, tokens);
  EXPECT_FALSE(submit_plan());
  EXPECT_NE(refusal_.find("an item ends at"), std::string::npos) << refusal_;
  ASSERT_TRUE(announce({0, 2}, mixed.items).ok());
  refused(announce({0, 3}, mixed.items), "two generations");
}

TEST_P(VisionExecutor, ATextModelTakesNoMedia) {
  make("moe_shared2");
  const Status status = announce({0, 1}, {MediaItem{MediaKind::image, {1, 2, 2}, 0}});
  EXPECT_EQ(status.code, Code::invalid_argument);
  EXPECT_NE(status.message.find("takes no images"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace troupe::model
