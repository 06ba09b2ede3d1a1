#include "text/template/chat_template.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "config/json_file.h"
#include "text/template/jinja/template.h"

namespace troupe {
namespace {

using Json = nlohmann::ordered_json;  // the order of keys is rendered

constexpr std::uintmax_t kMaxFileBytes = 16 << 20;

/// not_found when there is no such file.
Result<std::string> read_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return failure(Code::not_found, "there is no file " + path.string());
  }
  if (std::filesystem::file_size(path, error) > kMaxFileBytes || error) {
    return invalid(path.string() + " is larger than 16 MiB or cannot be read");
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) return invalid("cannot read " + path.string());
  return text.str();
}

/// null when there is no such file.
Result<nlohmann::json> read_json(const std::filesystem::path& path) {
  Result<std::string> text = read_file(path);
  if (!text.ok())
    return text.status().code == Code::not_found ? Result<nlohmann::json>(nlohmann::json()) : text.status();
  return config::parse_json_object(*text, path.string());
}

/// Adds the missing "..._token" entries (a string, or an object with "content") and lists of them.
void collect_special_tokens(const nlohmann::json& config, Json& special_tokens) {
  auto content = [](const nlohmann::json& entry) -> nlohmann::json {
    if (entry.is_string()) return entry;
    return entry.is_object() && entry.contains("content") && entry["content"].is_string() ? entry["content"]
                                                                                          : nlohmann::json();
  };
  if (!config.is_object()) return;
  for (const auto& [name, entry] : config.items()) {
    const std::string_view key = name;
    if (special_tokens.contains(name)) continue;
    if (key.ends_with("_token")) {
      const nlohmann::json text = content(entry);
      if (!text.is_null()) special_tokens[name] = text;
    } else if (key == "additional_special_tokens" && entry.is_array()) {
      Json list = Json::array();
      for (const nlohmann::json& token : entry) list.push_back(Json(content(token)));
      special_tokens[name] = std::move(list);
    }
  }
}

/// not_found when the config names no template.
Result<std::string> template_of_config(const nlohmann::json& config, const std::string& model_dir) {
  const nlohmann::json entry =
      config.is_object() && config.contains("chat_template") ? config["chat_template"] : nlohmann::json();
  if (entry.is_string()) return entry.get<std::string>();
  if (entry.is_array()) {
    for (const nlohmann::json& named : entry) {
      if (named.is_object() && named.value("name", nlohmann::json()) == "default" &&
          named.value("template", nlohmann::json()).is_string()) {
        return named["template"].get<std::string>();
      }
    }
    return invalid("the list chat_template in " + model_dir +
                   "/tokenizer_config.json has no entry named \"default\"");
  }
  if (!entry.is_null())
    return invalid("chat_template in " + model_dir + "/tokenizer_config.json is not a string");
  return failure(Code::not_found,
                 model_dir + " has no chat template: neither chat_template.jinja nor chat_template in " +
                     "tokenizer_config.json; give one with --chat-template");
}

/// A directory that may hold a template, and its tokenizer_config.json.
struct Place {
  std::string directory;
  nlohmann::json config;
};

/// The template of the first place that has one; not_found, of the first place, when none has.
Result<std::string> find_source(const std::vector<Place>& places, const std::string& override_template) {
  if (!override_template.empty()) {
    const bool inline_text = override_template.find("{{") != std::string::npos ||
                             override_template.find("{%") != std::string::npos;
    if (inline_text) return override_template;
    Result<std::string> file = read_file(override_template);
    if (file.ok()) return file;
    Status status = file.status();
    status.message =
        "--chat-template: " + status.message + ", and it is no template itself, without {{ or {%";
    return status;
  }
  std::optional<Status> missing;
  for (const Place& place : places) {
    Result<std::string> source = read_file(std::filesystem::path(place.directory) / "chat_template.jinja");
    if (source.ok() || source.status().code != Code::not_found) return source;
    source = template_of_config(place.config, place.directory);
    if (source.ok() || source.status().code != Code::not_found) return source;
    if (!missing) missing = source.status();
  }
  return *missing;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::shared_ptr<const jinja::Template> compiled,
                           Json special_tokens)
    : source_(std::move(source)),
      compiled_(std::move(compiled)),
      special_tokens_(std::move(special_tokens)) {}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::load(const std::string& model_dir,
                                                               const std::string& override_template,
                                                               const std::string& tokenizer_dir) {
  std::vector<Place> places{{model_dir, {}}};
  std::error_code error;
  if (std::filesystem::is_directory(tokenizer_dir, error)) places.push_back({tokenizer_dir, {}});
  Json special_tokens = Json::object();
  for (auto place = places.rbegin(); place != places.rend(); ++place) {
    const std::filesystem::path dir(place->directory);
    auto config = read_json(dir / "tokenizer_config.json");
    if (!config.ok()) return config.status();
    const auto map = read_json(dir / "special_tokens_map.json");
    if (!map.ok()) return map.status();
    collect_special_tokens(*config, special_tokens);
    collect_special_tokens(*map, special_tokens);
    place->config = *std::move(config);
  }
  Result<std::string> source = find_source(places, override_template);
  if (!source.ok()) return source.status();
  return compile(*source, special_tokens);
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::compile(const std::string& source,
                                                                  const Json& special_tokens) {
  Result<std::shared_ptr<const jinja::Template>> compiled = jinja::Template::compile(source);
  if (!compiled.ok()) return compiled.status();
  return std::shared_ptr<const ChatTemplate>(
      new ChatTemplate(source, *compiled, special_tokens.is_object() ? special_tokens : Json::object()));
}

bool ChatTemplate::reads(std::string_view variable) const { return compiled_->reads(variable); }

Result<std::vector<TextSpan>> ChatTemplate::render(const Json& messages, const Json& tools,
                                                   const Json& kwargs, bool add_generation_prompt,
                                                   const RenderLimits& limits) const {
  if (!kwargs.is_null() && !kwargs.is_object()) {
    return invalid("chat_template_kwargs must be an object", "chat_template_kwargs", "invalid_value");
  }
  const Json documents;
  const Json generation = add_generation_prompt;
  // A later input of the same name replaces an earlier one.
  std::vector<jinja::Input> inputs;
  for (auto token = special_tokens_.begin(); token != special_tokens_.end(); ++token) {
    inputs.push_back({token.key(), &token.value(), true});
  }
  inputs.push_back({"documents", &documents, false});
  inputs.push_back({"tools", &tools, false});
  inputs.push_back({"add_generation_prompt", &generation, true});
  for (auto kwarg = kwargs.begin(); kwargs.is_object() && kwarg != kwargs.end(); ++kwarg) {
    if (kwarg.key() == "messages" || kwarg.key() == "tools") {
      return invalid("chat_template_kwargs cannot set \"" + kwarg.key() + "\"", "chat_template_kwargs",
                     "invalid_value");
    }
    if (reads(kwarg.key())) inputs.push_back({kwarg.key(), &kwarg.value(), false});
  }
  inputs.push_back({"messages", &messages, false});
  Result<jinja::Text> text = compiled_->render(inputs, limits);
  if (!text.ok()) return text.status();
  return text->spans();
}

}  // namespace troupe
