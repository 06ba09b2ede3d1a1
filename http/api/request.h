#pragma once
// The request: what parsers yield and actors use. Whatever is wrong with a field has been refused before one
// of these exists, and every default has been applied; left is what only the loaded model can decide: does
// the prompt fit, is a bad word one token. What the chat template reads stays JSON: values of the one parse
// of the body, within its bounds.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/patch_grid.h"
#include "base/video_sampling.h"
#include "http/api/api.h"
#include "http/api/json_body.h"
#include "ipc/wire.h"

namespace troupe::http {

/// The form that an answer is held to, as the client described it: response_format, guided_* and their kin,
/// or what tool_choice asks for.
struct AnswerForm {
  enum class Kind : std::uint8_t { free, json_object, json_schema, regex, choice, grammar, structural_tag };
  Kind kind = Kind::free;
  Json value;  ///< json_schema, structural_tag: the object; choice: a list of strings; regex, grammar (EBNF):
               ///< a string
  std::string param;  ///< the field that it came from, for errors: "response_format.json_schema.schema"
  /// Parts of `value` that the request has elsewhere: {".format.json_schema", "tools.0.function.parameters"}.
  std::vector<std::pair<std::string, std::string>> places{};
};

/// What the chat template turns into a prompt.
struct Conversation {
  Json messages;  ///< array of {role, content, …}; null: none. Roles are system, user, assistant, tool,
                  ///< function; content is a string, null, an object for a tool, or a list of
                  ///< {type: "text", text}, {type: "image_url"} and {type: "video_url"}: the items of
                  ///< Source::media, in order. tool_calls[].function.arguments is absent, null, an object, or
                  ///< a text that begins as one
  Json tools;     ///< array of function tools; null: none, or tool_choice was "none"
  Json template_kwargs;  ///< an object; null: none
  bool add_generation_prompt = true;
  bool continue_final_message =
      false;  ///< the prompt ends with the text of the last message, which is the assistant's
  bool without_template = false;  ///< the first message's content is the prompt
};

/// An image or a video of a conversation: a file, frames or a URL; with a name, of an earlier one, none of
/// them.
struct MediaSource {
  MediaKind kind = MediaKind::image;
  std::string file;                 ///< its bytes in base64, as the client wrote it
  std::vector<std::string> frames;  ///< likewise, a picture each: a video as "data:video/jpeg"
  std::string url;         ///< http://, https:// or file://; whether this server fetches it is not known here
  std::string name;        ///< the client's `uuid`, among the names of its key and salt; empty: none
  PixelLimits limits;      ///< of the image, or of each frame
  VideoSampling sampling;  ///< of a video's file or URL
  std::string param;       ///< the field that it came from, for errors
};

/// What has to become token ids: a conversation with messages, or texts, or ids.
struct Source {
  Conversation conversation;              ///< contents are untrusted text
  std::vector<MediaSource> media;         ///< of the conversation, in the order of its parts
  std::vector<std::string> texts;         ///< raw prompts: special tokens are parsed
  std::vector<std::vector<TokenId>> ids;  ///< prompts that are ids already, of the model's vocabulary: of
                                          ///< tokens without a text, too
  std::int32_t keep_tokens = 0;           ///< of each prompt's end; 0: all; -1: as many as fit
  std::string prediction;  ///< what the client takes the answer to be like; no part of the prompt
};

/// What a chat's answer may hold besides text, and how long its parts may be.
struct AnswerLimits {
  bool tools = false;          ///< tool calls are looked for
  bool parallel_calls = true;  ///< false: the answer ends with its first call
  std::int32_t response = -1;  ///< tokens behind the thoughts; -1: no limit
  std::int32_t thinking = -1;  ///< tokens of the thoughts; -1: no limit but thinking_share
  double thinking_share = 0;   ///< the same as a share of the answer's tokens; 0: no limit
};

/// Sampling and stop conditions of one request.
struct Generation {
  wire::Sampling sampling;
  std::int32_t choices = 1;      ///< of each prompt
  std::int32_t best_of = 1;      ///< candidates for them; >= choices
  std::int32_t max_tokens = -1;  ///< -1: up to the model's length. May exceed the room: clip it
  bool ignore_eos = false;
  std::vector<TokenId> stop_ids;  ///< the client's; the session adds the end-of-text ids
  std::vector<wire::LogitBias> logit_bias;
  std::vector<std::string> bad_words;  ///< whether one is a single token is not known here
  std::vector<std::string> stop;       ///< none empty
  bool include_stop = false;           ///< leave the stop string in the text
  AnswerForm form;                     ///< of the text behind the thoughts
  AnswerLimits limits;
};

/// How the sequences of one request use the prefix cache.
struct PrefixUse {
  bool enabled = true;  ///< false: finds nothing in it and leaves nothing in it
  std::string salt;     ///< only requests with the same salt share blocks
};

/// The form of the answers of Api::embeddings.
struct EmbeddingForm {
  std::int32_t dimensions = 0;  ///< the first so many numbers; 0: all
  bool normalize = true;        ///< to a norm of 1, after the cut
  bool base64 = false;          ///< of little-endian float32; else a list of numbers
  bool of_messages = false;     ///< the input is a conversation; else texts or token ids
};

/// The form of the answer.
struct Answer {
  std::string id;              ///< "chatcmpl-…" (from request_id or user when given)
  std::string model;           ///< as the client named it, else the first of ModelFacts::names
  std::int64_t created_s = 0;  ///< Unix time of arrival
  bool stream = false;
  bool include_usage = false;     ///< of a stream: one more chunk with the usage
  bool continuous_usage = false;  ///< the usage in every chunk
  bool echo = false;
  bool return_token_ids = false;      ///< of Api::tokenize: the tokens' text
  std::int32_t tokens_per_event = 1;  ///< of a stream; >= 1
  bool function_call = false;         ///< tool calls are written in the form of the field `functions`
  std::string settings;  ///< of Api::responses: the members of the answer that repeat the request, as JSON
                         ///< without braces
  bool has_prediction = false;  ///< the request has a prediction, if an empty one: the usage tells of it
  EmbeddingForm embedding;
};

/// What asks for an answer of the model, or for tokens.
struct Request {
  Api api = Api::chat;
  std::int64_t timeout_ns = 0;  ///< from arrival to the end of the answer
  std::int32_t priority = 0;    ///< lower first
  bool background = false;      ///< of a batch: behind all that are not
  std::string together;         ///< requests with the same value prefer one engine; empty: no preference
  Source source;
  Generation generation;
  PrefixUse prefix;
  Answer answer;
};

/// Pages and actions without parameters. Health is not among them: the server answers it from
/// Backend::health().
struct InfoRequest {
  enum class Kind { models, model, version, metrics, config_info, reset_prefix_cache, events };
  Kind kind = Kind::models;
  std::string
      name;  ///< of model: what stands behind /v1/models/; of events: the id of a request to follow, or empty
};

class BodySink;

/// About files and batches (http/batch/).
struct StoreRequest {
  enum class Resource : std::uint8_t { files, file, content, batches, batch, cancel };
  enum class Verb : std::uint8_t { get, post, remove };
  Resource resource{};
  Verb verb{};
  std::string id;                            ///< of the file or the batch that the path names
  std::string owner;                         ///< of ApiKeys::owner()
  std::string after, limit, order, purpose;  ///< of the query; empty: not given
  std::string body;                          ///< JSON, not read yet
  std::shared_ptr<BodySink> upload;          ///< of POST files: what has taken the body
};

using RequestBody = std::variant<Request, InfoRequest, StoreRequest>;

}  // namespace troupe::http
