#include "config/parse.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "config/arguments.h"
#include "config/config_file.h"
#include "config/dump.h"
#include "config/environment.h"
#include "config/fields.h"
#include "config/media_rules.h"
#include "config/named_models.h"
#include "config/nearest.h"
#include "config/platform_variables.h"
#include "config/speculation.h"
#include "config/validate.h"

namespace troupe::config {
namespace {

/// Sets fields from one source after the other; each overrides those before it.
class Layers {
 public:
  explicit Layers(const std::vector<Field>& fields) : fields_(fields) {}

  /// A list from a later source replaces an earlier one's; within one source it grows.
  void next_source() { lists_.clear(); }

  Status set(const Field& field, const std::string& written, std::string_view value) {
    const bool named = field.name == "model" && is_named_model(value);
    if (field.name == "model" && !named && lists_.contains(&field))
      return invalid(written + ": got \"" + std::string(value.substr(0, 80)) +
                         "\" beside a model with a name; of several each is NAME=DIRECTORY",
                     "model", "invalid_value");
    const bool first = (is_list(field) || named) && lists_.insert(&field).second;
    if (first) clear_list(field);
    const std::string before = named && !first ? show_value(field) : std::string();
    const Status status =
        before.empty() ? set_value(field, value) : set_value(field, before + "," + std::string(value));
    if (status.ok()) return {};
    return invalid(written + ": " + status.message, std::string(field.name), "invalid_value");
  }

  Status read_file(const std::string& path) {
    next_source();
    const auto entries = read_config_file(path);
    if (!entries.ok()) return entries.status();
    std::map<const Field*, const FileEntry*> given;
    for (const FileEntry& entry : *entries) {
      const Field* field = find_field(fields_, entry.name);
      if (field == nullptr) return unknown_option(path, entry.name);
      if (field->name == "config") return invalid(path + ": config cannot be given in a config file");
      const auto [first, fresh] = given.emplace(field, &entry);
      if (!fresh) return given_twice(path, *first->second, entry);
      const std::string written = path + ": " + entry.name;
      const bool models =
          field->name == "model" && std::all_of(entry.values.begin(), entry.values.end(), is_named_model);
      if (entry.values.size() > 1 && !is_list(*field) && !models)
        return invalid(written + ": takes one value, not a list");
      for (const std::string& value : entry.values) {
        Status status = set(*field, written, value);
        if (!status.ok()) return status;
      }
    }
    return {};
  }

  Status read_arguments(const Arguments& arguments) {
    next_source();
    for (const Argument& argument : arguments.given) {
      Status status = set(*argument.field, argument.written, argument.value);
      if (!status.ok()) return status;
    }
    return {};
  }

 private:
  static Status given_twice(const std::string& path, const FileEntry& first, const FileEntry& second) {
    const std::string names =
        first.name == second.name ? second.name : second.name + ", which is also " + first.name + ",";
    return invalid(path + ":" + std::to_string(second.line) + ": " + names + " is given twice, in lines " +
                       std::to_string(first.line) + " and " + std::to_string(second.line),
                   second.name, "duplicate_key");
  }

  Status unknown_option(const std::string& path, const std::string& name) const {
    std::vector<std::string_view> names;
    for (const Field& field : fields_) {
      if (!field.hidden) names.push_back(field.name);
    }
    return invalid(path + ": unknown option " + name + did_you_mean(canonical(name), names), name,
                   "unknown_flag");
  }

