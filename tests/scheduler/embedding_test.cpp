// Sequences that are embedded: one row that samples, whose result brings the embedding of the prompt.
#include "tests/scheduler/rig.h"

namespace troupe::test {
namespace {

constexpr std::int32_t kWidth = 3;

struct EmbeddingRig : Rig {
  explicit EmbeddingRig(std::int32_t width = kWidth, config::SchedulerOptions options = {})
      : Rig({}, options) {
    capacity.embedding_width = width;
    scheduler.detach(Orphans::fail, "another worker", out);
    attach(2);
  }

  /// A request with `count` prompts of `tokens` tokens each.
  Status embed(std::int32_t tokens, std::int32_t count = 1) {
    Submit request;
    for (std::int32_t i = 0; i < count; ++i) {
      SequenceSpec& spec = request.sequences.emplace_back();
      spec.key = {1, ++keys};
      spec.prompt.assign(static_cast<std::size_t>(tokens), 3);
      spec.prompt_tokens = tokens;
      spec.max_output_tokens = 1;
      spec.sampling.embeds = 1;
    }
    const Status status = scheduler.submit(request);
    exchange();
    return status;
  }

  /// Commits the result of the oldest plan. Each row that samples has an embedding of `width` numbers; the
  /// first begins with 1, the next with 2, and so on.
  Committed commit_embeddings(std::int32_t width = kWidth) {
    wire::RecordWriter<wire::StepResult> writer;
    writer.begin(epoch);
    std::vector<wire::ResultRow> rows;
    std::vector<TokenId> tokens;
    std::vector<wire::Embedding> embeddings;
    for (const wire::PlanRow& row : steps.front()) {
      if ((row.flags & wire::kSamples) == 0) continue;
      rows.push_back({row.slot, static_cast<std::int32_t>(tokens.size()), 1, wire::RowError::none, 0});
      tokens.push_back(kStop);
      const std::vector<float> values(static_cast<std::size_t>(width), static_cast<float>(rows.size()));
      if (width > 0) embeddings.push_back({row.slot, writer.array(values)});
    }
    const auto row_span = writer.array(rows);
    const auto token_span = writer.array(tokens);
    const auto embedding_span = writer.array(embeddings);
    writer.record().step = ++done;
    writer.record().rows = row_span;
    writer.record().tokens = token_span;
    writer.record().embeddings = embedding_span;
    steps.erase(steps.begin());
    const Committed committed = scheduler.commit(writer.finish(), out);
    exchange();
    return committed;
  }

  std::uint64_t keys = 0;
};

TEST(Embedding, ComesWithTheTokenBehindThePrompt) {
  EmbeddingRig rig;
  ASSERT_TRUE(rig.embed(5, 2).ok());
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.commit_embeddings(), Committed::applied);
  const std::vector<SequenceTokens> events = rig.events();
  ASSERT_EQ(events.size(), 2u);
  const StepTokens& step = rig.out.hosts.front().step;
  ASSERT_EQ(step.embeddings.size(), 2u * kWidth);
  for (const SequenceTokens& one : events) {
    EXPECT_EQ(one.finish, Finish::length);
    EXPECT_EQ(one.tokens, 1);
    ASSERT_EQ(one.embedding, kWidth);
    const auto first = static_cast<std::size_t>(one.first_embedding);
    EXPECT_EQ(step.embeddings[first], static_cast<float>(one.key.lo));
    EXPECT_EQ(step.embeddings[first + 2], static_cast<float>(one.key.lo));
  }
  EXPECT_FALSE(rig.plan()) << "nothing is left to run";
}

TEST(Embedding, ALongPromptBringsItWithItsLastChunk) {
  EmbeddingRig rig;
  ASSERT_TRUE(rig.embed(40).ok());
  int steps = 0;
  while (rig.plan()) {
    ++steps;
    ASSERT_EQ(rig.commit_embeddings(), Committed::applied);
    if (!rig.events().empty()) break;
  }
  EXPECT_GT(steps, 1);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events().front().embedding, kWidth);
}

TEST(Embedding, ThePromptMayFillTheModel) {
  const std::int32_t longest = Setting{}.max_length;
  EmbeddingRig rig;
  EXPECT_FALSE(rig.embed(longest + 1).ok());
  ASSERT_TRUE(rig.embed(longest).ok());
  bool ended = false;
  while (!ended && rig.plan()) {
    ASSERT_EQ(rig.commit_embeddings(), Committed::applied);
    ended = !rig.events().empty();
  }
  ASSERT_TRUE(ended);
  EXPECT_EQ(rig.events().front().finish, Finish::length);
  EXPECT_EQ(rig.events().front().embedding, kWidth);
}

TEST(Embedding, AResultWithoutItOrOfAnotherWidthIsAnError) {
  for (const std::int32_t width : {0, kWidth - 1, kWidth + 1}) {
    EmbeddingRig rig;
    ASSERT_TRUE(rig.embed(5).ok());
    ASSERT_TRUE(rig.plan());
    ASSERT_EQ(rig.commit_embeddings(width), Committed::applied);
    ASSERT_EQ(rig.events().size(), 1u);
    EXPECT_EQ(rig.events().front().finish, Finish::error) << width;
    EXPECT_EQ(rig.events().front().embedding, 0);
    EXPECT_FALSE(rig.error_of(rig.events().front().key).empty());
  }
}

TEST(Embedding, AWorkerWithoutThemIsGivenNone) {
  EmbeddingRig rig(0);
  const Status status = rig.embed(5);
  EXPECT_EQ(status.reason, "not_offered");
  EXPECT_EQ(status.param, "input");
  EXPECT_FALSE(rig.plan());
}

TEST(Embedding, TheQueueCountsTokensOfItAndNoSequences) {
  config::SchedulerOptions options;
  options.max_queued_requests = 4;
  options.max_queued_tokens = 100;
  EmbeddingRig rig(kWidth, options);
  EXPECT_TRUE(rig.embed(2, 30).ok());
  EXPECT_TRUE(rig.submit(1000, 2, 1).ok()) << "an answer finds room beside them";
  EXPECT_EQ(rig.embed(2, 51).reason, "too_many_tokens");
}

TEST(Embedding, IsComputedAgainByTheNextWorker) {
  EmbeddingRig rig;
  ASSERT_TRUE(rig.embed(5).ok());
  ASSERT_TRUE(rig.plan());
  rig.scheduler.detach(Orphans::requeue, "it died", rig.out);
  EXPECT_TRUE(rig.events().empty());
  rig.attach(3);
  rig.exchange();
  ASSERT_TRUE(rig.plan());
  ASSERT_EQ(rig.commit_embeddings(), Committed::applied);
  ASSERT_EQ(rig.events().size(), 1u);
  EXPECT_EQ(rig.events().front().embedding, kWidth);
}

}  // namespace
}  // namespace troupe::test
