#include "config/speculation.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "config/in_quotes.h"
#include "config/json_flags.h"
#include "config/quantization.h"

namespace troupe::config {
namespace {

using JsonValue = nlohmann::json;

constexpr std::string_view kElsewhere[] = {"suffix",         "eagle", "eagle3",     "medusa",   "draft_model",
                                           "mlp_speculator", "nextn", "standalone", "lookahead"};
constexpr std::string_view kOffered =
    "offered are ngram and mtp, mtp with \"mtp_strategy\": \"with_ngram\", and naive, which drafts nothing";

/// FastDeploy's keys that change nothing here, and why.
constexpr std::pair<std::string_view, std::string_view> kWithoutEffect[] = {
    {"accept_policy", "a draft is accepted when it is the token that the model samples"},
    {"max_candidate_len", "a draft is accepted when it is the token that the model samples"},
    {"verify_window", "a draft is accepted when it is the token that the model samples"},
    {"suffix_decoding_max_tree_depth", "there is no method suffix"},
    {"suffix_decoding_max_cached_requests", "there is no method suffix"},
    {"suffix_decoding_max_spec_factor", "there is no method suffix"},
    {"suffix_decoding_min_token_prob", "there is no method suffix"},
    {"num_gpu_block_expand_ratio", "keys and values of drafts are in the sequence's own KV blocks"},
    {"benchmark_mode", "acceptance is never forced"},
    {"enf_gen_phase_tag", "the phases of an answer need no tag"},
    {"enable_draft_logprob", "answers have the logprobs of the model alone"},
};

/// A text whose keys and types check_speculative_config() has accepted.
class Reader {
 public:
  explicit Reader(std::string_view text) : object_(JsonValue::parse(text, nullptr, false)) {}

  Result<SpeculationOptions> read() {
    if (const auto policy = text("accept_policy"); policy && *policy != "normal") {
      return unavailable("key \"accept_policy\": " + in_quotes(*policy) +
                         " would change answers; normal is offered");
    }
    const std::string method = text("method").value_or("");
    if (method.empty()) return invalid("the key \"method\" is missing; " + std::string(kOffered));
    if (std::ranges::count(kElsewhere, method) > 0)
      return unavailable("method " + in_quotes(method) + " is not offered; " + std::string(kOffered));
    SpeculationOptions out;
    Status status;
    if (method == "mtp") {
      status = read_mtp(out);
    } else if (method == "ngram" || method == "ngram_match") {
      status = read_ngram(out);
    } else if (method != "naive") {
      status = invalid("key \"method\": got " + in_quotes(method) + "; " + std::string(kOffered));
    }
    if (!status.ok()) return status;
    return out;
  }

  std::vector<std::string> warnings(const SpeculationOptions& read) const {
    std::vector<std::string> lines;
    const auto add = [&](std::string_view key, std::string_view why) {
      lines.push_back("no effect: key \"" + std::string(key) +
                      "\" of --speculative-config: " + std::string(why));
    };
    for (const auto& [key, why] : kWithoutEffect) {
      if (has(key) && text(key) != "normal" && object_[std::string(key)] != false) add(key, why);
    }
    if (const auto verify = text("verify_strategy"); verify && *verify != "target_match") {
      add("verify_strategy", "there is only target_match, with which answers are those without drafts");
    }
    const bool layer = read.method == DraftMethod::mtp;
    for (const char* key : {"model", "quantization", "num_model_steps", "mtp_strategy"}) {
      if (!layer && has(key) && text(key) != "default") add(key, "it is one of method mtp");
    }
    for (const char* key : {"min_ngram_size", "max_ngram_size"}) {
      if (layer && !read.with_ngram && has(key)) add(key, "it needs \"mtp_strategy\": \"with_ngram\"");
    }
    if (layer && number("num_speculative_tokens").value_or(read.tokens) != read.tokens) {
      add("num_speculative_tokens",
          "without \"mtp_strategy\": \"with_ngram\" there are as many draft tokens "
          "as num_model_steps says");
    }
    if (read.method == DraftMethod::none) {
      for (const char* key : {"num_speculative_tokens", "min_ngram_size", "max_ngram_size"}) {
        if (has(key)) add(key, "method naive drafts nothing");
      }
    }
    return lines;
  }