  const std::vector<Field>& fields_;
  std::set<const Field*> lists_;
};

bool contains(const std::vector<std::string_view>& values, std::string_view value) {
  return std::ranges::count(values, value) > 0;
}

std::string as_written(const Field& field) {
  const std::string value = show_value(field);
  const std::string name(field.name);
  if (field.secret) return "--" + name;
  if (is_switch(field)) return value == "false" ? "--no-" + name : "--" + name;
  return "--" + name + " " + value;
}

void judge_fields(const std::vector<Field>& given, std::vector<std::string>& warnings,
                  std::vector<std::string>& refusals) {
  Options defaults;
  const std::vector<Field> untouched = fields(defaults);
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Field& field = given[i];
    const std::string value = show_value(field);
    if (const std::string why = field.refusal != nullptr ? field.refusal(value) : std::string();
        !why.empty()) {
      refusals.push_back(as_written(field) + ": " + why);
    }
    const bool asks = value != show_value(untouched[i]) && !contains(field.also_fine, value);
    const std::string line = as_written(field) + ": " + std::string(field.reason);
    if (asks && field.standing == Standing::refused) {
      refusals.push_back(line + "; leave it out");
    } else if (asks && field.standing == Standing::harmless) {
      warnings.push_back("no effect: " + line);
    }
  }
}

/// A field that works, but not beside the other values.
void judge_pairs(const Options& options, const std::vector<Field>& all, std::vector<std::string>& warnings) {
  if (!options.scheduler.preempts || options.scheduler.kv_cache_ratio == SchedulerOptions{}.kv_cache_ratio) {
    return;
  }
  const auto ratio = std::ranges::find(all, "kv-cache-ratio", &Field::name);
  warnings.push_back("no effect: " + as_written(*ratio) +
                     ": prompts and answers share all blocks unless ENABLE_V1_KVCACHE_SCHEDULER is 0");
}

void judge_variables(const Environment& environment, std::vector<std::string>& warnings,
                     std::vector<std::string>& refusals) {
  const std::set<std::string> platform = platform_variables(environment);
  for (const auto& [name, value] : environment) {
    if (value.empty() || platform.contains(name)) continue;
    for (const KnownVariable& known : known_variables()) {
      const bool family = known.name.ends_with('*');
      const bool same =
          family ? name.starts_with(known.name.substr(0, known.name.size() - 1)) : name == known.name;
      if (!same || value == known.default_value) continue;
      // The value of a variable that is known by its beginning only is not shown: it may be a key.
      const std::string line =
          name + (family ? "" : "=" + value.substr(0, 80)) + ": " + std::string(known.reason);
      if (known.effect == Effect::refused) refusals.push_back(line + "; unset it");
      if (known.effect == Effect::ignored) warnings.push_back("no effect: " + line);
      break;
    }
  }
}

/// A misspelt TROUPE_ variable would go unnoticed, unlike a misspelt flag.
void judge_names(const Environment& environment, const std::vector<Field>& fields,
                 std::vector<std::string>& warnings) {
  constexpr std::string_view kPrefix = "TROUPE_";
  std::vector<std::string> names;
  for (const Field& field : fields) names.push_back(variable_name(field).substr(kPrefix.size()));
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::set<std::string> platform = platform_variables(environment);
  for (const auto& [variable, value] : environment) {
    if (!variable.starts_with(kPrefix) || platform.contains(variable)) continue;
    const std::string_view name = std::string_view(variable).substr(kPrefix.size());
    if (contains(views, name)) continue;
    const std::string guess = did_you_mean(name, views, kPrefix);
    if (!guess.empty()) warnings.push_back("unknown variable " + variable + guess);
  }
}

Status refusal(const std::vector<std::string>& refusals) {
  std::string message;
  for (const std::string& line : refusals) {
    message += (message.empty() ? "" : "\n") + std::string("not available yet: ") + line;
  }
  return {Code::unsupported, message, {}, "not_available_yet"};
}

std::string config_path(const Arguments& arguments, const Environment& environment) {
  std::string path;
  const auto variable = environment.find("TROUPE_CONFIG");
  if (variable != environment.end()) path = variable->second;
  for (const Argument& argument : arguments.given) {
    if (argument.field->name == "config") path = argument.value;
  }
  return path;
}

}  // namespace

Environment process_environment() {
  Environment out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t sign = text.find('=');
    if (sign != std::string_view::npos) out.emplace(text.substr(0, sign), text.substr(sign + 1));
  }
  return out;
}

std::string default_runtime_dir(const Environment& environment) {
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  const bool given = runtime != environment.end() && runtime->second.starts_with('/');
  return (given ? runtime->second : "/tmp/troupe-" + std::to_string(::getuid())) + "/troupe";
}

