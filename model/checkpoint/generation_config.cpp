#include "model/checkpoint/generation_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/json_file.h"

namespace troupe::model {
namespace {

using nlohmann::json;

Status wrong(const std::string& where, const char* key, const json& value, const std::string& allowed) {
  return invalid(
      where + ": " + key + " is " + value.dump(-1, ' ', true).substr(0, 64) + ", allowed is " + allowed, key);
}

bool is_token(const json& value) {
  return value.is_number_integer() && value >= 0 && value < (std::int64_t{1} << 31);
}

Status read_eos(const std::string& where, const json& file, std::vector<TokenId>& out) {
  const auto it = file.find("eos_token_id");
  if (it == file.end() || it->is_null()) return {};
  const json list = it->is_array() ? *it : json::array({*it});
  for (const json& id : list) {
    if (!is_token(id) || out.size() == 64) {
      return wrong(where, "eos_token_id", *it, "a token id or a list of up to 64");
    }
    out.push_back(id.get<TokenId>());
  }
  return {};
}

template <class Number>
Status read_number(const std::string& where, const json& file, const char* key, double least, double most,
                   std::optional<Number>& out) {
  const auto it = file.find(key);
  if (it == file.end() || it->is_null()) return {};
  if (!it->is_number() || it->get<double>() < least || it->get<double>() > most) {
    return wrong(where, key, *it, json(least).dump() + " to " + json(most).dump());
  }
  out = static_cast<Number>(it->get<double>());
  return {};
}

}  // namespace

Result<GenerationConfig> read_generation_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "generation_config.json";
  const std::string where = path.string();
  auto text = config::read_small_file(path);
  if (!text.ok()) {
    if (text.status().code == Code::not_found) return GenerationConfig{};
    return text.status();
  }
  auto file = config::parse_json_object(*text, where);
  if (!file.ok()) return file.status();

  GenerationConfig out;
  for (const Status& status : {
           read_eos(where, *file, out.eos_ids),
           read_number(where, *file, "temperature", 0, 100, out.temperature),
           read_number(where, *file, "top_p", 0, 1, out.top_p),
           read_number(where, *file, "min_p", 0, 1, out.min_p),
           read_number(where, *file, "top_k", -1, 1 << 30, out.top_k),
           read_number(where, *file, "repetition_penalty", 0.001, 100, out.repetition_penalty),
           read_number(where, *file, "presence_penalty", -2, 2, out.presence_penalty),
           read_number(where, *file, "frequency_penalty", -2, 2, out.frequency_penalty),
       }) {
    if (!status.ok()) return status;
  }
  return out;
}

std::vector<TokenId> end_ids(const GenerationConfig& generation, const ModelSpec& spec,
                             std::optional<TokenId> tokenizer_eos) {
  std::vector<TokenId> ids;
  const auto add = [&](TokenId id) {
    if (id >= 0 && id < spec.vocab && std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  };
  std::ranges::for_each(generation.eos_ids, add);
  std::ranges::for_each(spec.eos_ids, add);
  if (tokenizer_eos) add(*tokenizer_eos);
  return ids;
}

}  // namespace troupe::model
