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

/// The entry of a list of {name, template}; null when there is none.
const std::string* named_template(const nlohmann::json& list, std::string_view name) {
  for (const nlohmann::json& entry : list) {
    if (!entry.is_object()) continue;
    const auto its_name = entry.find("name"), text = entry.find("template");
    if (its_name == entry.end() || !its_name->is_string() || its_name->get_ref<const std::string&>() != name)
      continue;
    if (text != entry.end() && text->is_string()) return &text->get_ref<const std::string&>();
  }
  return nullptr;
}

/// A template, and the one that stands beside it for requests with tools; empty: there is none.
struct Sources {
  std::string plain;
  std::string tool_use;
};

/// not_found when the config names no template.
Result<Sources> templates_of_config(const nlohmann::json& config, const std::string& model_dir) {
  const nlohmann::json entry =
      config.is_object() && config.contains("chat_template") ? config["chat_template"] : nlohmann::json();
  if (entry.is_string()) return Sources{entry.get<std::string>(), {}};
  if (entry.is_array()) {
    const std::string* tool_use = named_template(entry, "tool_use");
    if (const std::string* plain = named_template(entry, "default")) {
      return Sources{*plain, tool_use == nullptr ? std::string() : *tool_use};
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

/// The templates of a directory; not_found when it has none.
Result<Sources> find_in(const Place& place) {
  const std::filesystem::path directory(place.directory);
  Result<std::string> file = read_file(directory / "chat_template.jinja");
  if (!file.ok() && file.status().code != Code::not_found) return file.status();
  Result<Sources> found = file.ok() ? Result<Sources>(Sources{*std::move(file), {}})
                                    : templates_of_config(place.config, place.directory);
  if (!found.ok()) return found;
  Result<std::string> tool_use = read_file(directory / "additional_chat_templates" / "tool_use.jinja");
  if (tool_use.ok()) {
    found->tool_use = *std::move(tool_use);
  } else if (tool_use.status().code != Code::not_found) {
    return tool_use.status();
  }
  return found;
}

/// The templates of the first place that has one; not_found, of the first place, when none has.
Result<Sources> find_sources(const std::vector<Place>& places, const std::string& override_template) {
  if (!override_template.empty()) {
    const bool inline_text = override_template.find("{{") != std::string::npos ||
                             override_template.find("{%") != std::string::npos;
    if (inline_text) return Sources{override_template, {}};
    Result<std::string> file = read_file(override_template);
    if (file.ok()) return Sources{*std::move(file), {}};
    Status status = file.status();
    status.message =
        "--chat-template: " + status.message + ", and it is no template itself, without {{ or {%";
    return status;
  }
  std::optional<Status> missing;
  for (const Place& place : places) {
    Result<Sources> found = find_in(place);
    if (found.ok() || found.status().code != Code::not_found) return found;
    if (!missing) missing = found.status();
  }
  return *missing;
}

/// An error if an ordinary chat fails for want of a name; other failures are the template's own business.
Status try_out(const ChatTemplate& chat) {
  static const Json kChats = Json::parse(R"([[{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
     {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "And?"}]])");
  for (const Json& messages : kChats) {
    Status status = chat.render(messages, nullptr, nullptr, true).status();
    if (status.reason != jinja::kMissingName) continue;
    status.message += ": this server's Jinja does not offer it; give another template with --chat-template";
    return status;
  }
  return {};
}

}  // namespace

ChatTemplate::ChatTemplate(Compiled plain, Compiled tool_use, Json special_tokens)
    : plain_(std::move(plain)), tool_use_(std::move(tool_use)), special_tokens_(std::move(special_tokens)) {}

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
  const Result<Sources> sources = find_sources(places, override_template);
  if (!sources.ok()) return sources.status();
  auto chat = compile(sources->plain, special_tokens, sources->tool_use);
  if (!chat.ok()) return chat.status();
  if (Status status = try_out(**chat); !status.ok()) return status;
  return chat;
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::compile(const std::string& source,
                                                                  const Json& special_tokens,
                                                                  const std::string& tool_use) {
  Result<std::shared_ptr<const jinja::Template>> plain = jinja::Template::compile(source);
  if (!plain.ok()) return plain.status();
  Compiled for_tools;
  if (!tool_use.empty()) {
    Result<std::shared_ptr<const jinja::Template>> code = jinja::Template::compile(tool_use);
    if (!code.ok()) {
      Status status = code.status();
      status.message = "the chat template tool_use: " + status.message;
      return status;
    }
    for_tools = {tool_use, *code};
  }
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(
      {source, *plain}, std::move(for_tools), special_tokens.is_object() ? special_tokens : Json::object()));
}

bool ChatTemplate::reads(std::string_view variable) const {
  return plain_.code->reads(variable) || tool_use().code->reads(variable);
}

std::vector<std::string> ChatTemplate::missing() const {
  std::vector<std::string> names = plain_.code->missing();
  if (!tool_use_.code) return names;
  for (const std::string& name : tool_use_.code->missing()) names.push_back(name + " of tool_use");
  return names;
}

Result<std::vector<TextSpan>> ChatTemplate::render(const Json& messages, const Json& tools,
                                                   const Json& kwargs, bool add_generation_prompt,
                                                   const RenderLimits& limits) const {
  if (!kwargs.is_null() && !kwargs.is_object()) {
    return invalid("chat_template_kwargs must be an object", "chat_template_kwargs", "invalid_value");
  }
  const bool with_tools = tools.is_array() && !tools.empty();
  const jinja::Template& code = with_tools ? *tool_use().code : *plain_.code;
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
    if (code.reads(kwarg.key())) inputs.push_back({kwarg.key(), &kwarg.value(), false});
  }
  inputs.push_back({"messages", &messages, false});
  Result<jinja::Text> text = code.render(inputs, limits);
  if (!text.ok()) return text.status();
  return text->spans();
}

}  // namespace troupe
