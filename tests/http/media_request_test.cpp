// Images and videos in the requests of every API: what each form becomes, and what is refused by field and
// index.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "http/answering_model.h"
#include "http/api/chat_body.h"
#include "http/api/messages_request.h"
#include "http/api/responses_request.h"

namespace troupe::http {
namespace {

using nlohmann::json;

const config::LimitOptions kMediaLimits;
constexpr std::int64_t kLow = 512 * 512;

ModelFacts seeing(int images = 8, int videos = 4) {
  ModelFacts model = test::answering_model();
  model.sees = true;
  model.media.max_images = images;
  model.media.max_videos = videos;
  return model;
}
const ModelFacts kSeeing = seeing();

Result<Parsed> parsed_chat(const json& body, const ModelFacts& model = kSeeing) {
  return parse_chat(body.dump(), {kMediaLimits, model, "fresh"});
}
Result<Parsed> parsed_responses(const json& body, const ModelFacts& model = kSeeing) {
  return parse_responses(body.dump(), {kMediaLimits, model, "fresh"});
}
Result<Parsed> parsed_messages(json body, const ModelFacts& model = kSeeing) {
  body["max_tokens"] = 10;
  return parse_messages(body.dump(), {kMediaLimits, model, "fresh"});
}

json user(const json& content) { return {{"role", "user"}, {"content", content}}; }
json text_part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }
json image(const json& url) { return {{"type", "image_url"}, {"image_url", url}}; }
json video(const json& url) { return {{"type", "video_url"}, {"video_url", url}}; }
json chat_of(const json& part) { return {{"messages", {user({text_part("what?"), part})}}}; }

Source source_of(Result<Parsed>&& parsed) {
  EXPECT_TRUE(parsed.ok()) << parsed.status().message;
  return parsed.ok() ? std::move(parsed->request.source) : Source();
}
/// The one image or video of a chat with this part.
MediaSource read(const json& part, const json& more = json::object()) {
  json body = chat_of(part);
  body.update(more);
  Source source = source_of(parsed_chat(body));
  EXPECT_EQ(source.media.size(), 1u) << part;
  return source.media.empty() ? MediaSource() : std::move(source.media.front());
}
void refused(const json& part, const std::string& param, const std::string& why,
             const std::string& reason = "invalid_value") {
  const Status status = parsed_chat(chat_of(part)).status();
  EXPECT_EQ(status.param, "messages.0.content.1" + param) << part << ": " << status.message;
  EXPECT_NE(status.message.find(why), std::string::npos) << status.message;
  EXPECT_EQ(status.reason, reason) << status.message;
  EXPECT_LT(status.message.size(), 400u);
}
std::vector<std::string> params(const Source& source) {
  std::vector<std::string> out;
  for (const MediaSource& item : source.media) out.push_back(item.param);
  return out;
}

TEST(MediaRequest, EveryFormOfAnImageInChats) {
  const std::pair<json, const char*> forms[] = {
      {image({{"url", "data:image/png;base64,QUJD"}}), ".image_url.url"},
      {image("data:image/png;base64,QUJD"), ".image_url"},
      {image("DATA:;charset=x;BASE64,QUJD"), ".image_url"},
      {image({{"url", "QUJD"}}), ".image_url.url"},
      {image({{"url", "data:application/pdf;base64,QUJD"}}), ".image_url.url"},
      {{{"type", "image"}, {"image", "QUJD"}}, ".image"},
      {{{"type", "image"}, {"image_url", {{"url", "QUJD"}}}}, ".image_url.url"},
      {{{"type", "image"}, {"data", "QUJD"}, {"mimeType", "image/png"}}, ".data"},
      {{{"type", "input_image"}, {"image_url", "data:image/jpeg;base64,QUJD"}}, ".image_url"},
      {{{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", "QUJD"}}}},
       ".source.data"}};
  for (const auto& [part, param] : forms) {
    const MediaSource source = read(part);
    EXPECT_EQ(source.kind, MediaKind::image) << part;
    EXPECT_EQ(source.file, "QUJD") << part;
    EXPECT_EQ(source.param, std::string("messages.0.content.1") + param);
    EXPECT_TRUE(source.url.empty() && source.frames.empty() && source.name.empty());
    EXPECT_EQ(source.limits, PixelLimits());
  }
}

TEST(MediaRequest, WhatIsSaidToBeBase64IsLeftToItsDecoder) {
  const MediaSource source = read(
      {{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", "AA!A"}}}});
  EXPECT_EQ(source.file, "AA!A") << "it names the place of the fault";
}

TEST(MediaRequest, EveryFormOfAVideoInChats) {
  const std::pair<json, std::vector<std::string>> forms[] = {
      {video({{"url", "data:video/mp4;base64,QUJD"}}), {}},
      {video("QUJD"), {}},
      {{{"type", "video"}, {"video", "QUJD"}}, {}},
      {video({{"url", "data:video/jpeg;base64,QQ==,Qg==,Qw=="}}), {"QQ==", "Qg==", "Qw=="}},
      {video("data:Video/JPEG;base64,QQ=="), {"QQ=="}},
      {{{"type", "video"}, {"video", {"data:image/png;base64,QQ==", "Qg=="}}}, {"QQ==", "Qg=="}}};
  for (const auto& [part, frames] : forms) {
    const MediaSource source = read(part);
    EXPECT_EQ(source.kind, MediaKind::video) << part;
    EXPECT_EQ(source.file, frames.empty() ? "QUJD" : "") << part;
    EXPECT_EQ(source.frames, frames) << part;
    EXPECT_EQ(source.limits, kVideoPixels);
    EXPECT_EQ(source.sampling, VideoSampling());
  }
  EXPECT_EQ(read(image("data:video/jpeg;base64,QQ==,Qg==")).file, "QQ==,Qg==") << "frames are a video's";
}

TEST(MediaRequest, UrlsAreHandedOnAsTheyAre) {
  for (const char* url : {"http://a/b.png", "https://a.example/x?y=1#z", "HTTPS://A", "file:///srv/a.png"}) {
    const MediaSource source = read(image({{"url", url}}));
    EXPECT_EQ(source.url, url);
    EXPECT_TRUE(source.file.empty());
    EXPECT_EQ(read(video(url)).url, url);
  }
}

TEST(MediaRequest, NamesOfEarlierItems) {
  const json forms[] = {{{"type", "image_url"}, {"image_url", nullptr}, {"uuid", "u-1"}},
                        {{"type", "image_url"}, {"uuid", "u-1"}},
                        {{"type", "image_url"}, {"image_url", json::object()}, {"uuid", "u-1"}},
                        {{"type", "image_url"}, {"image_url", {{"uuid", "u-1"}}}}};
  for (const json& part : forms) {
    const MediaSource source = read(part);
    EXPECT_EQ(source.name, "u-1") << part;
    EXPECT_TRUE(source.file.empty() && source.url.empty()) << part;
    EXPECT_EQ(source.param, "messages.0.content.1.uuid");
  }
  json both = video("QUJD");
  both["uuid"] = "u-2";
  EXPECT_EQ(read(both).name, "u-2");
  EXPECT_EQ(read(both).file, "QUJD");
  refused({{"type", "image_url"}}, ".image_url", "or the uuid", "missing_required_parameter");
  refused({{"type", "video"}}, ".video_url", "a video needs", "missing_required_parameter");
  refused({{"type", "image_url"}, {"uuid", 5}}, ".uuid", "got 5");
  refused({{"type", "image_url"}, {"uuid", ""}}, ".uuid", "0 bytes");
  refused({{"type", "image_url"}, {"uuid", std::string(300, 'u')}}, ".uuid", "300 bytes");
}

TEST(MediaRequest, BadDataNamesTheFieldAndWhy) {
  refused(image({{"url", ""}}), ".image_url.url", "is empty");
  refused(image("data:image/png;base64,"), ".image_url", "no data behind");
  refused(image("data:image/png,QUJD"), ".image_url", "data:TYPE;base64,DATA");
  refused(image("data:image/png;base64"), ".image_url", "data:TYPE;base64,DATA");
  refused(image("data:,x"), ".image_url", "data:TYPE;base64,DATA");
  refused(image("data:"), ".image_url", "data:TYPE;base64,DATA");
  refused(image("ftp://a/b"), ".image_url", "http://, https:// or file://");
  refused(image("http:\\\\a"), ".image_url", "http://, https:// or file://");
  refused(image("javascript:alert(1)"), ".image_url", "http://");
  refused(image("<svg>"), ".image_url", "neither base64");
  refused(image("\xF0\x9F\x98\x80"), ".image_url", "neither base64");
  refused(image(std::string(9000, 'x').replace(0, 7, "http://")), ".image_url", "9000 bytes");
  refused(image(5), ".image_url", "got 5", "invalid_type");
  refused(image({{"url", {1}}}), ".image_url.url", "got a list", "invalid_type");
  refused(video("data:video/jpeg;base64,QQ==,,QQ=="), ".video_url", "frame 1");
  refused(video("data:video/jpeg;base64,QQ==,"), ".video_url", "frame 1");
  refused(video("data:video/jpeg;base64," + std::string(5000, ',')), ".video_url", "5001 frames");
  refused({{"type", "video"}, {"video", json::array()}}, ".video", "at least one frame");
  refused({{"type", "video"}, {"video", {"QQ==", "http://a/b"}}}, ".video.1", "not fetched");
  refused({{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/png"}}}}, ".source.data",
          "is missing", "missing_required_parameter");
  refused({{"type", "image"}, {"source", {{"type", "cloud"}}}}, ".source.type", "\"cloud\"");
  refused({{"type", "image"}, {"source", "x"}}, ".source.type", "nothing");
  json detailed = image({{"url", "QUJD"}, {"detail", "ultra"}});
  refused(detailed, ".image_url.detail", "auto, high or low");
}

TEST(MediaRequest, WhatIsNoImageIsRefusedByName) {
  for (const char* type : {"input_audio", "audio_url", "file", "document", "input_file"}) {
    refused({{"type", type}}, "", std::string("\"") + type + "\"", "unsupported_modality");
  }
  refused({{"type", "input_image"}, {"file_id", "file-1"}}, ".file_id", "stores no files",
          "unsupported_parameter");
  refused({{"type", "image"}, {"source", {{"type", "file"}, {"file_id", "f"}}}}, ".source.type",
          "stores no files", "unsupported_parameter");
  const Status kinds = parsed_chat(chat_of({{"type", "poem"}})).status();
  EXPECT_NE(kinds.message.find("\"image_url\" or \"video_url\""), std::string::npos) << kinds.message;
}

TEST(MediaRequest, AModelThatDoesNotSeeIsToldSo) {
  const ModelFacts blind = test::answering_model();
  const auto check = [](const Status& status, const std::string& param) {
    EXPECT_EQ(status.param, param) << status.message;
    EXPECT_EQ(status.reason, "unsupported_modality");
    EXPECT_NE(status.message.find("reads text only"), std::string::npos) << status.message;
  };
  check(parsed_chat(chat_of(image("QUJD")), blind).status(), "messages.0.content.1");
  check(parsed_responses({{"input", {user({{{"type", "input_image"}, {"image_url", "QUJD"}}})}}}, blind)
            .status(),
        "input.0.content.0");
  check(parsed_messages({{"messages", {user({{{"type", "image"}}})}}}, blind).status(),
        "messages.0.content.0");
  const json kwargs = {{"messages", {user("hi")}}, {"mm_processor_kwargs", {{"max_pixels", 1}}}};
  const auto text = parsed_chat(kwargs, blind);
  ASSERT_TRUE(text.ok()) << text.status().message;
  EXPECT_EQ(text->ignored_fields, std::vector<std::string>{"mm_processor_kwargs"});
}

TEST(MediaRequest, OrderIsKeptOverMessagesAndTheTemplateSeesPlaces) {
  const Source source = source_of(parsed_chat(json::parse(R"({"messages": [
      {"role": "system", "content": [{"type": "text", "text": "s"}]},
      {"role": "user", "content": [{"type": "image_url", "image_url": "QQ=="}, {"type": "text", "text": "a"},
        {"type": "video_url", "video_url": {"url": "Qg==", "fps": 1}, "cache_control": {}}]},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "r"},
        {"type": "image_url", "image_url": {"url": "Qw==", "detail": "low"}}]},
      {"role": "user", "content": [{"type": "image", "image": "RA=="}]}]})")));
  EXPECT_EQ(params(source),
            (std::vector<std::string>{"messages.1.content.0.image_url", "messages.1.content.2.video_url.url",
                                      "messages.3.content.1.image_url.url", "messages.4.content.0.image"}));
  ASSERT_EQ(source.media.size(), 4u);
  EXPECT_EQ(source.media[0].file, "QQ==");
  EXPECT_EQ(source.media[1].kind, MediaKind::video);
  EXPECT_EQ(source.media[2].limits.max_pixels, kLow);
  EXPECT_EQ(source.media[3].limits.max_pixels, PixelLimits().max_pixels);
  const json messages = json::parse(to_text(source.conversation.messages));
  EXPECT_EQ(messages[1]["content"],
            json::parse(R"([{"type": "image_url"}, {"type": "text", "text": "a"}, {"type": "video_url"}])"));
  EXPECT_EQ(messages[3]["content"], json::parse(R"([{"type": "text", "text": "r"}, {"type": "image_url"}])"));
  EXPECT_EQ(messages[4]["content"], json::parse(R"([{"type": "image_url"}])"));
}

TEST(MediaRequest, Responses) {
  const Source source = source_of(parsed_responses(json::parse(R"({"instructions": "be brief", "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:image/png;base64,QQ==", "detail": "low"}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": [
        {"type": "input_image", "image_url": "https://a/b.png"}, {"type": "input_text", "text": "t"}]},
      {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "Qg=="}}]}]})")));
  EXPECT_EQ(params(source),
            (std::vector<std::string>{"input.0.content.1.image_url", "input.2.output.0.image_url",
                                      "input.3.content.0.video_url.url"}));
  ASSERT_EQ(source.media.size(), 3u);
  EXPECT_EQ(source.media[0].limits.max_pixels, kLow);
  EXPECT_EQ(source.media[1].url, "https://a/b.png");
  const json messages = json::parse(to_text(source.conversation.messages));
  EXPECT_EQ(messages[1]["content"], json::parse(R"([{"type": "text", "text": "a"}, {"type": "image_url"}])"));
  EXPECT_EQ(messages[3]["content"], json::parse(R"([{"type": "image_url"}, {"type": "text", "text": "t"}])"));
  EXPECT_EQ(messages[4]["content"], json::parse(R"([{"type": "video_url"}])"));
  const auto status = [](const std::string& content) {
    return parsed_responses({{"input", {user(json::parse(content))}}}).status();
  };
  EXPECT_EQ(status(R"([{"type": "input_image", "file_id": "f"}])").param, "input.0.content.0.file_id");
  EXPECT_EQ(status(R"([{"type": "input_file", "file_data": "x"}])").param, "input.0.content.0");
  EXPECT_EQ(status(R"([{"type": "input_image", "image_url": ""}])").param, "input.0.content.0.image_url");
  const Status of_assistant =
      parsed_responses(json::parse(R"({"input": [{"role": "user", "content": "a"}, {"role": "assistant",
        "content": [{"type": "input_image", "image_url": "QQ=="}]}]})"))
          .status();
  EXPECT_EQ(of_assistant.param, "input.1.content.0");
  EXPECT_NE(of_assistant.message.find("belong in messages of the user"), std::string::npos);
}

