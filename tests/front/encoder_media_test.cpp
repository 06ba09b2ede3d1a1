// Images and videos in the prompt of a chat.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "actors/tokenizer/encoder.h"
#include "http/api/json_body.h"

namespace troupe {
namespace {

using http::Json;

const std::string kFolder = std::string(TROUPE_TEST_DATA) + "/vision";

std::shared_ptr<const Tokenizer> tokenizer_that_sees() {
  static const auto loaded = Tokenizer::load(kFolder);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message;
  return loaded.ok() ? *loaded : nullptr;
}

TokenId id_of(const std::string& text) { return tokenizer_that_sees()->token_id(text).value_or(-1); }

MediaTokens media_tokens() { return {id_of("<|IMAGE_PLACEHOLDER|>"), id_of("<|VIDEO_PLACEHOLDER|>")}; }

Encoder encoder_of(std::shared_ptr<const ChatTemplate> chat, std::int32_t max_model_len = 0) {
  return Encoder(tokenizer_that_sees(), std::move(chat),
                 max_model_len > 0 ? bounds_of(*tokenizer_that_sees(), max_model_len) : EncoderBounds{},
                 media_tokens());
}

Encoder encoder_of(const std::string& source, std::int32_t max_model_len = 0) {
  auto compiled = ChatTemplate::compile(source);
  EXPECT_TRUE(compiled.ok()) << compiled.status().message;
  return encoder_of(*compiled, max_model_len);
}

std::shared_ptr<const ChatTemplate> own_template() {
  auto loaded = ChatTemplate::load(kFolder);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message;
  return *loaded;
}

Json conversation_of(const std::string& text) {
  auto json = http::parse_json(text, {.depth = 64, .elements = 1'000'000});
  EXPECT_TRUE(json.ok()) << json.status().message;
  return json.ok() ? *std::move(json) : Json();
}

Encode job_of(const std::string& messages, std::vector<MediaGrid> media) {
  Encode job;
  job.source.conversation.messages = conversation_of(messages);
  job.media = std::move(media);
  return job;
}

MediaGrid image(std::int32_t rows, std::int32_t columns) { return {MediaKind::image, {1, rows, columns}}; }
MediaGrid video(std::int32_t frames, std::int32_t rows, std::int32_t columns) {
  return {MediaKind::video, {frames, rows, columns}};
}

/// The prompt with `<kind:count>` for the tokens of each item.
std::string shown(const Encoded& encoded) {
  EXPECT_TRUE(encoded.status.ok()) << encoded.status.message;
  if (!encoded.status.ok()) return encoded.status.message;
  std::string text;
  auto item = encoded.media.begin();
  const std::vector<TokenId>& ids = encoded.prompts.at(0);
  for (std::size_t at = 0; at < ids.size(); ++at) {
    if (item != encoded.media.end() && at == static_cast<std::size_t>(item->first)) {
      text += (item->kind == MediaKind::image ? "<image:" : "<video:") + std::to_string(item->grid.tokens()) +
              ">";
      for (; at < static_cast<std::size_t>(item->end()); ++at) EXPECT_EQ(ids.at(at), media_tokens().item);
      --at;
      ++item;
      continue;
    }
    text += tokenizer_that_sees()->token_bytes(ids[at]);
  }
  EXPECT_EQ(item, encoded.media.end());
  return text;
}

constexpr const char* kTwo =
    R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"},{"type":"text","text":"b"},{"type":"video_url"}]}])";
const std::vector<MediaGrid> kTwoGrids{image(4, 6), video(4, 2, 4)};
constexpr const char* kOne =
    R"([{"role":"user","content":[{"type":"image_url"},{"type":"text","text":"q"}]}])";

// The ids that Jinja2, the package tokenizers and the grids of Pillow's patches give.
TEST(EncoderMedia, PromptsAreThoseOfTheReference) {
  std::ifstream file(kFolder + "/answers.json");
  const auto answers = nlohmann::json::parse(file);
  const Encoder encoder = encoder_of(own_template());
  for (const auto& [name, answer] : answers["prompts"].items()) {
    std::vector<MediaGrid> grids;
    std::vector<MediaItem> items;
    for (const auto& item : answer["items"]) {
      grids.push_back(image(item["rows"], item["columns"]));
      items.push_back({grids.back().kind, grids.back().grid, item["first"]});
    }
    const Encoded encoded = encoder.encode(job_of(answer["messages"].dump(), grids));
    ASSERT_TRUE(encoded.status.ok()) << encoded.status.message;
    EXPECT_EQ(encoded.prompts.at(0), answer["ids"].get<std::vector<TokenId>>()) << name;
    EXPECT_EQ(encoded.media, items) << name;
  }
}

// Templates tell items by their type or by a member, and some read the address that is not there.
TEST(EncoderMedia, EveryKindOfTemplateGetsItsItems) {
  const std::string image_text = "<|IMAGE_START|><|image@placeholder|><|IMAGE_END|>";
  const std::string video_text = "<|VIDEO_START|><|video@placeholder|><|VIDEO_END|>";
  const auto looped = [](const std::string& is_image, const std::string& image, const std::string& is_video,
                         const std::string& video) {
    return "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for item in "
           "m.content %}"
           "{% if item.type == 'text' %}{{ item.text }}{% elif " +
           is_image + " %}" + image + "{% elif " + is_video + " %}" + video +
           "{% endif %}{% endfor %}{% endif %}{% endfor %}";
  };
  const std::string expected = "a<|IMAGE_START|><image:6><|IMAGE_END|>b<|VIDEO_START|><video:4><|VIDEO_END|>";
  for (const std::string& source : {
           looped("item.type == 'image_url'", image_text, "item.type == 'video_url'", video_text),
           looped("item.type == 'image'", image_text, "item.type == 'video'", video_text),
           looped("item.type in ['image', 'image_url']", image_text, "item.type in ['video', 'video_url']",
                  video_text),
           looped("'image' in item", image_text, "'video' in item", video_text),
           looped("item.image_url is defined", image_text, "item.video_url is defined", video_text),
           looped("'image_url' in item and item['image_url']", "{{ item.image_url.url }}" + image_text,
                  "'video_url' in item and item.video_url",
                  "{{ item.video_url.url ~ item.url }}" + video_text),
           looped("item.type == 'image_url'", "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
                  "item.type == 'video_url'", "<|VIDEO_START|><|VIDEO_PLACEHOLDER|><|VIDEO_END|>"),
       }) {
    EXPECT_EQ(shown(encoder_of(source).encode(job_of(kTwo, kTwoGrids))), expected) << source;
  }
  const std::string numbered =
      looped("item.type == 'image_url'", "{% set count.n = count.n + 1 %}Picture {{ count.n }}:" + image_text,
             "item.type == 'video_url'", " Video 1:" + video_text);
  EXPECT_EQ(
      shown(encoder_of("{% set count = namespace(n=0) %}" + numbered).encode(job_of(kTwo, kTwoGrids))),
      "aPicture 1:<|IMAGE_START|><image:6><|IMAGE_END|>b Video 1:<|VIDEO_START|><video:4><|VIDEO_END|>");
}

TEST(EncoderMedia, WhatAUserWritesIsNoItem) {
  const Encoder encoder = encoder_of(own_template());
  const std::string words =
      "<|image@placeholder|><|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|><|video@placeholder|><|VIDEO_"
      "START|>"
      "<|VIDEO_PLACEHOLDER|>";
  const auto plain = tokenizer_that_sees()->encode(words, SpecialTokens::plain);
  for (const std::string& content :
       {"\"" + words + "\"", R"([{"type":"text","text":")" + words + R"("},{"type":"image_url"}])",
        R"([{"type":"image_url"},{"type":"text","text":")" + words + R"("}])"}) {
    const bool has_item = content.front() == '[';
    const Encoded encoded =
        encoder.encode(job_of(R"([{"role":"user","content":)" + content + "}]",
                              has_item ? std::vector{image(4, 4)} : std::vector<MediaGrid>{}));
    ASSERT_TRUE(encoded.status.ok()) << encoded.status.message;
    const auto& ids = encoded.prompts.at(0);
    EXPECT_NE(std::search(ids.begin(), ids.end(), plain.begin(), plain.end()), ids.end()) << content;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), media_tokens().item), has_item ? 4 : 0) << content;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), media_tokens().video), 0) << content;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), id_of("<|IMAGE_START|>")), has_item ? 1 : 0) << content;
    EXPECT_EQ(encoded.media.size(), has_item ? 1u : 0u);
  }
}

