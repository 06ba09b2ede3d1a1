// Requests with pictures: measured before their text, decoded once they fit, released once.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "actors/session/session_book.h"
#include "support/byte_tokenizer.h"

namespace troupe {
namespace {

using testing::ByteTokenizer;

constexpr PatchGrid kGrid{1, 4, 4};  // four tokens

class SessionMediaTest : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kExchange = 5;

  SessionMediaTest() {
    Effects none;
    book_.engine_up({0, 1}, 0, none);
  }

  static Ask ask(Api api = Api::chat) {
    Ask out;
    out.exchange = kExchange;
    out.io = 2;
    out.api = api;
    out.request_id = "r5";
    out.client = "key:a";
    out.prefix.salt = "salt";
    out.body_bytes = 2000;
    out.answer.id = "id-1";
    for (const char* param : {"messages.0.content.0", "messages.0.content.2"}) {
      http::MediaSource& source = out.source.media.emplace_back();
      source.file = std::string(900, 'A');
      source.param = param;
    }
    return out;
  }

  /// "a", a picture, "b", a picture and `more` bytes of text.
  static Encoded encoded(std::size_t more = 1) {
    Encoded out;
    std::vector<TokenId>& ids = out.prompts.emplace_back();
    const auto put = [&ids](TokenId id, std::size_t count) { ids.insert(ids.end(), count, id); };
    put('a', 1);
    put('I', 4);
    put('b', 1);
    put('I', 4);
    put('c', more);
    out.media = {{MediaKind::image, kGrid, 1}, {MediaKind::image, kGrid, 6}};
    return out;
  }
  static MeasuredMedia sizes() { return {{}, {{MediaKind::image, kGrid}, {MediaKind::image, kGrid}}}; }
  static MediaReady patches() {
    return {{},
            {{MediaKind::image, kGrid, {1, 2}, {4096, 9}}, {MediaKind::image, kGrid, {3, 4}, {8192, 10}}}};
  }

  /// The request until it is to be decoded.
  void open(Ask request, Encoded prompt) {
    book_.open(std::move(request));
    ASSERT_TRUE(book_.take_media(kExchange));
    ASSERT_TRUE(book_.measured(kExchange, sizes(), 5, effects_));
    ASSERT_TRUE(book_.take_encode(kExchange));
    submit_ = book_.encoded(kExchange, std::move(prompt), 10, effects_);
  }
  nlohmann::json error() const {
    return effects_.outputs.empty() ? nlohmann::json()
                                    : nlohmann::json::parse(effects_.outputs.back().body)["error"];
  }

  std::shared_ptr<const SessionContext> context_ = std::make_shared<SessionContext>(
      SessionContext{std::make_shared<ByteTokenizer>(), {ByteTokenizer::kEos}, 64, 258});
  SessionBook book_{context_, KeySource({1, 0})};
  Effects effects_;
  Submit submit_;
};

TEST_F(SessionMediaTest, ImagesAreMeasuredThenEncodedThenDecodedThenSubmitted) {
  book_.open(ask());
  EXPECT_EQ(book_.text_bytes(kExchange), 200) << "the images are not for a tokenizer";
  const auto job = book_.take_media(kExchange);
  ASSERT_TRUE(job);
  EXPECT_EQ(job->io, 2u);
  EXPECT_EQ(job->exchange, kExchange);
  EXPECT_EQ(job->client, "key:a");
  EXPECT_EQ(job->salt, "salt");
  EXPECT_EQ(job->items.size(), 2u);
  EXPECT_FALSE(book_.take_media(kExchange));
  ASSERT_TRUE(book_.measured(kExchange, sizes(), 5, effects_));
  const auto text = book_.take_encode(kExchange);
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->source.media.empty()) << "a text process sees no image";
  ASSERT_EQ(text->media.size(), 2u);
  EXPECT_EQ(text->media[1].grid, kGrid);
  EXPECT_EQ(text->media_fields, (std::vector<std::string>{"messages.0.content.0", "messages.0.content.2"}));

