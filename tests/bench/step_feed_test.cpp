// The plans that the offline bench sends to an executor and the times it reports, on the echo executor and on
// the CPU with a reference checkpoint.
#include "cli/bench/step_feed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "model/checkpoint/model_files.h"
#include "model/cpu_executor.h"
#include "model/echo_executor.h"
#include "model/support/engine.h"
#include "model/support/files.h"

namespace troupe::bench {
namespace {

struct StartedSequence {
  SlotRef slot{};
  wire::Sampling sampling{};
  std::vector<TokenId> ids;
  std::vector<BlockId> blocks;
};

// Forwards every call to `inner` and records it.
class Spy final : public Executor {
 public:
  explicit Spy(Executor& inner) : inner_(inner) {}

  wire::Capacity capacity() const override { return inner_.capacity(); }
  std::string device() const override { return inner_.device(); }
  void reset(std::uint32_t to) override {
    ++resets;
    epoch = to;
    inner_.reset(1);
  }
  Result<bool> prepare() override { return --looks_until_met <= 0; }

  Status submit(const wire::RecordView& record) override {
    if (const auto* plan = record.as<wire::StepPlan>()) write_down(record, *plan);
    Status status = inner_.submit(record);
    if (const auto* some = record.as<wire::StepMasks>()) {
      for (const wire::RowMask& mask : record.array(some->rows)) masks[some->step].insert(mask.slot.slot);
      return status;
    }
    most_out = std::max(most_out, out += status.ok());
    return status;
  }

  Result<bool> poll(std::vector<std::byte>& bytes, TimePoint deadline) override {
    auto got = inner_.poll(bytes, deadline);
    if (!got.ok() || !*got) return got;
    --out;
    const wire::RecordView view = model::test::open_view(bytes);
    if (const auto* result = view.as<wire::StepResult>()) {
      const auto tokens = view.array(result->tokens);
      for (const wire::ResultRow& row : view.array(result->rows)) {
        sampled[row.slot.slot].push_back(tokens[static_cast<std::size_t>(row.first)]);
      }
    }
    return got;
  }

  /// Forgets the rows and tokens so far, but not the running sequences.
  void turn_page() {
    rows.clear();
    sampled.clear();
  }

  std::map<std::uint32_t, StartedSequence> running;  // by slot
  std::vector<std::vector<wire::PlanRow>> rows;      // rows of each plan
  std::map<std::uint32_t, std::vector<TokenId>> sampled;
  std::map<std::uint64_t, std::set<std::uint32_t>> masks;  // slots that got one, by step
  int out = 0, most_out = 0, resets = 0, looks_until_met = 0;
  std::uint32_t epoch = 0;

 private:
  void write_down(const wire::RecordView& record, const wire::StepPlan& plan) {
    for (const SlotRef& slot : record.array(plan.finished)) {
      EXPECT_EQ(running.count(slot.slot), 1u);
      running.erase(slot.slot);
    }
    for (const wire::StartSequence& start : record.array(plan.started)) {
      EXPECT_EQ(running.count(start.slot.slot), 0u) << "slot " << start.slot.slot << " is taken";
      running[start.slot.slot] = {start.slot, start.sampling, {}, {}};
    }
    for (const wire::TokenRun& run : record.array(plan.tokens)) {
      const auto ids = record.array(run.ids);
      running.at(run.slot.slot).ids.assign(ids.begin(), ids.end());
    }
    for (const wire::BlockRun& run : record.array(plan.blocks)) {
      const auto blocks = record.array(run.blocks);
      running.at(run.slot.slot).blocks.assign(blocks.begin(), blocks.end());
    }
    const auto planned = record.array(plan.rows);
    rows.emplace_back(planned.begin(), planned.end());
  }