// Also where text of the template and of the user together spell a mark.
TEST(EncoderMedia, AMarkIsAllTheTemplatesOwn) {
  const Encoder encoder = encoder_of(
      "{% for m in messages %}{% if m.content is string %}{{ '<|image@' + m.content }}{% else %}{% for p in "
      "m.content %}"
      "{{ p.text if p.type == 'text' else '<|image@placeholder|>' }}{% endfor %}{% endif %}{% endfor %}");
  const Encoded encoded = encoder.encode(job_of(R"([{"role":"user","content":"placeholder|>"}])", {}));
  ASSERT_TRUE(encoded.status.ok()) << encoded.status.message;
  EXPECT_EQ(encoded.prompts.at(0),
            tokenizer_that_sees()->encode("<|image@placeholder|>", SpecialTokens::plain));
}

TEST(EncoderMedia, ATemplateWithoutAPlaceIsNamed) {
  const Encoder ignores = encoder_of(
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
      "{{ p.text }}{% endfor %}{% endif %}{% endfor %}");
  Encode job = job_of(kTwo, kTwoGrids);
  job.media_fields = {"messages.0.content.1.image_url", "messages.0.content.3.video_url"};
  const Encoded none = ignores.encode(job);
  EXPECT_EQ(none.status.code, Code::invalid_argument);
  EXPECT_EQ(none.status.reason, "no_media_place");
  EXPECT_EQ(none.status.param, "messages.0.content.1.image_url");
  EXPECT_NE(none.status.message.find("no place for images"), std::string::npos) << none.status.message;

  // Of images alone; in another order; more than there are.
  const std::string of_images =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
      "{{ p.text if p.type == 'text' else '<|image@placeholder|>' if p.type == 'image_url' else '' }}{% "
      "endfor %}"
      "{% endif %}{% endfor %}";
  const Encoded second = encoder_of(of_images).encode(job);
  EXPECT_NE(second.status.message.find("no place for videos"), std::string::npos) << second.status.message;
  EXPECT_EQ(second.status.param, "messages.0.content.3.video_url");
  const Encoded turned =
      encoder_of("{{ '<|video@placeholder|><|image@placeholder|>' }}").encode(job_of(kTwo, kTwoGrids));
  EXPECT_NE(turned.status.message.find("order"), std::string::npos) << turned.status.message;
  const Encoded more = encoder_of("{{ '<|image@placeholder|>' * 3 }}").encode(job_of(kOne, {image(4, 4)}));
  EXPECT_NE(more.status.message.find("3 places"), std::string::npos) << more.status.message;
  EXPECT_FALSE(Encoder(tokenizer_that_sees(), own_template()).encode(job_of(kOne, {image(4, 4)})).status.ok())
      << "of a model that does not see";
}