  EXPECT_FALSE(book_.take_prepare(kExchange));
  EXPECT_TRUE(book_.encoded(kExchange, encoded(), 10, effects_).sequences.empty());
  EXPECT_TRUE(book_.take_prepare(kExchange));
  EXPECT_FALSE(book_.take_prepare(kExchange));
  EXPECT_TRUE(book_.submit(kExchange, 11, effects_).sequences.empty()) << "it has no patches yet";
  const Submit submit = book_.prepared(kExchange, patches(), 12, effects_);
  ASSERT_EQ(submit.sequences.size(), 1u);
  ASSERT_EQ(submit.sequences[0].media.size(), 2u);
  EXPECT_EQ(submit.sequences[0].media[1].item.first, 6);
  EXPECT_EQ(submit.sequences[0].media[1].contents, (BlockHash{3, 4}));
  EXPECT_EQ(submit.sequences[0].media[1].place, (wire::PatchPlace{8192, 10}));
  EXPECT_TRUE(effects_.media.empty()) << "the patches stay until the request ends";
  book_.withdraw(kExchange, 20, effects_);
  EXPECT_EQ(effects_.media, std::vector<std::uint64_t>{kExchange});
}

TEST_F(SessionMediaTest, OnlyTheSequenceThatBringsThePromptBringsItsImages) {
  Ask request = ask();
  request.generation.choices = 2;
  open(std::move(request), encoded());
  ASSERT_TRUE(book_.take_prepare(kExchange));
  const Submit submit = book_.prepared(kExchange, patches(), 12, effects_);
  ASSERT_EQ(submit.sequences.size(), 2u);
  EXPECT_EQ(submit.sequences[0].media.size(), 2u);
  EXPECT_TRUE(submit.sequences[1].media.empty());
}

TEST_F(SessionMediaTest, AnotherEngineGetsTheSameImages) {
  open(ask(), encoded());
  ASSERT_TRUE(book_.take_prepare(kExchange));
  const Submit first = book_.prepared(kExchange, patches(), 12, effects_);
  book_.engine_down({0, 1}, 20, effects_);
  EXPECT_TRUE(effects_.media.empty());
  EXPECT_EQ(book_.engine_up({0, 2}, 30, effects_), std::vector<std::uint64_t>{kExchange});
  EXPECT_FALSE(book_.take_prepare(kExchange)) << "they are in memory";
  const Submit again = book_.submit(kExchange, 31, effects_);
  ASSERT_EQ(again.sequences.size(), 1u);
  EXPECT_EQ(again.attempt, 1u);
  ASSERT_EQ(again.sequences[0].media.size(), 2u);
  EXPECT_EQ(again.sequences[0].media[0].place, first.sequences[0].media[0].place);
}

TEST_F(SessionMediaTest, AnEngineThatComesWhileImagesAreDecodedGetsNothingYet) {
  open(ask(), encoded());
  ASSERT_TRUE(book_.take_prepare(kExchange));
  book_.engine_down({0, 1}, 20, effects_);
  EXPECT_TRUE(book_.engine_up({0, 2}, 30, effects_).empty());
  EXPECT_EQ(book_.prepared(kExchange, patches(), 40, effects_).sequences.size(), 1u);
}

TEST_F(SessionMediaTest, APromptThatIsTooLongIsRefusedBeforeItIsDecoded) {
  open(ask(), encoded(60));
  EXPECT_FALSE(book_.take_prepare(kExchange));
  EXPECT_EQ(effects_.media, std::vector<std::uint64_t>{kExchange});
  EXPECT_EQ(error()["code"], "context_length_exceeded");
  const std::string message = error()["message"];
  for (const char* words : {"maximum context length is 64", "62 of text", "8 of images", "detail \"low\"",
                            "mm_processor_kwargs", "fewer images", "has 70 (62"})
    EXPECT_NE(message.find(words), std::string::npos) << message;
}

TEST_F(SessionMediaTest, APromptWithImagesIsNotCut) {
  Ask request = ask();
  request.source.keep_tokens = 9;
  open(std::move(request), encoded());
  EXPECT_FALSE(book_.take_prepare(kExchange));
  EXPECT_EQ(error()["param"], "truncate_prompt_tokens");
  Ask fits = ask();
  fits.source.keep_tokens = 11;
  open(std::move(fits), encoded());
  EXPECT_TRUE(book_.take_prepare(kExchange));
}

