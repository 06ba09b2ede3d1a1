#include "cli/calibration_prompts.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "config/json_file.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace troupe::cli {
namespace {

constexpr std::size_t kMostBytes = std::size_t{256} << 20;
constexpr const char* kForms = R"({"messages": […]}, {"prompt": "…"} and {"text": "…"} are read)";

class Reader {
 public:
  Reader(const config::ModelOptions& model, std::shared_ptr<const Tokenizer> tokenizer)
      : model_(model), tokenizer_(std::move(tokenizer)) {}

  Result<std::vector<TokenId>> tokens_of(std::string_view line) {
    // Checks the depth, which protects the parser below.
    if (const auto object = config::parse_json_object(line, "the line"); !object.ok()) return object.status();
    const Json json = Json::parse(line);
    if (const auto found = json.find("messages"); found != json.end()) return conversation(*found, json);
    if (const auto found = json.find("prompt"); found != json.end()) {
      if (found->is_array()) return ids(*found);
      return text("prompt", *found, SpecialTokens::parse);
    }
    if (const auto found = json.find("text"); found != json.end())
      return text("text", *found, SpecialTokens::plain);
    return invalid(std::string("the line has neither messages nor prompt nor text; ") + kForms);
  }

 private:
  Result<std::vector<TokenId>> text(const char* key, const Json& value, SpecialTokens special) const {
    if (!value.is_string()) return invalid(std::string(key) + " is no text; " + kForms);
    return tokenizer_->encode(value.get_ref<const std::string&>(), special);
  }

  Result<std::vector<TokenId>> ids(const Json& value) const {
    std::vector<TokenId> made;
    for (const Json& id : value) {
      const bool known = id.is_number_integer() && id >= 0 && id < tokenizer_->vocab_size();
      if (!known) {
        return invalid("prompt has " + id.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40) +
                       " among its token ids; allowed are 0 to " +
                       std::to_string(tokenizer_->vocab_size() - 1));
      }
      made.push_back(id.get<TokenId>());
    }
    return made;
  }

  Result<std::vector<TokenId>> conversation(const Json& messages, const Json& line) {
    if (!messages.is_array() || messages.empty()) return invalid("messages is no list of messages");
    if (!template_) {
      auto loaded = ChatTemplate::load(model_.directory, model_.chat_template, model_.tokenizer);
      if (!loaded.ok()) return loaded.status();
      template_ = *std::move(loaded);
    }
    const auto tools = line.find("tools");
    const Json& last = messages.back();
    const bool answered = last.is_object() && last.contains("role") && last["role"] == "assistant";
    const auto spans = template_->render(messages, tools != line.end() ? *tools : Json(), Json(), !answered);
    if (!spans.ok()) return spans.status();
    return tokenizer_->encode(*spans);
  }

  const config::ModelOptions& model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;  // loaded by the first line that needs it
};

/// The tokens again, or the first that the model lacks.
Result<std::vector<TokenId>> within(std::vector<TokenId> tokens, int vocab) {
  const auto found = std::ranges::find_if(tokens, [vocab](TokenId id) { return id >= vocab; });
  if (found == tokens.end()) return tokens;
  return invalid("the tokenizer makes the token " + std::to_string(*found) + ", and the model has 0 to " +
                 std::to_string(vocab - 1));
}

/// FNV-1a, which is the same on every machine.
std::string hash_of(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char text[32];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

}  // namespace

Result<CalibrationPrompts> read_calibration_prompts(const std::string& file,
                                                    const config::ModelOptions& model,
                                                    std::size_t most_tokens, int vocab) {
  const Result<std::string> content = config::read_small_file(file, kMostBytes);
  if (!content.ok())
    return Status{content.status().code, "--calibrate: " + content.status().message, "calibrate"};
  auto tokenizer = Tokenizer::load(model.directory, model.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  Reader reader(model, *std::move(tokenizer));
  CalibrationPrompts made;
  std::string_view rest = *content;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto tokens = reader.tokens_of(line);
    if (tokens.ok()) tokens = within(*std::move(tokens), vocab);
    if (!tokens.ok()) {
      return invalid("--calibrate: " + file + ":" + std::to_string(number) + ": " + tokens.status().message,
                     "calibrate");
    }
    if (tokens->empty()) continue;
    made.cut += tokens->size() > most_tokens;
    if (tokens->size() > most_tokens) tokens->resize(most_tokens);
    made.prompts.push_back(*std::move(tokens));
  }
  if (made.prompts.empty()) return invalid("--calibrate: " + file + " has no prompt; " + kForms, "calibrate");
  made.key = std::to_string(content->size()) + "-" + hash_of(*content);
  return made;
}

}  // namespace troupe::cli