TEST(MediaRequest, Messages) {
  const Source source = source_of(parsed_messages(json::parse(R"({"system": [{"type": "text", "text": "s"}],
      "messages": [
      {"role": "user", "content": [{"type": "text", "text": "a"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}}]},
      {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
      {"role": "user", "content": [
        {"type": "image", "source": {"type": "url", "url": "https://a/b"}},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference"}, {"type": "text", "text": "r"},
          {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "Qg=="}}]},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "Qw=="}}]}]})")));
  EXPECT_EQ(params(source),
            (std::vector<std::string>{"messages.0.content.1.source.data", "messages.2.content.0.source.url",
                                      "messages.2.content.1.content.1.source.data",
                                      "messages.2.content.2.source.data"}));
  const json messages = json::parse(to_text(source.conversation.messages));
  ASSERT_EQ(messages.size(), 6u) << messages;
  EXPECT_EQ(messages[1]["content"], json::parse(R"([{"type": "text", "text": "a"}, {"type": "image_url"}])"));
  EXPECT_EQ(messages[3]["content"], json::parse(R"([{"type": "image_url"}])"));
  EXPECT_EQ(messages[4]["role"], "tool");
  EXPECT_EQ(messages[4]["content"], json::parse(R"([{"type": "text", "text": "r"}, {"type": "image_url"}])"));
  EXPECT_EQ(messages[5]["content"], json::parse(R"([{"type": "image_url"}])"));
  const Status pdf =
      parsed_messages({{"messages", {user({{{"type", "document"}, {"source", {{"type", "base64"}}}}})}}})
          .status();
  EXPECT_EQ(pdf.param, "messages.0.content.0");
  EXPECT_EQ(pdf.reason, "unsupported_modality");
  const Status system =
      parsed_messages({{"system", {{{"type", "image"}}}}, {"messages", {user("a")}}}).status();
  EXPECT_EQ(system.param, "system.0");
}

