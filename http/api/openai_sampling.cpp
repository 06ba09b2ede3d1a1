// Fields that chat and completions share: sampling parameters, names, and fields that are refused.
#include <algorithm>
#include <chrono>
#include <limits>

#include "http/api/json_text.h"
#include "http/api/openai_fields.h"

namespace troupe::http {
namespace {

constexpr std::int64_t kMinInteger = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kMaxTokenList = 1024;  // stop_token_ids, bad_words and bad_words_token_ids
constexpr std::size_t kMaxCacheSalt = 256;   // bytes
constexpr std::size_t kMaxModelName = 256;   // bytes
constexpr double kMaxTimeoutSeconds = 86400;
constexpr float kBanned = -1e10f;            // bias of a token that must not occur
constexpr std::size_t kMaxIdentifier = 128;  // bytes of request_id and user

std::vector<std::string> read_stop(Fields& fields, const config::LimitOptions& limits) {
  const Json* value = fields.find("stop");
  if (value == nullptr) return {};
  std::vector<std::string> stop;
  const auto add = [&](const Json& item) {
    const std::string* given = json::text(item);
    if (given == nullptr) {
      fields.fail("stop", "must be a string or a list of strings, got " + excerpt(item), "invalid_value");
      return;
    }
    const std::string& text = *given;
    if (text.empty() || text.size() > static_cast<std::size_t>(limits.max_stop_bytes)) {
      fields.fail("stop",
                  "must hold strings of 1 to " + std::to_string(limits.max_stop_bytes) +
                      " bytes, got one of " + std::to_string(text.size()),
                  "invalid_value");
      return;
    }
    stop.push_back(text);
  };
  if (!value->is_array()) {
    add(*value);
    return stop;
  }
  if (value->size() > static_cast<std::size_t>(limits.max_stop_strings)) {
    fields.fail("stop",
                "may hold at most " + std::to_string(limits.max_stop_strings) + " strings, got " +
                    std::to_string(value->size()),
                "invalid_value");
    return {};
  }
  for (const Json& item : *value) add(item);
  return stop;
}

// Keys are token ids in decimal. Every fault has the code invalid_value, as at OpenAI.
std::vector<wire::LogitBias> read_logit_bias(Fields& fields, const RequestRules& rules) {
  const Json* value = fields.find("logit_bias");
  if (value == nullptr) return {};
  const auto fail = [&](std::string message) {
    fields.fail("logit_bias", std::move(message), "invalid_value");
  };
  if (!value->is_object()) {
    fail("must be an object of token ids and biases, got " + excerpt(*value));
    return {};
  }
  if (value->size() > static_cast<std::size_t>(rules.limits.max_logit_bias)) {
    fail("may hold at most " + std::to_string(rules.limits.max_logit_bias) + " entries, got " +
         std::to_string(value->size()));
    return {};
  }
  const std::int64_t vocab = rules.model.vocab_size;
  const std::int64_t last = vocab > 0 ? vocab - 1 : std::numeric_limits<TokenId>::max();
  std::vector<wire::LogitBias> bias;
  for (const auto& [key, item] : json::members(*value)) {
    const bool digits = !key.empty() && key.size() <= 10 && (key[0] != '0' || key.size() == 1) &&
                        key.find_first_not_of("0123456789") == key.npos;
    const std::int64_t id = digits ? std::stoll(key) : -1;
    if (id < 0 || id > last) {
      fail("names token \"" + cut(key) + "\"; a key must be a token id from 0 to " + std::to_string(last));
      return {};
    }
    const auto amount = json::number(item);
    if (!amount || !(*amount >= -100 && *amount <= 100)) {
      fail("gives token " + key + " the bias " + excerpt(item) + "; it must be a number from -100 to 100");
      return {};
    }
    bias.push_back({static_cast<TokenId>(id), static_cast<float>(*amount)});
  }
  return bias;
}

std::vector<std::string> read_bad_words(Fields& fields, const config::LimitOptions& limits) {
  const Json* value = fields.find("bad_words");
  if (value == nullptr) return {};
  if (!value->is_array()) {
    fields.fail("bad_words", "must be a list of strings, got " + excerpt(*value), "invalid_type");
    return {};
  }
  if (value->size() > kMaxTokenList) {
    fields.fail("bad_words",
                "may hold at most " + std::to_string(kMaxTokenList) + " strings, got " +
                    std::to_string(value->size()),
                "out_of_range");
    return {};
  }
  std::vector<std::string> words;
  for (const Json& item : *value) {
    const std::string* word = json::text(item);
    if (word == nullptr || word->empty() || word->size() > static_cast<std::size_t>(limits.max_stop_bytes)) {
      fields.fail("bad_words." + std::to_string(words.size()),
                  "must be a string of 1 to " + std::to_string(limits.max_stop_bytes) + " bytes",
                  "invalid_value");
      return {};
    }
    words.push_back(*word);
  }
  return words;
}

void read_stream(Fields& fields, Answer& answer) {
  answer.stream = fields.boolean("stream");
  Json* value = fields.find("stream_options");
  if (value == nullptr) return;
  if (!answer.stream) {
    fields.fail("stream_options", "is only allowed when stream is true", "invalid_value");
    return;
  }
  if (!value->is_object()) {
    fields.fail("stream_options", "must be an object, got " + excerpt(*value), "invalid_value");
    return;
  }
  Fields options(*value, "stream_options");
  answer.include_usage = options.boolean("include_usage", true);
  answer.continuous_usage = options.boolean("continuous_usage_stats");
  fields.fail(options.status());
}

/// max_completion_tokens goes before max_tokens.
void read_lengths(Fields& fields, Api api, Generation& generation) {
  const std::int64_t least = api == Api::chat ? 1 : 0;
  auto max_tokens = fields.integer("max_tokens", least, kMaxInteger);
  const auto max_completion_tokens = fields.integer("max_completion_tokens", least, kMaxInteger);
  if (max_completion_tokens) max_tokens = max_completion_tokens;
  const std::int64_t min_tokens = fields.integer("min_tokens", 0, kMaxInteger).value_or(0);
  if (max_tokens && min_tokens > *max_tokens) {
    fields.fail(
        "min_tokens",
        "must not exceed max_tokens (" + std::to_string(*max_tokens) + "), got " + std::to_string(min_tokens),
        "out_of_range");
  }
  if (max_tokens) generation.max_tokens = clip(*max_tokens);
  generation.sampling.min_tokens = clip(min_tokens);
}

/// Leaves `into`, the default, where the request has no such field.
void read_float(Fields& fields, std::string_view name, const Range& range, float& into) {
  if (const auto value = fields.number(name, range)) into = static_cast<float>(*value);
}

/// 0: the whole prompt.
std::int32_t read_truncation(Fields& fields) {
  constexpr std::string_view kName = "truncate_prompt_tokens";
  const auto tokens = fields.integer(kName, -1, std::numeric_limits<std::int32_t>::max());
  if (!tokens) return 0;
  if (*tokens == 0) fields.fail(kName, "must be -1 or at least 1, got 0", "out_of_range");
  return static_cast<std::int32_t>(*tokens);
}

std::string read_cache_salt(Fields& fields) {
  auto salt = fields.string("cache_salt");
  if (!salt) return {};
  if (salt->empty() || salt->size() > kMaxCacheSalt) {
    fields.fail("cache_salt",
                "must be a string of 1 to " + std::to_string(kMaxCacheSalt) + " bytes, got " +
                    std::to_string(salt->size()),
                "invalid_value");
  }
  return *std::move(salt);
}

/// Tokens to show beside one. The whole vocabulary, where the limit allows it, may be asked for as -1; a
/// limit of -1 allows it.
std::optional<std::int32_t> read_alternatives(Fields& fields, std::string_view name, int limit,
                                              const RequestRules& rules) {
  const std::int64_t vocab = rules.model.vocab_size;
  const std::int64_t all = vocab > 0 ? vocab : std::numeric_limits<std::int32_t>::max();
  const std::int64_t most = limit < 0 ? all : std::min<std::int64_t>(limit, all);
  const auto asked = fields.integer(name, most == all ? -1 : 0, most);
  if (!asked) return {};
  return static_cast<std::int32_t>(*asked < 0 ? all : *asked);
}

bool is_identifier(std::string_view text) {
  return !text.empty() && text.size() <= kMaxIdentifier && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

}  // namespace

std::int32_t clip(std::int64_t value) {
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(value, 0, std::numeric_limits<std::int32_t>::max()));
}

Request new_request(Api api, const RequestRules& rules) {
  Request request;
  request.api = api;
  request.timeout_ns = std::chrono::nanoseconds(std::chrono::seconds(rules.limits.request_timeout_s)).count();
  request.answer.created_s = rules.arrived_s;
  return request;
}

void read_sampling(Fields& fields, const RequestRules& rules, Api api, Request& request) {
  Generation& generation = request.generation;
  wire::Sampling& s = generation.sampling = rules.model.sampling;
  read_float(fields, "temperature", {0, 2}, s.temperature);
  read_float(fields, "top_p", {0, 1}, s.top_p);
  read_float(fields, "min_p", {0, 1}, s.min_p);
  if (const auto top_k = fields.integer("top_k", -1, kMaxCount)) s.top_k = clip(*top_k);
  read_float(fields, "repetition_penalty", {0, 10, true}, s.repetition_penalty);
  read_float(fields, "presence_penalty", {-2, 2}, s.presence_penalty);
  read_float(fields, "frequency_penalty", {-2, 2}, s.frequency_penalty);
  if (s.top_p <= 0.0f || s.temperature < 1e-5f) {
    // Only the likeliest token is left. Greedy sampling avoids the division by a temperature near zero.
    s.temperature = 0.0f;
    s.top_p = 1.0f;
  }
  read_lengths(fields, api, generation);
  if (s.seed == 0) s.seed = rules.random;
  if (const auto seed = fields.integer("seed", kMinInteger, kMaxInteger)) {
    s.seed = static_cast<std::uint64_t>(*seed);
  }
  generation.choices = generation.best_of = clip(fields.integer("n", 1, rules.limits.max_n).value_or(1));
  generation.stop = read_stop(fields, rules.limits);
  generation.stop_ids = fields.token_ids("stop_token_ids", rules.model.vocab_size, kMaxTokenList);
  generation.logit_bias = read_logit_bias(fields, rules);
  generation.bad_words = read_bad_words(fields, rules.limits);
  for (const TokenId token : fields.token_ids("bad_words_token_ids", rules.model.vocab_size, kMaxTokenList)) {
    generation.logit_bias.push_back({token, kBanned});
  }
  generation.include_stop = fields.boolean("include_stop_str_in_output");
  generation.ignore_eos = fields.boolean("ignore_eos");
  request.answer.return_token_ids = fields.boolean("return_token_ids");
  request.together = fields.string("prompt_cache_key").value_or(std::string());
  read_stream(fields, request.answer);
  request.answer.tokens_per_event =
      clip(fields.integer("max_streaming_response_tokens", 1, kMaxCount).value_or(1));
  read_handling(fields, request);
}

void read_handling(Fields& fields, Request& request) {
  request.prefix = {fields.boolean("cache", true), read_cache_salt(fields)};
  request.priority = static_cast<std::int32_t>(fields.integer("priority", -kMaxCount, kMaxCount).value_or(0));
  request.source.keep_tokens = read_truncation(fields);
  (void)fields.boolean("add_special_tokens");  // either value: no tokenizer here adds any
  if (const auto timeout_s = fields.number("timeout", {0, kMaxTimeoutSeconds, true})) {
    request.timeout_ns = std::min(request.timeout_ns, static_cast<std::int64_t>(*timeout_s * 1e9));
  }
}

void read_logprobs(Fields& fields, const RequestRules& rules, Api api, Request& request) {
  wire::Sampling& sampling = request.generation.sampling;
  const int limit = rules.limits.max_logprobs;
  if (api == Api::completions) {
    sampling.logprobs =
        read_alternatives(fields, "logprobs", rules.limits.max_completion_logprobs, rules).value_or(-1);
  } else {
    const bool wanted = fields.boolean("logprobs");
    const auto top = read_alternatives(fields, "top_logprobs", limit, rules);
    if (top && *top > 0 && !wanted) {
      fields.fail("top_logprobs", "needs logprobs to be true", "out_of_range");
    }
    if (wanted) sampling.logprobs = top.value_or(0);
  }
  const auto of_prompt = read_alternatives(fields, "prompt_logprobs", limit, rules);
  sampling.prompt_logprobs = of_prompt.value_or(-1);
  if (of_prompt && request.answer.stream) {
    fields.fail("prompt_logprobs", "cannot be streamed", "invalid_value");
  }
}

namespace {

/// "a", or "a", "b" and "c" where there are several models.
std::string served_here(const ModelFacts& model) {
  std::string out = "\"" + model.names.front() + "\"";
  for (std::size_t i = 0; i < model.others.size(); ++i)
    out += (i + 1 == model.others.size() ? " and \"" : ", \"") + model.others[i] + "\"";
  return out;
}

}  // namespace

std::string read_model(Fields& fields, const RequestRules& rules) {
  const auto& names = rules.model.names;
  const std::string served = names.empty() ? std::string() : names.front();
  const auto name = fields.string("model");
  if (!name) return served;
  if (name->size() > kMaxModelName) {
    fields.fail("model", "must be at most " + std::to_string(kMaxModelName) + " bytes long",
                "model_not_found");
    return {};
  }
  const auto found = std::find(names.begin(), names.end(), *name);
  if (!names.empty() && found == names.end() && !rules.model.any_name) {
    fields.fail(
        {Code::not_found,
         "The model \"" + cut(*name) + "\" does not exist; this server has " + served_here(rules.model),
         "model", "model_not_found"});
    return {};
  }
  const bool alias =
      found - names.begin() < static_cast<std::ptrdiff_t>(std::min(rules.model.served_names, names.size()));
  return name->empty() || *name == "default" || alias ? served : *name;
}

std::string read_answer_id(Fields& fields, std::string_view prefix, const RequestRules& rules) {
  const auto request_id = fields.string("request_id");
  const auto user = fields.string("user");
  if (request_id && !request_id->empty()) {
    if (!is_identifier(*request_id)) {
      fields.fail(
          "request_id",
          "must be at most " + std::to_string(kMaxIdentifier) + " letters, digits and -_.:", "invalid_value");
    }
    return request_id->starts_with(prefix) ? *request_id : std::string(prefix) + *request_id;
  }
  std::string id(prefix);
  if (user && is_identifier(*user)) id.append(*user).push_back('-');
  return id.append(rules.id);
}

}  // namespace troupe::http