TEST(EncoderMedia, ARawPlaceholderIsRefused) {
  const Encoder encoder = encoder_of(own_template());
  const auto [item, of_video] = media_tokens();
  for (const TokenId id : {item, of_video}) {
    Encode job;
    job.api = Api::completions;
    job.source.ids = {{40, 41}, {40, id, 41}};
    Encoded refused = encoder.encode(job);
    EXPECT_EQ(refused.status.reason, "raw_placeholder");
    EXPECT_EQ(refused.status.param, "prompt");
    EXPECT_NE(refused.status.message.find("token 1"), std::string::npos) << refused.status.message;
    job.api = Api::chat;
    refused = encoder.encode(job);
    EXPECT_EQ(refused.status.param, "prompt_token_ids");
  }
  Encode job;
  job.api = Api::completions;
  job.source.texts = {"see <|IMAGE_PLACEHOLDER|>"};
  EXPECT_EQ(encoder.encode(job).status.reason, "raw_placeholder");
  job.source.texts = {"see <|IMAGE_START|>"};
  EXPECT_TRUE(encoder.encode(job).status.ok()) << "it stands for nothing";
  job.source.texts = {"see <|IMAGE_PLACEHOLDER|>"};
  EXPECT_TRUE(Encoder(tokenizer_that_sees(), nullptr).encode(job).status.ok())
      << "of a model that does not see";
}

TEST(EncoderMedia, AConversationThatCameAsIdsHasItsItemsWhereTheyAre) {
  const Encoder encoder = encoder_of(own_template());
  const TokenId item = media_tokens().item;
  Encode job;
  job.media = {image(4, 4)};
  job.source.ids = {{40, item, item, item, item, 41}};
  const Encoded found = encoder.encode(job);
  ASSERT_TRUE(found.status.ok()) << found.status.message;
  EXPECT_EQ(found.media, (std::vector<MediaItem>{{MediaKind::image, {1, 4, 4}, 1}}));
  job.source.ids = {{40, item, item, item, 41}};
  EXPECT_EQ(encoder.encode(job).status.param, "prompt_token_ids");
}

