#include "config/named_models.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>

#include "base/counted.h"
#include "config/in_quotes.h"
#include "config/parse.h"
#include "config/validate.h"

namespace troupe::config {
namespace {

constexpr std::size_t kMostNameBytes = 128;

Status refused(std::string message, const char* flag) {
  return invalid("--" + std::string(flag) + ": " + std::move(message), flag, "invalid_value");
}

Status check_name(const std::string& name) {
  const auto plain = [](unsigned char c) { return c > ' ' && c != '"' && c != 0x7f; };
  if (name.size() <= kMostNameBytes && std::all_of(name.begin(), name.end(), plain)) return {};
  return refused("got the name " + in_quotes(name.substr(0, kMostNameBytes)) +
                     ", expected 1 to 128 characters without blanks and quotes",
                 "model");
}

bool has_ending(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view one) { return path.ends_with(one); });
}

/// What belongs to one model, or joins instances that have the same one.
Status check_beside(const Options& o, int models) {
  struct Beside {
    bool given;
    const char* flag;
    const char* why;
  };
  const ModelOptions& m = o.model;
  const Beside all[] = {
      {!m.served_model_names.empty(), "served-model-name", "each has the NAME of its --model NAME=DIRECTORY"},
      {!m.tokenizer.empty(), "tokenizer", "each has that of its directory, or of its file of options"},
      {!m.chat_template.empty(), "chat-template",
       "each has that of its directory, or of its file of options"},
      {m.download, "download", "fetch each with `troupe pull`"},
      {o.parallel.data_parallel_size != 1 && o.parallel.data_parallel_size != models, "data-parallel-size",
       "each has one engine"},
      {!o.remote.engines.empty(), "engines", "engines on other machines have one model"},
      {!o.remote.prefill_engines.empty(), "prefill-engines", "prefill and decode instances have one model"},
      {o.takes_fronts(), "listen", "an engine has one model"},
      {o.split.role != SplitRole::mixed, "splitwise-role", "prefill and decode instances have one model"},
      {!o.speculation.draft_model.empty(), "speculative-config",
       "the draft layer belongs to one model; its file of options can name it"},
      {!o.cache.swap_path.empty(), "swap-path", "the file belongs to one model"},
  };
  for (const Beside& one : all) {
    if (one.given) return refused(std::string("cannot be used with several models: ") + one.why, one.flag);
  }
  return {};
}

}  // namespace

bool is_named_model(std::string_view text) {
  const std::size_t sign = text.find('=');
  if (sign == text.npos || sign == 0 || sign + 1 == text.size()) return false;
  if (text.front() == '/' || text.front() == '.' || text.front() == '~') return false;
  std::error_code error;
  return !std::filesystem::is_directory(std::filesystem::path(text), error);
}

std::vector<NamedModel> named_models(const std::string& model) {
  std::vector<NamedModel> models;
  if (!is_named_model(model)) return models;
  for (std::size_t at = 0; at < model.size();) {
    const std::string_view rest = std::string_view(model).substr(at);
    const std::string_view part = rest.substr(0, rest.find(','));
    at += part.size() + 1;
    const std::size_t sign = part.find('=');
    if (sign == part.npos) {  // a comma of the path before it
      models.back().model += "," + std::string(part);
    } else {
      models.push_back({std::string(part.substr(0, sign)), std::string(part.substr(sign + 1))});
    }
  }
  return models;
}

Status settle_named_models(Options& options) {
  const std::vector<NamedModel> models = named_models(options.model.model);
  if (models.empty()) return {};
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (models[i].name.empty() || models[i].model.empty())
      return refused("got a part without a name or a directory, expected NAME=DIRECTORY", "model");
    if (Status status = check_name(models[i].name); !status.ok()) return status;
    const auto same = [&](const NamedModel& other) { return other.name == models[i].name; };
    if (std::any_of(models.begin(), models.begin() + static_cast<std::ptrdiff_t>(i), same))
      return refused("names two models " + in_quotes(models[i].name) + "; each needs a name of its own",
                     "model");
  }
  if (models.size() == 1) {
    std::vector<std::string>& names = options.model.served_model_names;
    names.insert(names.begin(), models.front().name);
    options.model.model = models.front().model;
    return {};
  }
  if (models.size() > static_cast<std::size_t>(kMostEngines)) {
    return refused("names " + counted(models.size(), "model") + "; at most " + std::to_string(kMostEngines) +
                       " are allowed",
                   "model");
  }
  if (Status status = check_beside(options, static_cast<int>(models.size())); !status.ok()) return status;
  options.parallel.data_parallel_size = static_cast<int>(models.size());
  return {};
}

Result<std::vector<Options>> options_of_models(const Options& options) {
  std::vector<Options> each;
  for (const NamedModel& one : named_models(options.model.model)) {
    Options& own = each.emplace_back(options);
    own.model.model = one.model;
    if (has_ending(one.model, {".yaml", ".yml", ".json"})) {
      if (Status status = read_model_file(one.model, own); !status.ok()) return status;
      if (Status status = validate(own); !status.ok()) {
        status.message = one.model + ": " + status.message;
        return status;
      }
    }
    own.model.served_model_names = {one.name};
    own.model.any_model_name = options.model.any_model_name && each.size() == 1;  // the first answers
  }
  return each;
}

}  // namespace troupe::config