TEST(MediaRequest, CountTokensAndTokenizeReadThemToo) {
  const std::string block =
      R"({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "QQ=="}}]}]})";
  EXPECT_EQ(source_of(parse_count_tokens(block, {kMediaLimits, kSeeing})).media.size(), 1u);
  EXPECT_EQ(source_of(parse_tokenize(chat_of(image("QUJD")).dump(), {kMediaLimits, kSeeing})).media.size(),
            1u);
}

TEST(MediaRequest, TooManyOfAKindNameTheFirstBeyondTheLimit) {
  const ModelFacts two = seeing(2, 0);
  const json three = {
      {"messages",
       {user({image("QQ=="), text_part("x"), image("QQ==")}), user(json::array({image("QQ==")}))}}};
  const Status images = parsed_chat(three, two).status();
  EXPECT_EQ(images.param, "messages.1.content.0.image_url");
  EXPECT_EQ(images.reason, "too_many_elements");
  EXPECT_TRUE(images.message.starts_with("Too many image items in prompt, got 3 but limit is 2"))
      << images.message;
  const Status videos = parsed_chat(chat_of(video("QQ==")), two).status();
  EXPECT_EQ(videos.param, "messages.0.content.1.video_url");
  EXPECT_TRUE(videos.message.starts_with("Too many video items in prompt, got 1 but limit is 0"));
  const json input = {{"input", {user({image("QQ=="), image("QQ=="), image("QQ==")})}}};
  EXPECT_EQ(parsed_responses(input, two).status().param, "input.0.content.2.image_url");
}