 private:
  static Status unavailable(std::string message) { return {Code::unsupported, std::move(message)}; }

  bool has(std::string_view key) const {
    const auto found = object_.find(std::string(key));
    return found != object_.end() && !found->is_null();
  }
  std::optional<std::string> text(std::string_view key) const {
    if (!has(key) || !object_[std::string(key)].is_string()) return std::nullopt;
    return object_[std::string(key)].get<std::string>();
  }
  std::optional<int> number(std::string_view key) const {
    if (!has(key)) return std::nullopt;
    constexpr double kFarOut = 1 << 30;  // of every range
    return static_cast<int>(std::clamp(object_[std::string(key)].get<double>(), -kFarOut, kFarOut));
  }

  Status read_tokens(int most, int unset, std::string_view method, SpeculationOptions& out) const {
    out.tokens = number("num_speculative_tokens").value_or(unset);
    if (out.tokens >= 1 && out.tokens <= most) return {};
    return invalid("key \"num_speculative_tokens\": got " + object_["num_speculative_tokens"].dump() +
                   ", expected a whole number from 1 to " + std::to_string(most) + " with method " +
                   std::string(method));
  }

  Status read_ngram_sizes(SpeculationOptions& out) const {
    const auto shortest = number("min_ngram_size"), longest = number("max_ngram_size");
    out.max_ngram = longest.value_or(std::max(out.max_ngram, shortest.value_or(0)));
    out.min_ngram = shortest.value_or(std::min(out.min_ngram, out.max_ngram));
    if (out.min_ngram <= out.max_ngram) return {};
    return invalid("key \"min_ngram_size\": got " + std::to_string(out.min_ngram) +
                   ", expected at most max_ngram_size, " + std::to_string(out.max_ngram));
  }

  Status read_ngram(SpeculationOptions& out) const {
    out.method = DraftMethod::ngram;
    Status status = read_tokens(kMostNgramDrafts, 4, "ngram", out);
    return status.ok() ? read_ngram_sizes(out) : status;
  }

  Status read_mtp(SpeculationOptions& out) const {
    out.method = DraftMethod::mtp;
    out.with_ngram = text("mtp_strategy") == "with_ngram";
    const std::optional<int> steps = number("num_model_steps");
    Status status = read_tokens(kMostLayerDrafts, steps.value_or(1), "mtp", out);
    if (!status.ok()) return status;
    out.mtp_steps = steps.value_or(out.with_ngram ? 1 : out.tokens);
    if (out.mtp_steps > out.tokens) {
      return invalid("key \"num_model_steps\": got " + std::to_string(out.mtp_steps) +
                     ", expected at most num_speculative_tokens, " + std::to_string(out.tokens));
    }
    if (!out.with_ngram) out.tokens = out.mtp_steps;
    out.draft_model = text("model").value_or("");
    if (has("quantization")) {
      const JsonValue& given = object_["quantization"];
      out.quantization = given.is_string() ? given.get<std::string>() : given.dump();
      if (const auto read = parse_quantization(out.quantization); !read) {
        return {read.status().code, "key \"quantization\": " + read.status().message};
      }
    }
    return read_ngram_sizes(out);
  }

  const JsonValue object_;
};

}  // namespace

Result<SpeculationOptions> parse_speculation(std::string_view text) {
  if (text.empty()) return SpeculationOptions{};
  if (Status status = check_speculative_config(text); !status.ok()) return status;
  Result<SpeculationOptions> read = Reader(text).read();
  if (read) read->json = text;
  return read;
}

Status check_speculation(std::string_view text) {
  const Status status = parse_speculation(text).status();
  return status.code == Code::unsupported ? Status{} : status;
}

std::string unavailable_speculation(std::string_view text) {
  const Status status = parse_speculation(text).status();
  return status.code == Code::unsupported ? status.message : std::string();
}

std::vector<std::string> speculation_warnings(std::string_view text) {
  const Result<SpeculationOptions> read = parse_speculation(text);
  if (text.empty() || !read) return {};
  return Reader(text).warnings(*read);
}

}  // namespace troupe::config