std::string default_cache_dir(const Environment& environment) {
  const auto absolute = [&](const char* name) {
    const auto found = environment.find(name);
    return found != environment.end() && found->second.starts_with('/') ? found->second : std::string();
  };
  if (const std::string cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache + "/troupe";
  if (const std::string home = absolute("HOME"); !home.empty()) return home + "/.cache/troupe";
  return default_runtime_dir(environment);
}

std::string service_manager_socket(const Environment& environment) {
  const auto socket = environment.find("NOTIFY_SOCKET");
  return socket == environment.end() ? std::string() : socket->second;
}

Status read_environment(const Environment& environment, const std::vector<Field>& fields) {
  const std::set<std::string> platform = platform_variables(environment);
  for (const Field& field : fields) {
    for (const std::string& name : {std::string(field.env), variable_name(field)}) {
      const auto found = environment.find(name);
      if (field.hidden || found == environment.end() || platform.contains(name)) continue;
      if (found->second.empty() && field.refuses_empty) {
        return invalid(name + " is set, but empty: unset it, or give it a value", std::string(field.name),
                       "invalid_value");
      }
      if (found->second.empty()) continue;
      clear_list(field);
      const Status status = set_value(field, found->second);
      if (!status.ok())
        return invalid(name + ": " + status.message, std::string(field.name), "invalid_value");
    }
  }
  return {};
}

Status read_model_file(const std::string& path, Options& options) {
  constexpr std::string_view kGroups[] = {"Model",      "Chat answers", "Device and memory", "Quantisation",
                                          "Scheduling", "Speculation",  "KV cache"};
  constexpr std::string_view kOfTheServer[] = {"served-model-name", "any-model-name", "download",
                                               "swap-path"};
  const auto has = [](const auto& list, std::string_view one) {
    return std::find(std::begin(list), std::end(list), one) != std::end(list);
  };
  const std::vector<Field> all = fields(options);
  const auto entries = read_config_file(path);
  if (!entries.ok()) return entries.status();
  for (const FileEntry& entry : *entries) {
    const Field* field = find_field(all, entry.name);
    if (field == nullptr || (has(kGroups, field->group) && !has(kOfTheServer, field->name))) continue;
    return invalid(path + ": " + entry.name + " is no option of one model; it is given for all",
                   std::string(field->name), "invalid_value");
  }
  options.model.model.clear();
  if (Status status = Layers(all).read_file(path); !status.ok()) return status;
  if (!options.model.model.empty() && named_models(options.model.model).empty()) return {};
  return invalid(path + ": model is missing or has a name; it is the directory of the one model", "model",
                 "invalid_value");
}

Result<ParsedOptions> parse(const std::vector<std::string>& arguments, const Environment& environment) {
  ParsedOptions out;
  Options& options = out.options;
  const std::vector<Field> all = fields(options);
  Result<Arguments> split = split_arguments(arguments, all);
  if (!split.ok()) return split.status();
  if (!split->help.empty()) {
    out.help = split->help;
    return out;
  }
  if (!split->words.empty()) {
    return invalid("unexpected \"" + split->words.front() + "\": every option is written --name value");
  }

  Layers layers(all);
  Status status;
  const std::string path = config_path(*split, environment);
  if (!path.empty()) status = layers.read_file(path);
  if (status.ok()) status = read_environment(environment, all);
  if (status.ok()) status = layers.read_arguments(*split);
  if (status.ok()) status = check_utf8(all);
  if (status.ok()) status = settle_named_models(options);
  if (status.ok()) status = validate(options);
  if (status.ok()) status = options_of_models(options).status();
  if (!status.ok()) return status;

  std::vector<std::string> refusals;
  if (std::string note = platform_note(environment, all, true); !note.empty())
    out.warnings.push_back(std::move(note));
  judge_fields(all, out.warnings, refusals);
  judge_pairs(options, all, out.warnings);
  if (std::string unknown = unknown_media_sizes(options.media.processor_kwargs); !unknown.empty())
    out.warnings.push_back(std::move(unknown));
  for (std::string& line : speculation_warnings(options.speculation.json))
    out.warnings.push_back(std::move(line));
  judge_variables(environment, out.warnings, refusals);
  judge_names(environment, all, out.warnings);
  if (!refusals.empty()) return refusal(refusals);
  if (options.process.runtime_dir.empty()) options.process.runtime_dir = default_runtime_dir(environment);
  return out;
}

int exit_code(const Status& status) {
  if (status.ok()) return 0;
  switch (status.code) {
    case Code::invalid_argument:
    case Code::not_found:
    case Code::too_large: return 2;
    case Code::unsupported: return 3;
    default: return 1;
  }
}

}  // namespace troupe::config