  Executor& inner_;
};

class StepFeedTest : public ::testing::Test {
 protected:
  static wire::Capacity capacity() {
    wire::Capacity made;
    made.kv_blocks = 40;
    made.max_slots = 24;
    made.max_tokens_per_step = 100;
    made.max_model_len = 600;
    made.vocab_size = 1000;
    return made;
  }
  std::unique_ptr<Executor> echo = model::make_echo_executor(capacity());
  Spy spy{*echo};
};

TEST_F(StepFeedTest, ARankWaitsForTheOthersInItsEpoch) {
  spy.looks_until_met = 3;
  StepFeed feed(spy, 7);
  EXPECT_EQ(spy.epoch, 7u);
  EXPECT_EQ(spy.resets, 1);
  ASSERT_TRUE(feed.meet_ranks().ok());
  EXPECT_EQ(spy.looks_until_met, 0);
}

TEST_F(StepFeedTest, GatedRowsGetTheirMasks) {
  StepFeed feed(spy);
  ASSERT_TRUE(feed.place(12, 10, 20).ok());
  ASSERT_TRUE(feed.decode(3).ok());
  EXPECT_TRUE(spy.masks.empty());
  spy.turn_page();
  feed.gate(1e-6);
  ASSERT_TRUE(feed.decode(5).ok());
  EXPECT_EQ(spy.masks.size(), 5u);
  for (const auto& [step, slots] : spy.masks) EXPECT_EQ(slots.size(), 12u) << step;
  for (const auto& rows : spy.rows) EXPECT_EQ(rows[0].flags, wire::kSamples | wire::kGated);
  for (const auto& [slot, tokens] : spy.sampled) EXPECT_EQ(tokens.size(), 5u);
  spy.masks.clear();
  feed.gate(-1);
  ASSERT_TRUE(feed.decode(3).ok());
  EXPECT_TRUE(spy.masks.empty());
}

TEST_F(StepFeedTest, DecodesAllSequencesInStep) {
  StepFeed feed(spy);
  EXPECT_EQ(spy.resets, 1);
  ASSERT_TRUE(feed.place(12, 70, 9).ok());
  ASSERT_EQ(spy.running.size(), 12u);
  std::set<BlockId> blocks;
  std::set<std::vector<TokenId>> ids;
  for (const auto& [slot, s] : spy.running) {
    EXPECT_EQ(s.ids.size(), 71u);
    EXPECT_EQ(s.blocks.size(), 2u);  // 80 tokens
    blocks.insert(s.blocks.begin(), s.blocks.end());
    ids.insert(s.ids);
  }
  EXPECT_EQ(blocks.size(), 24u);
  EXPECT_EQ(ids.size(), 12u);
  spy.turn_page();
  int position = 70;
  for (const int steps : {4, 5}) {
    const auto times = feed.decode(steps);
    ASSERT_TRUE(times.ok()) << times.status().message;
    EXPECT_EQ(times->size(), static_cast<std::size_t>(steps - 1));
    EXPECT_TRUE(std::all_of(times->begin(), times->end(), [](double t) { return t >= 0; }));
    EXPECT_EQ(feed.submit_s().size(), static_cast<std::size_t>(steps));
    ASSERT_EQ(feed.spans().size(), static_cast<std::size_t>(steps));
    for (const auto& span : feed.spans()) EXPECT_GE(span.finished_ns, span.started_ns);
    ASSERT_EQ(spy.rows.size(), static_cast<std::size_t>(steps));
    for (const auto& rows : spy.rows) {
      ASSERT_EQ(rows.size(), 12u);
      for (const wire::PlanRow& row : rows) {
        EXPECT_EQ(row.position, position);
        EXPECT_EQ(row.tokens, 1);
        EXPECT_EQ(row.flags, static_cast<std::uint32_t>(wire::kSamples));
      }
      ++position;
    }
    spy.turn_page();
  }
  EXPECT_EQ(spy.most_out, 2);
  EXPECT_EQ(spy.out, 0);
}

TEST_F(StepFeedTest, PlacingSequencesReplacesTheEarlierOnes) {
  StepFeed feed(spy);
  for (const auto& [batch, context] : {std::pair{10, 65}, {24, 0}, {3, 500}, {1, 0}, {9, 1}}) {
    ASSERT_TRUE(feed.place(batch, context, 4).ok()) << batch << " × " << context;
    EXPECT_EQ(spy.running.size(), static_cast<std::size_t>(batch));
    const auto times = feed.decode(4);
    ASSERT_TRUE(times.ok()) << times.status().message;
  }
  ASSERT_TRUE(feed.prefill(600).ok());
  EXPECT_EQ(spy.running.size(), 1u);
}

TEST_F(StepFeedTest, APromptRunsInStepsOfTheLargestSize) {
  StepFeed feed(spy);
  const auto time = feed.prefill(250);
  ASSERT_TRUE(time.ok()) << time.status().message;
  EXPECT_GT(*time, 0);
  ASSERT_EQ(spy.rows.size(), 3u);
  const int starts[] = {0, 100, 200}, counts[] = {100, 100, 50};
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(spy.rows[i].size(), 1u);
    EXPECT_EQ(spy.rows[i][0].position, starts[i]);
    EXPECT_EQ(spy.rows[i][0].tokens, counts[i]);
    EXPECT_EQ(spy.rows[i][0].flags, i == 2 ? static_cast<std::uint32_t>(wire::kSamples) : 0u);
  }
  EXPECT_EQ(spy.sampled[0].size(), 1u);
  EXPECT_EQ(spy.out, 0);
}

TEST_F(StepFeedTest, SaysWhatDoesNotFit) {
  StepFeed feed(spy);
  const auto refused = [&](const Status& status) {
    return status.code == Code::invalid_argument && status.message.find("does not fit") != std::string::npos;
  };
  EXPECT_TRUE(refused(feed.place(25, 10, 10)));  // slots
  EXPECT_TRUE(refused(feed.place(1, 590, 10)));  // length
  EXPECT_TRUE(refused(feed.place(21, 60, 10)));  // blocks: two each
  EXPECT_TRUE(refused(feed.prefill(601).status()));
  EXPECT_TRUE(spy.rows.empty());
  EXPECT_TRUE(feed.place(20, 60, 10).ok());
  EXPECT_TRUE(feed.place(1, 589, 10).ok());
  EXPECT_TRUE(feed.prefill(600).ok());
}

TEST_F(StepFeedTest, MoreStepsThanTheBlocksHoldAreAnError) {
  StepFeed feed(spy);
  ASSERT_TRUE(feed.place(2, 60, 4).ok());  // 65 tokens: two blocks
  EXPECT_TRUE(feed.decode(4).ok());
  const auto times = feed.decode(100);
  ASSERT_FALSE(times.ok());
  EXPECT_EQ(times.status().code, Code::invalid_argument);
}

// Answers every plan with row errors and every command with a failure.
class Broken final : public Executor {
 public:
  wire::Capacity capacity() const override {
    return {
        .kv_blocks = 99, .max_slots = 20, .max_tokens_per_step = 64, .max_model_len = 64, .vocab_size = 9};
  }
  std::string device() const override { return "broken"; }
  void reset(std::uint32_t) override {}
  Status submit(const wire::RecordView& record) override {
    is_plan_ = record.as<wire::StepPlan>() != nullptr;
    rows_.clear();
    if (is_plan_) {
      for (const wire::PlanRow& row : record.array(record.as<wire::StepPlan>()->rows)) {
        if ((row.flags & wire::kSamples) != 0) rows_.push_back({row.slot, 0, 0, row_error, 0});
      }
    }
    return {};
  }
  Result<bool> poll(std::vector<std::byte>& out, TimePoint) override {
    if (!device_error.ok()) return device_error;
    std::span<const std::byte> bytes;
    if (is_plan_) {
      result_.begin(0);
      const auto rows = result_.array(rows_);
      result_.record().rows = rows;
      bytes = result_.finish();
    } else {
      done_.begin(0);
      done_.record().failed = copies_fail;
      bytes = done_.finish();
    }
    out.assign(bytes.begin(), bytes.end());
    return true;
  }

