#include "actors/scheduler/sampling_check.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "actors/scheduler/plan_builder.h"

namespace troupe {
namespace {

struct AllowedRange {
  const char* param;
  double value;
  double low, high;
  bool above_low = false;  ///< low itself is not allowed
};

/// 20 and not 20.000000; parameters that are no whole numbers are floats.
std::string text_of(double number) {
  char text[64];
  const bool whole = std::abs(number) < 1e15 && number == std::trunc(number);
  const auto end = whole ? std::to_chars(text, std::end(text), static_cast<std::int64_t>(number))
                         : std::to_chars(text, std::end(text), static_cast<float>(number));
  return {text, end.ptr};
}

Status check_range(const AllowedRange& r) {
  const bool low = r.above_low ? r.value > r.low : r.value >= r.low;  // both false for NaN
  if (low && r.value <= r.high) return {};
  return invalid(std::string(r.param) + " is " + text_of(r.value) + "; it must be " +
                     (r.above_low ? "above " : "at least ") + text_of(r.low) + " and at most " +
                     text_of(r.high) + ".",
                 r.param, "out_of_range");
}

Status check_token(const char* param, TokenId token, std::int32_t vocab_size) {
  if (token >= 0 && token < vocab_size) return {};
  return invalid(std::string(param) + " names token " + std::to_string(token) + "; ids are 0 to " +
                     std::to_string(vocab_size - 1) + ".",
                 param, "out_of_range");
}

}  // namespace

Status check_sampling(const SequenceSpec& spec, std::int32_t vocab_size, std::int32_t max_logprobs) {
  constexpr double kAny = 1e30;
  constexpr double kMaxInt = std::numeric_limits<std::int32_t>::max();
  const wire::Sampling& s = spec.sampling;
  const AllowedRange ranges[] = {
      {"temperature", s.temperature, 0, kAny},
      {"top_p", s.top_p, 0, 1, true},
      {"min_p", s.min_p, 0, 1},
      {"top_k", double(s.top_k), 0, kMaxInt},
      {"repetition_penalty", s.repetition_penalty, 0, kAny, true},
      {"presence_penalty", s.presence_penalty, -kAny, kAny},
      {"frequency_penalty", s.frequency_penalty, -kAny, kAny},
      {"min_tokens", double(s.min_tokens), 0, kMaxInt},
      {"logprobs", double(s.logprobs), -1, double(max_logprobs)},
      {"prompt_logprobs", double(s.prompt_logprobs), -1, double(max_logprobs)},
  };
  for (const AllowedRange& range : ranges) {
    if (Status status = check_range(range); !status.ok()) return status;
  }
  const std::size_t bytes =
      spec.stop_ids.size() * sizeof(TokenId) + spec.logit_bias.size() * sizeof(wire::LogitBias);
  if (bytes > kMaxSamplingBytes) {
    return invalid("stop_token_ids and logit_bias take " + std::to_string(bytes) + " bytes; at most " +
                       std::to_string(kMaxSamplingBytes) + " are allowed.",
                   "logit_bias", "too_many");
  }
  for (const TokenId token : spec.stop_ids) {
    if (Status status = check_token("stop_token_ids", token, vocab_size); !status.ok()) return status;
  }
  for (const wire::LogitBias& bias : spec.logit_bias) {
    if (Status status = check_token("logit_bias", bias.token, vocab_size); !status.ok()) return status;
    if (Status status = check_range({"logit_bias", bias.bias, -kAny, kAny}); !status.ok()) return status;
  }
  return {};
}

}  // namespace troupe
