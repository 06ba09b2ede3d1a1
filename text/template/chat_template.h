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
  /// A template for requests with tools may stand beside it: the file
  /// additional_chat_templates/tool_use.jinja, or "tool_use" of the same list; the override has none.
  /// Code::not_found if none exists. A syntax error names the line. A template that cannot render an ordinary
  /// chat because it uses a filter, test, function or method that does not exist here is an error that names
  /// it. bos_token, eos_token and similar come from tokenizer_config.json and special_tokens_map.json, of
  /// tokenizer_dir first, and are trusted text.
  static Result<std::shared_ptr<const ChatTemplate>> load(const std::string& model_dir,
                                                          const std::string& override_template = {},
                                                          const std::string& tokenizer_dir = {});

  /// The same from a template's text, without rendering anything. `special_tokens` is an object of name to
  /// string, e.g.
  /// {"bos_token": "<s>"}. `tool_use` is the template for requests with tools; empty: the same.
  static Result<std::shared_ptr<const ChatTemplate>> compile(
      const std::string& source, const nlohmann::ordered_json& special_tokens = {},
      const std::string& tool_use = {});

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

  /// True if the template, or the one for tools, reads a variable of this name: a key of chat_template_kwargs
  /// that neither reads has no effect.
  bool reads(std::string_view variable) const;

  /// True if this text occurs in the template that requests with tools get.
  bool mentions_with_tools(std::string_view text) const {
    return tool_use().source.find(text) != std::string::npos;
  }

  /// The filters, tests, functions and methods that do not exist here although the template, or the one for
  /// tools, names them, each with its line: a chat that comes to such a place fails.
  std::vector<std::string> missing() const;

 private:
  struct Compiled {
    std::string source;
    std::shared_ptr<const jinja::Template> code;
  };
  ChatTemplate(Compiled plain, Compiled tool_use, nlohmann::ordered_json special_tokens);
  const Compiled& tool_use() const { return tool_use_.code ? tool_use_ : plain_; }

  Compiled plain_;
  Compiled tool_use_;  ///< without code: there is none
  nlohmann::ordered_json special_tokens_;
};

}  // namespace troupe