  wire::RowError row_error = wire::RowError::none;
  std::uint32_t copies_fail = 0;
  Status device_error;

 private:
  bool is_plan_ = false;
  std::vector<wire::ResultRow> rows_;
  wire::RecordWriter<wire::StepResult> result_;
  wire::RecordWriter<wire::CacheDone> done_;
};

TEST(StepFeedErrors, ErrorsInResultsAreReported) {
  Broken executor;
  StepFeed feed(executor);
  EXPECT_TRUE(feed.prefill(3).ok());
  executor.row_error = wire::RowError::not_finite;
  EXPECT_NE(feed.prefill(3).status().message.find("not finite"), std::string::npos);
  executor.row_error = wire::RowError::no_such_slot;
  EXPECT_FALSE(feed.prefill(3).ok());
  executor.row_error = wire::RowError::none;
  EXPECT_TRUE(feed.place(10, 5, 5).ok());
  executor.copies_fail = 1;
  EXPECT_NE(feed.place(10, 5, 5).message.find("copied"), std::string::npos);
  executor.device_error = failure(Code::internal, "smoke");
  EXPECT_EQ(feed.prefill(3).status().message, "smoke");
}

// Copied blocks are as good as computed ones: each sequence gives the tokens that it gives alone.
TEST(StepFeedOnCpu, SequencesOfCopiedBlocksGiveTheSameTokens) {
  const config::ModelOptions model{.directory = model::test::golden_directory("gqa3_tied").string(),
                                   .dtype = config::DTypeOption::float32};
  auto files = model::open_model(model);
  ASSERT_TRUE(files.ok()) << files.status().message;
  wire::Capacity capacity{.kv_blocks = 40, .max_slots = 16, .max_tokens_per_step = 100, .max_model_len = 256};
  capacity.vocab_size = files->spec.vocab;
  config::Options options;
  options.model = model;
  options.device.cpu_threads = 2;
  auto executor = model::make_cpu_executor(*files, options, capacity);
  ASSERT_TRUE(executor.ok()) << executor.status().message;
  Spy spy(**executor);
  StepFeed feed(spy);
  constexpr int kSteps = 6;
  ASSERT_TRUE(feed.place(12, 70, kSteps).ok());  // more sequences than prompts are computed for
  spy.turn_page();
  ASSERT_TRUE(feed.decode(kSteps).ok());
  const auto running = spy.running;
  const auto sampled = spy.sampled;
  for (const std::uint32_t slot : {0u, 7u, 8u, 11u}) {
    const StartedSequence& s = running.at(slot);
    (*executor)->reset(1);
    model::test::Engine engine(**executor);
    const auto alone =
        engine.run({{.prompt = s.ids, .outputs = kSteps, .sampling = s.sampling, .blocks = {30, 31}}});
    EXPECT_EQ(alone[0].tokens, sampled.at(slot)) << "slot " << slot;
  }
}

}  // namespace
}  // namespace troupe::bench
