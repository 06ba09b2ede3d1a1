#pragma once
// A checkpoint's Jinja chat template, compiled once and rendered per request.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/template/jinja/limits.h"
#include "text/text_span.h"

namespace troupe {

namespace jinja {
class Template;
}

/// Immutable after load; any number of threads may render at once.
class ChatTemplate {
 public:
  /// Loads the first that exists: `override_template` (the value of --chat-template: a file, or the
  /// template's own text when it contains "{{" or "{%"), model_dir/chat_template.jinja, "chat_template" of
  /// model_dir/tokenizer_config.json (a string, or a list of {name, template} of which "default" is taken),
  /// then these two of `tokenizer_dir` (the value of --tokenizer: empty, or a file, has none).
  /// Code::not_found if none exists. A syntax error names the line. bos_token, eos_token and similar come
  /// from tokenizer_config.json and special_tokens_map.json, of tokenizer_dir first, and are trusted text.
  static Result<std::shared_ptr<const ChatTemplate>> load(const std::string& model_dir,
                                                          const std::string& override_template = {},
                                                          const std::string& tokenizer_dir = {});

  /// The same from a template's text. `special_tokens` is an object of name to string, e.g. {"bos_token": "<s>"}.
  static Result<std::shared_ptr<const ChatTemplate>> compile(
      const std::string& source, const nlohmann::ordered_json& special_tokens = {});

  /// The prompt, equal byte for byte to transformers' apply_chat_template(tokenize=False). `messages` is the
  /// request's list, `tools` its list or null, `kwargs` an object (chat_template_kwargs) or null; all of
  /// their strings are untrusted and stay so through concatenation, filters and methods. The argument types
  /// keep the order of keys, which the rendering of tools shows: parse requests into nlohmann::ordered_json.
  /// Adjacent spans differ in trust, no span is empty. Errors: invalid_argument with the template's own
  /// message (raise_exception), with the line of a failing expression, or when a limit is hit (reason
  /// "template_limit").
  Result<std::vector<TextSpan>> render(const nlohmann::ordered_json& messages,
                                       const nlohmann::ordered_json& tools,
                                       const nlohmann::ordered_json& kwargs, bool add_generation_prompt,
                                       const RenderLimits& limits = {}) const;

  /// Whether the template reads a variable of this name: a key of chat_template_kwargs that it does not read
  /// has no effect.
  bool reads(std::string_view variable) const;

  const std::string& source() const { return source_; }

 private:
  ChatTemplate(std::string source, std::shared_ptr<const jinja::Template> compiled,
               nlohmann::ordered_json special_tokens);

  std::string source_;
  std::shared_ptr<const jinja::Template> compiled_;
  nlohmann::ordered_json special_tokens_;
};

}  // namespace troupe