TEST(MediaRequest, SizesOfARequestStayWithinTheServers) {
  const auto limits = [](const json& kwargs) {
    return read(image("QUJD"), {{"mm_processor_kwargs", kwargs}}).limits;
  };
  const PixelLimits whole;
  EXPECT_EQ(limits({{"image_max_pixels", 100'000}}), (PixelLimits{whole.min_pixels, 100'000}));
  EXPECT_EQ(limits({{"max_pixels", 100'000}, {"min_pixels", 50'000}}), (PixelLimits{50'000, 100'000}));
  EXPECT_EQ(limits({{"size", {{"shortest_edge", 784}, {"longest_edge", 100'000}}}}),
            (PixelLimits{784, 100'000}));
  EXPECT_EQ(limits({{"max_pixels", 1}, {"image_max_pixels", 100'000}}).max_pixels, 100'000)
      << "this name first";
  EXPECT_EQ(limits({{"image_max_pixels", 12'845'056}}), whole) << "the server's limit stays";
  const json low = image({{"url", "QUJD"}, {"detail", "low"}});
  EXPECT_EQ(read(low, {{"mm_processor_kwargs", {{"image_min_pixels", 400'000}}}}).limits,
            (PixelLimits{kLow, kLow}));
  const MediaSource of_video =
      read(video("QUJD"), {{"mm_processor_kwargs", {{"video_max_pixels", 300'000}, {"video_fps", 4}}}});
  EXPECT_EQ(of_video.limits.max_pixels, 300'000);
  EXPECT_EQ(of_video.sampling.fps, 4);
  const auto fault = [](const json& kwargs) {
    json body = chat_of(image("QUJD"));
    body["mm_processor_kwargs"] = kwargs;
    return parsed_chat(body).status();
  };
  EXPECT_EQ(fault({{"image_max_pixels", "many"}}).param, "mm_processor_kwargs.image_max_pixels");
  EXPECT_EQ(fault({{"size", {{"longest_edge", 0}}}}).param, "mm_processor_kwargs.size.longest_edge");
  EXPECT_EQ(fault({{"size", 5}}).param, "mm_processor_kwargs.size");
  EXPECT_EQ(fault({{"image_max_pixels", 10}}).param, "mm_processor_kwargs.image_min_pixels")
      << "below the least";
  EXPECT_EQ(fault({{"spatial_conv_size", 4}}).param, "mm_processor_kwargs.spatial_conv_size");
  EXPECT_EQ(fault({{"video_frames_sample", "rand"}}).param, "mm_processor_kwargs.video_frames_sample");
  EXPECT_EQ(fault(json::array()).param, "mm_processor_kwargs");
  json body = chat_of(image("QUJD"));
  body["mm_processor_kwargs"] = {{"do_resize", false}, {"max_pixels", 100'000}};
  const auto ignored = parsed_chat(body);
  ASSERT_TRUE(ignored.ok()) << ignored.status().message;
  EXPECT_EQ(ignored->ignored_fields, std::vector<std::string>{"mm_processor_kwargs.do_resize"});
  const auto responses = parsed_responses({{"input", {user(json::array({image("QUJD")}))}},
                                           {"mm_processor_kwargs", {{"max_pixels", 99'999}, {"x", 1}}}});
  ASSERT_TRUE(responses.ok()) << responses.status().message;
  EXPECT_EQ(responses->request.source.media.at(0).limits.max_pixels, 99'999);
  EXPECT_EQ(responses->ignored_fields, std::vector<std::string>{"mm_processor_kwargs.x"});
}

TEST(MediaRequest, SamplingOfAVideo) {
  const auto sampled = [](const json& members) {
    json part = video({{"url", "QUJD"}});
    part.update(members);
    json within = video({{"url", "QUJD"}});
    within["video_url"].update(members);
    EXPECT_EQ(read(part).sampling, read(within).sampling) << members;
    return read(part).sampling;
  };
  EXPECT_EQ(sampled({{"fps", 0.5}, {"min_frames", 2}, {"max_frames", 10}, {"frames_sample", "middle"}}),
            (VideoSampling{0.5, 2, 10, -1, FrameChoice::middle}));
  EXPECT_EQ(sampled({{"target_frames", 20}}), (VideoSampling{-1, 16, 180, 20, FrameChoice::leading}));
  EXPECT_EQ(sampled({{"target_frames", 20}, {"fps", -1}}).target_frames, 20);
  const auto fault = [](const json& members, const char* member) {
    json part = video("QUJD");
    part.update(members);
    refused(part, std::string(".") + member, member);
  };
  fault({{"target_frames", 20}, {"fps", 2}}, "fps");
  fault({{"fps", -1}}, "fps");
  fault({{"fps", 0}}, "fps");
  fault({{"fps", "2"}}, "fps");
  fault({{"target_frames", 10}}, "min_frames");
  fault({{"target_frames", 200}}, "target_frames");
  fault({{"min_frames", 200}}, "min_frames");
  fault({{"max_frames", 2000}}, "max_frames");
  fault({{"max_frames", 1.5}}, "max_frames");
  fault({{"frames_sample", "rand"}}, "frames_sample");
}

TEST(MediaRequest, WhatHasNoTemplateHasNoPlaceForThem) {
  json body = chat_of(image("QUJD"));
  body["prompt_token_ids"] = {1, 2};
  EXPECT_EQ(parsed_chat(body).status().param, "prompt_token_ids");
  body = chat_of(image("QUJD"));
  body["disable_chat_template"] = true;
  EXPECT_EQ(parsed_chat(body).status().param, "disable_chat_template");
}

TEST(MediaRequest, DataIsMovedNotCopied) {
  const std::string data(20 << 20, 'A');
  Json body = Json::object();
  Fields fields(body);
  MediaParts media(fields, kSeeing);
  const auto moved = [&](Json part, std::string& text) {
    const char* const before = text.data();
    const std::size_t capacity = text.capacity();
    EXPECT_TRUE(media.read(part, "p").ok());
    std::vector<MediaSource> taken = media.take(fields);
    ASSERT_EQ(taken.size(), 1u);
    EXPECT_EQ(taken[0].file.size(), data.size());
    EXPECT_EQ(static_cast<const void*>(taken[0].file.data()), static_cast<const void*>(before));
    EXPECT_EQ(taken[0].file.capacity(), capacity);
    EXPECT_EQ(to_text(part), R"({"type":"image_url"})");
  };
  Json url = {{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64," + data}}}};
  std::string& in_url =
      *troupe::json::text(*troupe::json::member(*troupe::json::member(url, "image_url"), "url"));
  moved(std::move(url), in_url);
  Json block = {{"type", "image"}, {"source", {{"type", "base64"}, {"data", data}}}};
  std::string& in_block =
      *troupe::json::text(*troupe::json::member(*troupe::json::member(block, "source"), "data"));
  moved(std::move(block), in_block);
  // The whole way of a body: one text of that size is left, and none in the messages.
  const Source source = source_of(parsed_chat(chat_of(image("data:image/png;base64," + data))));
  ASSERT_EQ(source.media.size(), 1u);
  EXPECT_EQ(source.media[0].file, data);
  EXPECT_LT(to_text(source.conversation.messages).size(), 200u);
}

}  // namespace
}  // namespace troupe::http