TEST_F(SessionMediaTest, ARefusalOfMediaEndsTheRequestAndReleasesIt) {
  book_.open(ask());
  ASSERT_TRUE(book_.take_media(kExchange));
  const Status refusal = invalid("messages.0.content.2 is empty", "messages.0.content.2", "invalid_image");
  EXPECT_FALSE(book_.measured(kExchange, {refusal, {}}, 5, effects_));
  EXPECT_EQ(error()["param"], "messages.0.content.2");
  EXPECT_EQ(effects_.media.size(), 1u);

  open(ask(), encoded());
  ASSERT_TRUE(book_.take_prepare(kExchange));
  EXPECT_TRUE(book_.prepared(kExchange, {refusal, {}}, 12, effects_).sequences.empty());
  EXPECT_EQ(effects_.media.size(), 2u);
  EXPECT_EQ(book_.size(), 0u);
}

TEST_F(SessionMediaTest, HoweverARequestEndsItReleasesItsImagesOnce) {
  const std::vector<std::function<void()>> ends = {
      [&] { book_.withdraw(kExchange, 20, effects_); },
      [&] { book_.expire(kExchange, 20, Slice(), effects_); },
      [&] { book_.fail(kExchange, failure(Code::internal, "x"), 20, effects_); },
      [&] { book_.fail_all(failure(Code::unavailable, "x"), 20, effects_); },
  };
  for (int stage = 0; stage < 4; ++stage) {
    for (const auto& end : ends) {
      effects_ = {};
      book_.open(ask());
      if (stage >= 1) {
        ASSERT_TRUE(book_.take_media(kExchange));
      }
      if (stage >= 2) {
        ASSERT_TRUE(book_.measured(kExchange, sizes(), 5, effects_));
        ASSERT_TRUE(book_.take_encode(kExchange));
        (void)book_.encoded(kExchange, encoded(), 10, effects_);
        ASSERT_TRUE(book_.take_prepare(kExchange));
      }
      if (stage >= 3) (void)book_.prepared(kExchange, patches(), 12, effects_);
      end();
      end();
      EXPECT_EQ(effects_.media.size(), stage == 0 ? 0u : 1u) << stage;
      EXPECT_FALSE(book_.measured(kExchange, sizes(), 30, effects_)) << "an answer may come late";
      (void)book_.prepared(kExchange, patches(), 30, effects_);
      EXPECT_EQ(effects_.media.size(), stage == 0 ? 0u : 1u);
    }
  }
}

TEST_F(SessionMediaTest, TokensAreCountedWithoutDecoding) {
  open(ask(Api::tokenize), [] {
    Encoded out = encoded();
    out.answer = "{\"count\":11}";
    return out;
  }());
  EXPECT_FALSE(book_.take_prepare(kExchange));
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].body, "{\"count\":11}");
  EXPECT_EQ(effects_.media.size(), 1u);
}

TEST_F(SessionMediaTest, PlacesThatCannotBeEndTheRequest) {
  const std::vector<std::vector<MediaItem>> wrong = {
      {},
      {{MediaKind::image, kGrid, 1}},
      {{MediaKind::image, kGrid, 1}, {MediaKind::image, kGrid, 4}},   // they overlap
      {{MediaKind::image, kGrid, 1}, {MediaKind::image, kGrid, 8}},   // behind the end
      {{MediaKind::image, kGrid, -1}, {MediaKind::image, kGrid, 6}},  // before the first
      {{MediaKind::image, {1, 2, 2}, 1}, {MediaKind::image, kGrid, 6}},
      {{MediaKind::video, kGrid, 1}, {MediaKind::image, kGrid, 6}},
  };
  for (const auto& items : wrong) {
    effects_ = {};
    Encoded prompt = encoded();
    prompt.media = items;
    open(ask(), std::move(prompt));
    ASSERT_EQ(effects_.outputs.size(), 1u);
    EXPECT_EQ(effects_.outputs[0].status, 500);
    EXPECT_EQ(effects_.media.size(), 1u);
  }
}

TEST_F(SessionMediaTest, PatchesOfOtherImagesEndTheRequest) {
  open(ask(), encoded());
  ASSERT_TRUE(book_.take_prepare(kExchange));
  MediaReady other = patches();
  other.items[1].grid = {1, 2, 2};
  EXPECT_TRUE(book_.prepared(kExchange, std::move(other), 12, effects_).sequences.empty());
  ASSERT_EQ(effects_.outputs.size(), 1u);
  EXPECT_EQ(effects_.outputs[0].status, 500);
}

}  // namespace
}  // namespace troupe
