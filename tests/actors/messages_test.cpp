// Messages as bytes: what crosses to another process.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "actors/link/message_codec.h"

namespace troupe {
namespace {

template <class Message>
Bytes bytes_of(const Message& message) {
  Bytes bytes;
  encode(message, bytes);
  return bytes;
}
std::span<const std::byte> view(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }

template <class Message>
Message there_and_back(const Message& message) {
  Message read;
  EXPECT_TRUE(decode(view(bytes_of(message)), read));
  return read;
}

Submit some_submit() {
  Submit submit;
  submit.request_id = "r1";
  submit.prefix.salt = "salt";
  submit.priority = -3;
  submit.exchange = 9;
  submit.attempt = 2;
  submit.alone = true;
  for (std::uint64_t i = 0; i < 3; ++i) {
    SequenceSpec& spec = submit.sequences.emplace_back();
    spec.key = {i, ~i};
    if (i == 0) spec.prompt = {1, 2, 3};
    spec.prompt_tokens = 3;
    spec.output = {7, 8};
    spec.sampling.seed = 0xffff'ffff'ffff'fffeu;
    spec.logit_bias = {{5, -std::numeric_limits<float>::infinity()}, {6, 0.1f}};
    spec.stop_ids = {2};
    spec.prediction = {static_cast<TokenId>(i)};
  }
  return submit;
}

TEST(Messages, ASubmissionKeepsEveryField) {
  const Submit read = there_and_back(some_submit());
  EXPECT_EQ(bytes_of(read), bytes_of(some_submit()));
  ASSERT_EQ(read.sequences.size(), 3u);
  EXPECT_EQ(read.sequences[0].prompt, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(read.sequences[2].output, (std::vector<TokenId>{7, 8}));
  EXPECT_EQ(read.sequences[1].sampling.seed, 0xffff'ffff'ffff'fffeu);
  EXPECT_TRUE(read.alone);
  EXPECT_EQ(read.sequences[1].prediction, std::vector<TokenId>{1});
  EXPECT_EQ(read.priority, -3);
}

TEST(Messages, DraftsAreCountedBehindTheLinkAsBefore) {
  StepStats stats;
  stats.drafts.add_row(8, 5, 6);
  stats.drafts.add_row(0, 0, 1);
  EXPECT_EQ(there_and_back(stats).drafts, stats.drafts);
  StepTokens step;
  SequenceTokens& tokens = step.sequences.emplace_back();
  tokens.drafted = 4;
  tokens.accepted = 3;
  tokens.predicted_accepted = 2;
  tokens.predicted_rejected = 1;
  const SequenceTokens read = there_and_back(step).sequences.at(0);
  EXPECT_EQ(read.drafted, 4);
  EXPECT_EQ(read.accepted, 3);
  EXPECT_EQ(read.predicted_accepted, 2);
  EXPECT_EQ(read.predicted_rejected, 1);
}

TEST(Messages, EachEntryOfAStepKeepsItsNumbersAndItsError) {
  StepTokens step;
  for (std::int32_t i = 0; i < 3; ++i) {
    SequenceTokens& entry = step.sequences.emplace_back();
    entry.key = {7, static_cast<std::uint64_t>(i)};
    entry.scheduled_ns = std::int64_t{1} << 40;
    entry.position = i;
    if (i == 1) continue;
    entry.finish = i == 0 ? Finish::error : Finish::aborted;
    step.set_error(entry, "why " + std::to_string(i));
    step.scores.push_back({i, {2, -0.5f}, 3, 4});
  }
  const StepTokens read = there_and_back(step);
  ASSERT_EQ(read.sequences.size(), 3u);
  for (std::int32_t i = 0; i < 3; ++i) {
    const SequenceTokens& entry = read.sequences[static_cast<std::size_t>(i)];
    EXPECT_EQ(entry.key, (RequestKey{7, static_cast<std::uint64_t>(i)}));
    EXPECT_EQ(entry.scheduled_ns, std::int64_t{1} << 40);
    EXPECT_EQ(entry.position, i);
    EXPECT_EQ(read.error_of(entry), i == 1 ? "" : "why " + std::to_string(i));
  }
  ASSERT_EQ(read.scores.size(), 2u);
  EXPECT_EQ(read.scores[1].position, 2);
  EXPECT_EQ(read.scores[1].chosen.logprob, -0.5f);
  EXPECT_EQ(read.scores[1].tops, 4);
}

TEST(Messages, FloatsKeepTheirBits) {
  StepTokens step;
  for (const float value : {-std::numeric_limits<float>::infinity(), std::nanf("7"), -0.0f, 1e-45f, 0.1f}) {
    step.tops.push_back({1, value});
  }
  const StepTokens read = there_and_back(step);
  ASSERT_EQ(read.tops.size(), step.tops.size());
  for (std::size_t i = 0; i < step.tops.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(read.tops[i].logprob),
              std::bit_cast<std::uint32_t>(step.tops[i].logprob));
  }
}

TEST(Messages, AConversationKeepsItsValuesAndTheOrderOfItsKeys) {
  Encode job;
  job.request_id = "r";
  auto messages = http::parse_json(R"([{"role":"user","content":"é","b":1,"a":[2.5,null,true]}])", {8, 100});
  ASSERT_TRUE(messages.ok());
  job.source.conversation.messages = *std::move(messages);
  job.source.conversation.without_template = true;
  job.media = {{MediaKind::video, {2, 4, 6}}};
  job.media_fields = {"messages.0.content.1"};
  job.lane = TextLane::background;
  const Encode read = there_and_back(job);
  EXPECT_EQ(read.request_id, "r");
  EXPECT_EQ(http::to_text(read.source.conversation.messages),
            http::to_text(job.source.conversation.messages));
  EXPECT_TRUE(read.source.conversation.tools.is_null());
  EXPECT_TRUE(read.source.conversation.without_template);
  ASSERT_EQ(read.media.size(), 1u);
  EXPECT_EQ(read.media[0].grid, job.media[0].grid);
  EXPECT_EQ(read.media_fields, job.media_fields);
  EXPECT_EQ(read.lane, job.lane);
}

TEST(Messages, EveryCutIsFoundAndSoIsWhatFollowsTheEnd) {
  Bytes bytes = bytes_of(some_submit());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    Submit read;
    EXPECT_FALSE(decode(view(bytes).first(length), read)) << length;
  }
  bytes.push_back(0);
  Submit read;
  EXPECT_FALSE(decode(view(bytes), read));
}

TEST(Messages, CountsThatTheBytesCannotFillAllocateNothing) {
  Bytes bytes = bytes_of(some_submit());
  const std::uint32_t count = 0xffff'fff0;
  std::memcpy(bytes.data(), &count, sizeof count);  // of the sequences
  Submit read;
  EXPECT_FALSE(decode(view(bytes), read));
  EXPECT_TRUE(read.sequences.empty() || read.sequences.size() < bytes.size());
}

TEST(Messages, AnyBytesAreReadOrRefused) {
  std::mt19937 random(7);
  const Bytes good = bytes_of(some_submit());
  for (int i = 0; i < 20'000; ++i) {
    Bytes bytes = good;
    for (int change = 0; change < 4; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    Submit read;
    if (decode(view(bytes), read)) {
      EXPECT_EQ(bytes_of(read).size(), bytes.size());
    }
    Compile form;
    (void)decode(view(bytes), form);
    StepTokens step;
    (void)decode(view(bytes), step);
  }
}

}  // namespace
}  // namespace troupe
