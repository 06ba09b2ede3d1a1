#include "actors/tokenizer/encoder.h"

#include <algorithm>

#include "actors/tokenizer/prompt_length.h"
#include "base/contain.h"
#include "base/utf8.h"
#include "http/api/messages_answer.h"
#include "http/api/openai_response.h"
#include "text/detokenizer.h"

namespace troupe {
namespace {

/// Of what is only counted; the ids of a prompt to generate from are bounded by the model.
constexpr std::int64_t kMostCountedTokens = 1 << 22;

std::string_view without_end_blanks(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t\r\n");
  return text.substr(0, last == text.npos ? 0 : last + 1);
}

/// Cuts off what the template puts behind the text of the last message. False if that text is not what comes
/// last of all that the client wrote.
bool end_with_last_message(std::vector<TextSpan>& spans, const http::Json& message) {
  const http::Json* last_part = json::member(message, "content");
  if (last_part != nullptr && last_part->is_array()) {
    const auto parts = json::items(*last_part);
    last_part = parts.empty() ? nullptr : json::member(parts.back(), "text");
  }
  const std::string* content = json::text(last_part);
  if (content == nullptr) return false;
  const std::string_view text = without_end_blanks(*content);
  while (!spans.empty() && spans.back().trusted) spans.pop_back();
  if (text.empty() || spans.empty()) return false;
  const std::string_view last = without_end_blanks(spans.back().text);
  // The template may have cut the text into several pieces, or blanks from its ends.
  return !last.empty() && text.ends_with(last);
}

const char* name_of(MediaKind kind) { return kind == MediaKind::image ? "image" : "video"; }

/// Where the conversation has the item.
std::string field_of(const Encode& job, std::size_t item) {
  const bool known = item < job.media_fields.size() && !job.media_fields[item].empty();
  return known ? job.media_fields[item] : std::string("messages");
}

std::string text_of(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  const bool known = id && *id >= 0 && *id < tokenizer.vocab_size();
  return known ? std::string(tokenizer.token_bytes(*id)) : std::string();
}

}  // namespace

Encoder::Encoder(std::shared_ptr<const Tokenizer> tokenizer,
                 std::shared_ptr<const ChatTemplate> chat_template, EncoderBounds bounds,
                 std::optional<MediaTokens> media)
    : tokenizer_(std::move(tokenizer)),
      template_(std::move(chat_template)),
      media_(media),
      marks_(media ? MediaMarks(text_of(*tokenizer_, media->item),
                                media->video == media->item ? "" : text_of(*tokenizer_, media->video))
                   : MediaMarks()),
      plain_messages_(template_.get(), media ? &marks_ : nullptr),
      bounds_(bounds) {}

EncoderBounds bounds_of(const Tokenizer& tokenizer, std::int32_t max_model_len) {
  std::size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
    longest = std::max(longest, tokenizer.token_bytes(id).size());
  return {max_model_len, longest * static_cast<std::size_t>(std::max(max_model_len, 1))};
}

Encoded Encoder::encode(Encode job, const Log& log) const {
  Encoded out;
  Status status;
  const Status fault = contain(log, "tokenizer", job.request_id, [&] { status = encode_source(job, out); });
  out.status = fault.ok() ? std::move(status) : fault;
  return out;
}

Status Encoder::encode_source(Encode& job, Encoded& out) const {
  if (job.api == Api::detokenize) {
    Detokenizer detokenizer(tokenizer_, /*skip_special_tokens=*/false);
    std::string text;
    for (const auto& ids : job.source.ids) {
      for (const TokenId id : ids) text += detokenizer.append(id);
    }
    text += detokenizer.flush();
    out.answer = http::format_detokenized(text);
    return {};
  }
  for (std::size_t i = 0; i < job.source.texts.size(); ++i) {
    const std::string of_list = job.source.texts.size() > 1 ? "." + std::to_string(i) : "";
    const std::string field = job.api == Api::embeddings ? "input" + of_list : "prompt";
    if (Status status = check_bytes(job.source.texts[i].size(), job, field); !status.ok()) return status;
  }
  if (!job.source.conversation.messages.is_null()) {
    auto prompt = chat(job.source.conversation, job, out.media);
    if (!prompt.ok()) return prompt.status();
    out.prompts.push_back(*std::move(prompt));
  } else if (!job.media.empty()) {
    if (Status status = locate_items(job, out); !status.ok()) return status;
  }
  for (const std::string& text : job.source.texts) {
    out.prompts.push_back(tokenizer_->encode(text, SpecialTokens::parse));
  }
  if (job.echo) add_texts(job, out);
  for (auto& ids : job.source.ids) out.prompts.push_back(std::move(ids));
  if (Status status = check_placeholders(job, out); !status.ok()) return status;
  if (!http::generates(job.api)) out.answer = tokenized(job, out);
  if (!job.source.prediction.empty()) out.prediction = predicted(job.source.prediction);
  return ban_words(job.bad_words, out.bans);
}

/// What the model may answer is text of its own: it names no special token. Of what is longer than an answer
/// can be, the beginning is read.
std::vector<TokenId> Encoder::predicted(std::string_view text) const {
  std::size_t end = std::min(text.size(), bounds_.max_text_bytes);
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  auto ids = tokenizer_->encode(text.substr(0, end), SpecialTokens::plain);
  if (bounds_.max_model_len > 0)
    ids.resize(std::min(ids.size(), static_cast<std::size_t>(bounds_.max_model_len)));
  return ids;
}

/// What the answer repeats of the prompts: texts as they came, ids as text. A prompt that is too long for the
/// model is refused later, so its text is not made.
void Encoder::add_texts(Encode& job, Encoded& out) const {
  for (std::string& text : job.source.texts) out.texts.push_back({std::move(text), 0});
  for (const auto& ids : job.source.ids) {
    std::string& text = out.texts.emplace_back().text;
    const auto kept = static_cast<std::size_t>(
        std::min<std::uint64_t>(ids.size(), static_cast<std::uint64_t>(job.echo_tokens)));
    if (bounds_.max_model_len > 0 && kept > static_cast<std::size_t>(bounds_.max_model_len)) continue;
    Detokenizer detokenizer(tokenizer_, /*skip_special_tokens=*/false);
    for (std::size_t i = ids.size() - kept; i < ids.size(); ++i) text += detokenizer.append(ids[i]);
    text += detokenizer.flush();
  }
  for (PromptText& prompt : out.texts) prompt.chars = static_cast<std::int64_t>(utf8::length(prompt.text));
}

Status Encoder::check_bytes(std::size_t bytes, const Encode& job, const std::string& field) const {
  if (bytes <= bounds_.max_text_bytes || !http::generates(job.api)) return {};
  const std::string what = job.api == Api::embeddings ? field : "the prompt";
  return invalid(what + " has " + std::to_string(bytes) + " bytes, which are more than the " +
                     std::to_string(bounds_.max_model_len) +
                     " tokens that this model takes in all: shorten it",
                 field, "context_length_exceeded");
}

Status Encoder::ban_words(const std::vector<std::string>& words, std::vector<wire::LogitBias>& bans) const {
  for (const std::string& word : words) {
    const std::size_t before = bans.size();
    for (const std::string& form : {word, " " + word}) {
      const auto ids = tokenizer_->encode(form, SpecialTokens::plain);
      if (ids.size() == 1) bans.push_back({ids.front(), -1e10f});
    }
    if (bans.size() > before) continue;
    return invalid("bad_words: \"" + word.substr(0, 64) + "\" is not a single token of this model",
                   "bad_words", "invalid_value");
  }
  return {};
}

std::string Encoder::tokenized(const Encode& job, const Encoded& out) const {
  const std::vector<TokenId>& ids = out.prompts.front();
  if (job.api == Api::count_tokens) {
    return http::format_token_count(static_cast<std::int64_t>(ids.size()));
  }
  std::vector<std::string> pieces;
  if (job.token_strs) {
    for (const TokenId id : ids) pieces.emplace_back(tokenizer_->token_bytes(id));
  }
  return http::format_tokenized(ids, bounds_.max_model_len, pieces);
}

/// Where the items are in a prompt that came as ids.
Status Encoder::locate_items(const Encode& job, Encoded& out) const {
  if (!media_ || job.source.ids.empty()) {
    return invalid("images and videos belong to messages of a model that reads them", field_of(job, 0),
                   "invalid_value");
  }
  auto items = locate_media(job.source.ids.front(), media_->item, job.media);
  if (!items.ok()) {
    Status status = items.status();
    status.param = http::is_chat(job.api) ? "prompt_token_ids" : "prompt";
    return status;
  }
  out.media = *std::move(items);
  return {};
}

/// Whoever writes a placeholder's token without an item would have the model read what nobody has sent.
Status Encoder::check_placeholders(const Encode& job, const Encoded& out) const {
  if (!media_) return {};
  const bool of_messages = !job.source.conversation.messages.is_null();
  for (std::size_t i = 0; i < out.prompts.size(); ++i) {
    const std::vector<TokenId>& ids = out.prompts[i];
    const std::span<const MediaItem> items = i == 0 ? std::span(out.media) : std::span<const MediaItem>();
    auto item = items.begin();
    for (std::size_t at = 0; at < ids.size(); ++at) {
      if (item != items.end() && at == static_cast<std::size_t>(item->first)) {
        at = static_cast<std::size_t>((item++)->end()) - 1;
        continue;
      }
      if (ids[at] != media_->item && ids[at] != media_->video) continue;
      const char* field = of_messages                                         ? "messages"
                          : http::is_chat(job.api) && !job.source.ids.empty() ? "prompt_token_ids"
                                                                              : "prompt";
      return invalid("token " + std::to_string(at) + " of the prompt, id " + std::to_string(ids[at]) +
                         ", is a raw placeholder: it stands for an image or a video, and the request has "
                         "none for it",
                     field, "raw_placeholder");
    }
  }
  return {};
}

/// Every item has its mark, in the order of the items.
Status Encoder::check_marks(std::span<const MediaMark> marks, const Encode& job) const {
  for (std::size_t i = 0; i < job.media.size(); ++i) {
    if (i < marks.size() && marks[i].kind == job.media[i].kind) continue;
    const std::string kind = name_of(job.media[i].kind);
    if (i >= marks.size()) {
      return invalid("this model's chat template has no place for " + kind + "s where item " +
                         std::to_string(i) + " of the request's images and videos stands: it wrote " +
                         std::to_string(marks.size()) + " places for " + std::to_string(job.media.size()) +
                         " items; give another template with --chat-template",
                     field_of(job, i), "no_media_place");
    }
    return invalid("this model's chat template has a place for a " + std::string(name_of(marks[i].kind)) +
                       " where item " + std::to_string(i) + " of the request's images and videos is a " +
                       kind + ": it does not keep their order; give another template with --chat-template",
                   field_of(job, i), "no_media_place");
  }
  if (marks.size() == job.media.size()) return {};
  return invalid("this model's chat template wrote " + std::to_string(marks.size()) + " places for the " +
                     std::to_string(job.media.size()) +
                     " images and videos of the request; give another template with --chat-template",
                 "messages", "no_media_place");
}

/// The ids of a rendered prompt, with the items' tokens in the places of their marks.
Result<std::vector<TokenId>> Encoder::expanded(std::span<const TextSpan> spans, const Encode& job,
                                               std::vector<MediaItem>& items) const {
  const std::vector<MediaMark> marks = media_ ? marks_.find(spans) : std::vector<MediaMark>();
  if (Status status = check_marks(marks, job); !status.ok()) return status;
  if (marks.empty()) return tokenizer_->encode(spans);
  // What stands between two marks is encoded by itself, as in FastDeploy.
  std::vector<std::vector<TokenId>> pieces;
  std::int64_t of_text = 0, of_items = 0;
  std::size_t span = 0, begin = 0;
  for (std::size_t i = 0; i <= marks.size(); ++i) {
    const MediaMark end = i < marks.size() ? marks[i] : MediaMark{spans.size(), 0, 0, MediaKind::image};
    std::vector<TextSpan> piece;
    for (; span < end.span; ++span, begin = 0)
      piece.push_back({spans[span].text.substr(begin), spans[span].trusted});
    if (span < spans.size()) piece.push_back({spans[span].text.substr(begin, end.begin - begin), true});
    begin = end.end;
    pieces.push_back(tokenizer_->encode(piece));
    of_text += static_cast<std::int64_t>(pieces.back().size());
    if (i < marks.size()) of_items += job.media[i].grid.tokens();
  }
  const std::int64_t most = http::generates(job.api) && bounds_.max_model_len > 0
                                ? bounds_.max_model_len
                                : std::max<std::int64_t>(bounds_.max_model_len, kMostCountedTokens);
  if (of_text + of_items > most) {
    return context_exceeded({most, of_text, of_items, 0}, "messages");
  }
  std::vector<TokenId> ids;
  ids.reserve(static_cast<std::size_t>(of_text + of_items));
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    ids.insert(ids.end(), pieces[i].begin(), pieces[i].end());
    if (i == marks.size()) break;
    items.push_back({job.media[i].kind, job.media[i].grid, static_cast<std::int32_t>(ids.size())});
    ids.insert(ids.end(), static_cast<std::size_t>(job.media[i].grid.tokens()), media_->item);
  }
  return ids;
}

