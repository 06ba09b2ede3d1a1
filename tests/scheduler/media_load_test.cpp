// Streams beside prompts and images, on a modelled GPU whose encoder runs a piece before each step.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

constexpr double kLimit_s = 0.06;
constexpr double kPiece_s = 9e-3;
constexpr std::uint64_t kDocument = 100, kFirstImage = 101;
constexpr std::int32_t kImageTokens = 1000;

/// 21B on a GPU.
double gpu_s(std::span<const wire::PlanRow> rows) {
  StepWork w;
  for (const wire::PlanRow& row : rows) w.add(row.position, row.tokens);
  return 11e-3 + 12e-6 * static_cast<double>(w.tokens) + 13e-9 * static_cast<double>(w.context) +
         0.455e-9 * static_cast<double>(w.pairs);
}

/// A clock that the ends of steps move. Two steps are in flight; an item is ready when its last piece has
/// run.
struct GpuRig : Rig {
  static Setting gpu() {
    Setting s;
    s.blocks = 4000;
    s.block_tokens = 64;
    s.slots = 64;
    s.budget = 8192;
    s.max_length = 65536;
    s.media_tokens = 65536;
    return s;
  }
  static config::SchedulerOptions options() {
    config::SchedulerOptions o;
    o.max_prefill_step_ms = 60;
    return o;
  }
  struct Step {
    double began_s = 0, ended_s = 0;
    std::int32_t prompt_tokens = 0;
  };
  struct Encoding {
    SlotRef slot{};
    std::int32_t item = 0;
    int pieces = 0;
  };

  explicit GpuRig(double piece_s = kPiece_s) : Rig(gpu(), options()), piece_s(piece_s) {
    step_s = gpu_s;
    for (std::uint64_t key = 1; key <= 32; ++key) add(key, 100, 10'000);
    while (launch()) {
    }
    run(20);
  }

  /// An image is submitted.
  void see(std::uint64_t key) {
    Submit request;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, key};
    spec.prompt.assign(kImageTokens + 100, 3);
    std::fill_n(spec.prompt.begin(), kImageTokens, 40);
    spec.prompt_tokens = kImageTokens + 100;
    spec.media.push_back({{MediaKind::image, {1, 2, 2 * kImageTokens}, 0}, {key, 77}, {4096 * key, key}});
    spec.max_output_tokens = 4;
    const Status status = scheduler.submit(request);
    EXPECT_TRUE(status.ok()) << status.message;
    exchange();
  }

  bool launch() {
    const bool planned = plan();
    for (const std::vector<std::byte>& bytes : media) {
      wire::RecordView of;
      EXPECT_TRUE(wire::RecordView::open(bytes, of));
      if (const auto* asked = of.as<wire::EncodeMedia>())
        encodings.push_back({asked->slot, asked->item, pieces_of_item});
    }
    if (!planned) return false;
    double begins_s = std::max(now_s, free_s);
    if (!encodings.empty() && encodings.front().pieces > 0) {
      --encodings.front().pieces;
      begins_s += piece_s;
    }
    free_s = begins_s + gpu_s(rows());
    std::int32_t prompt_tokens = 0;
    for (const wire::PlanRow& row : rows()) prompt_tokens += row.tokens > 1 ? row.tokens : 0;
    in_flight.push_back({begins_s, free_s, prompt_tokens});
    return true;
  }