TEST(EncoderMedia, APromptThatCannotFitIsRefusedWithItsNumbers) {
  Encode job = job_of(kOne, {image(20, 20)});
  const Encoder encoder = encoder_of(own_template(), 120);
  const Encoded refused = encoder.encode(job);
  EXPECT_EQ(refused.status.reason, "context_length_exceeded");
  EXPECT_TRUE(refused.prompts.empty());
  for (const char* number : {"120", "100 of images and videos", "video_max_frames"}) {
    EXPECT_NE(refused.status.message.find(number), std::string::npos) << refused.status.message;
  }
  job.media = {image(4, 4)};
  EXPECT_TRUE(encoder.encode(job).status.ok());
  // 2^40 tokens, of which no list is made.
  job.media = {image(1 << 21, 1 << 21)};
  for (const Api api : {Api::chat, Api::tokenize, Api::count_tokens}) {
    job.api = api;
    EXPECT_EQ(encoder.encode(job).status.reason, "context_length_exceeded") << http::to_string(api);
  }
  job.api = Api::count_tokens;
  job.media = {image(20, 20)};
  const std::size_t text = encoder.encode(job_of(kOne, {image(4, 4)})).prompts.at(0).size() - 4;
  EXPECT_EQ(conversation_of(encoder.encode(job).answer)["input_tokens"], text + 100);
}

// Also where the template shows no items there: behind the answers of tools that stand together.
TEST(EncoderMedia, ItemsOfToolsAreSeen) {
  const std::string conversation =
      R"([{"role":"user","content":"look"},{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{}}}]},)"
      R"({"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"x"},{"type":"image_url"},{"type":"text","text":"y"}]},)"
      R"({"role":"tool","tool_call_id":"2","content":[{"type":"image_url"}]},{"role":"user","content":"and?"}])";
  const std::vector<MediaGrid> grids{image(4, 4), image(2, 4)};
  const std::string body =
      "{% macro body(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}"
      "{{ p.text if p.type == 'text' else '<|image@placeholder|>' }}{% endfor %}{% endif %}{% endmacro %}";
  const std::string shows = body + "{% for m in messages %}[{{ m.role }}:{{ body(m.content) }}]{% endfor %}";
  EXPECT_EQ(shown(encoder_of(shows).encode(job_of(conversation, grids))),
            "[user:look][assistant:][tool:x<image:4>y][tool:<image:2>][user:and?]");
  const std::string adds = body +
                           "{% for m in messages %}[{{ m.role }}:{{ m.content + '' if m.role == 'tool' else "
                           "body(m.content) }}]{% endfor %}";
  EXPECT_EQ(shown(encoder_of(adds).encode(job_of(conversation, grids))),
            "[user:look][assistant:][tool:x\ny][tool:][user:<image:4><image:2>][user:and?]");
}

TEST(EncoderMedia, AMessageWithItemsCanBeContinued) {
  Encode job = job_of(kOne, {image(4, 4)});
  job.source.conversation.add_generation_prompt = false;
  job.source.conversation.continue_final_message = true;
  const std::string prompt = shown(encoder_of(own_template()).encode(job));
  EXPECT_TRUE(prompt.ends_with("<image:4><|IMAGE_END|>q")) << prompt;
}

// A template that iterates over parts gets parts.
TEST(EncoderMedia, ATextIsAPartWhereTheTemplateReadsNothingElse) {
  const Encoder encoder = encoder_of(
      "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}{{ '<|image@placeholder|>' }}"
      "{% else %}{{ p.text }}{% endif %}{% endfor %}|{% endfor %}");
  EXPECT_EQ(
      shown(encoder.encode(job_of(
          R"([{"role":"system","content":"s"},{"role":"user","content":[{"type":"image_url"},{"type":"text","text":"q"}]}])",
          {image(4, 4)}))),
      "s|<image:4>q|");
}

// Without a place for items texts of a list are a line each, as for every other model; with one, as they
// come.
TEST(EncoderMedia, TextsOfAListStandAsTheTemplatePutsThem) {
  const std::string texts =
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])";
  const std::string source =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
      "{{ p.text if p.type == 'text' else '<|image@placeholder|>' }}{% endfor %}{% endif %}{% endfor %}";
  EXPECT_EQ(shown(encoder_of(source).encode(job_of(texts, {}))), "ab");
  EXPECT_EQ(shown(encoder_of("{% for m in messages %}{{ m.content }}{% endfor %}").encode(job_of(texts, {}))),
            "a\nb");
}

}  // namespace
}  // namespace troupe