Result<std::vector<TokenId>> Encoder::chat(http::Conversation& conversation, const Encode& job,
                                           std::vector<MediaItem>& items) const {
  if (conversation.without_template) {
    if (!job.media.empty()) {
      return invalid("images and videos need a chat template: leave out disable_chat_template",
                     field_of(job, 0), "invalid_value");
    }
    const auto messages = json::items(conversation.messages);
    const std::string* content =
        messages.empty() ? nullptr : json::text(json::member(&messages.front(), "content"));
    if (content == nullptr) {
      return invalid("without a chat template the first message's content must be a string",
                     "messages.0.content", "invalid_type");
    }
    const std::string& text = *content;
    if (Status status = check_bytes(text.size(), job, "messages"); !status.ok()) return status;
    return tokenizer_->encode(text, SpecialTokens::parse);
  }
  if (template_ == nullptr) {
    return invalid(
        "this model has no chat template: use /v1/completions, or start the server with "
        "--chat-template FILE",
        "messages", "no_chat_template");
  }
  plain_messages_.apply(conversation.messages);
  auto spans = template_->render(conversation.messages, conversation.tools, conversation.template_kwargs,
                                 conversation.add_generation_prompt);
  if (!spans.ok()) {
    Status status = spans.status();
    if (status.param.empty()) status.param = "messages";
    return status;
  }
  if (conversation.continue_final_message && !end_with_last_message(*spans, conversation.messages.back())) {
    return invalid(
        "this model's chat template does not end with the text of the last message, so it cannot be "
        "continued",
        "continue_final_message", "invalid_value");
  }
  std::size_t bytes = 0;
  for (const TextSpan& span : *spans) bytes += span.text.size();
  if (Status status = check_bytes(bytes, job, "messages"); !status.ok()) return status;
  return expanded(*spans, job, items);
}

}  // namespace troupe