  /// The end of the oldest step, and what it lets begin. False when nothing is in flight.
  bool step() {
    if (in_flight.empty()) return false;
    const Step ended = in_flight.front();
    in_flight.pop_front();
    const double before_s = now_s;
    now_s = ended.ended_s;
    began_ns = static_cast<std::int64_t>(1e9 * ended.began_s);
    commit(5);
    if (!encodings.empty() && encodings.front().pieces == 0) {
      wire::RecordWriter<wire::MediaDone> writer;
      writer.begin(epoch);
      writer.record().slot = encodings.front().slot;
      writer.record().item = encodings.front().item;
      encodings.pop_front();
      EXPECT_EQ(scheduler.media_done(writer.finish(), out), Committed::applied);
      exchange();
    }
    gap_s = now_s - before_s;
    prompt_tokens = ended.prompt_tokens;
    while (launch()) {
    }
    return true;
  }
  void run(int steps) {
    for (int i = 0; i < steps; ++i) ASSERT_TRUE(step());
  }
  /// Of so many steps, the longest time from the end of one to the end of the next.
  double longest_gap(int steps) {
    double longest = 0;
    for (int i = 0; i < steps && step(); ++i) longest = std::max(longest, gap_s);
    return longest;
  }
  /// A document is computed, for which enough prompts wait that it may have whole steps.
  void compute_document() {
    add(kDocument, 60'000, 4);
    for (std::uint64_t key = 200; key < 220; ++key) add(key, 30'000, 4);
    run(12);
  }

  double piece_s = 0;
  int pieces_of_item = 1000;
  double now_s = 0, free_s = 0;
  double gap_s = 0;                ///< before the step that has ended last
  std::int32_t prompt_tokens = 0;  ///< of that step
  std::deque<Step> in_flight;
  std::deque<Encoding> encodings;
};

TEST(MediaLoad, AStepAndTheEncodersPieceBeforeItKeepToTheLimitTogether) {
  for (const double piece_s : {5e-3, kPiece_s, 20e-3}) {
    GpuRig rig(piece_s);
    rig.compute_document();
    rig.see(kFirstImage);
    rig.run(6);
    ASSERT_FALSE(rig.encodings.empty());
    EXPECT_LE(rig.longest_gap(10), 1.03 * kLimit_s) << piece_s;
    EXPECT_GE(rig.longest_gap(1), 0.75 * kLimit_s) << "no more is left than the piece takes; " << piece_s;
  }
}

TEST(MediaLoad, TheFirstPieceIsForeseen) {
  GpuRig rig;
  rig.compute_document();
  rig.see(kFirstImage);
  rig.run(2);  // planned before
  EXPECT_LE(rig.longest_gap(6), 1.03 * kLimit_s);
}

TEST(MediaLoad, PromptsHaveTheWholeLimitAgainWhenNothingIsEncoded) {
  GpuRig rig;
  rig.pieces_of_item = 6;
  rig.compute_document();
  const std::int32_t before = rig.prompt_tokens;
  rig.see(kFirstImage);
  rig.run(4);
  EXPECT_LT(rig.prompt_tokens, before);
  while (!rig.encodings.empty()) ASSERT_TRUE(rig.step());
  rig.run(6);
  EXPECT_GE(rig.longest_gap(6), 0.92 * kLimit_s);
}

TEST(MediaLoad, APauseIsForgotten) {
  GpuRig rig;
  rig.compute_document();
  rig.see(kFirstImage);
  rig.run(3);
  rig.piece_s = 50e-3;
  rig.run(3);
  rig.piece_s = 2e-3;
  rig.run(2);
  EXPECT_GE(rig.prompt_tokens, 128) << "prompts keep half of the limit";
  rig.run(30);
  EXPECT_GE(rig.longest_gap(3), 0.9 * kLimit_s);
}

TEST(MediaLoad, APartOfTheLimitThatLeavesRoomForThePieceIsNotCut) {
  GpuRig with, without;
  for (GpuRig* rig : {&with, &without}) {
    if (rig == &with) rig->see(kFirstImage);
    rig->run(4);
    rig->add(kDocument, 60'000, 4);  // one prompt beside 32 streams: a third of the time
    rig->run(70);
    EXPECT_LT(rig->prompt_tokens, 800) << "the time cuts it, not the tokens";
  }
  ASSERT_FALSE(with.encodings.empty());
  EXPECT_EQ(with.prompt_tokens, without.prompt_tokens);
  EXPECT_GT(with.prompt_tokens, 0);
}

}  // namespace
}  // namespace troupe::test
