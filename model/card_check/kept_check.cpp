#include "model/card_check/kept_check.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/json_file.h"
#include "gpu/gpu_checks.h"

namespace troupe::model {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kMostBytes = 1 << 20;

/// FNV-1a: short file names that do not collide by chance. The file itself has the whole key.
std::uint64_t hash_of(const CardKey& key) {
  std::uint64_t hash = 14695981039346656037u;
  for (const std::string& part : {key.card, std::to_string(key.capability), key.driver, key.build}) {
    for (const char c : part + '\n') hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return hash;
}

Json json_of(const CheckFailure& failure) {
  Json json{{"op", failure.op}, {"what", failure.what}, {"way", failure.way}, {"reason", failure.reason}};
  if (failure.avoidable) json["avoided"] = std::string(to_string(*failure.avoidable));
  return json;
}

Json json_of(const CardCheck& check, const CardKey& key) {
  Json failures = Json::array();
  for (const CheckFailure& failure : check.failures) failures.push_back(json_of(failure));
  return {{"version", kVersion},
          {"card", key.card},
          {"capability", key.capability},
          {"driver", key.driver},
          {"build", key.build},
          {"checks", check.checks},
          {"seconds", check.seconds},
          {"usable", check.usable},
          {"avoided", to_string(check.avoided)},
          {"failures", std::move(failures)}};
}

/// Throws what nlohmann/json throws for values of other types or that are missing.
std::optional<CardCheck> check_of(const Json& json, const CardKey& key) {
  const CardKey of{json.at("card").get<std::string>(), json.at("capability").get<int>(),
                   json.at("driver").get<std::string>(), json.at("build").get<std::string>()};
  if (json.at("version").get<int>() != kVersion || of != key) return std::nullopt;
  const auto avoided = read_kernel_ways(json.at("avoided").get<std::string>());
  if (!avoided.ok()) return std::nullopt;
  CardCheck check{.checks = json.at("checks").get<int>(),
                  .seconds = json.at("seconds").get<double>(),
                  .failures = {},
                  .avoided = *avoided,
                  .usable = json.at("usable").get<bool>()};
  for (const Json& one : json.at("failures")) {
    CheckFailure failure{one.at("op").get<std::string>(), one.at("what").get<std::string>(),
                         one.at("way").get<std::string>(), one.at("reason").get<std::string>()};
    if (one.contains("avoided")) {
      failure.avoidable = read_kernel_way(one.at("avoided").get<std::string>());
      if (!failure.avoidable) return std::nullopt;
    }
    check.failures.push_back(std::move(failure));
  }
  // A refusal must be able to say why, and a check of nothing says nothing.
  if (check.checks <= 0 || (!check.usable && check.failures.empty())) return std::nullopt;
  return check;
}

Status not_kept(const std::string& path, const std::string& why) {
  return failure(Code::unavailable, "the check of the GPU is not kept in " + path + ": " + why);
}

}  // namespace

std::string refusal(const CardCheck& check, const CardKey& key) {
  const CheckFailure last = check.failures.empty() ? CheckFailure{} : check.failures.back();
  return "The " + key.card + " (compute capability " + capability_text(key.capability) + ", driver " +
         key.driver + ") computes " + last.op + " (" + last.what + "; " + last.way +
         ") wrongly, and no other kernel replaces it: " + last.reason +
         ". `troupe check-gpu` lists all ops, --device cpu does without the GPU.";
}

std::string check_line(const CardCheck& check, bool kept) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", check.seconds);
  std::string line = "kernels   checked here" + std::string(kept ? " before" : "") + ", " +
                     std::to_string(check.checks) + " checks in " + seconds + " s";
  if (!check.avoided.empty()) {
    line += "; wrong on this card and replaced by slower ones: " + to_string(check.avoided);
  }
  return line;
}

std::string kept_path(const std::string& directory, const CardKey& key) {
  char name[40];
  std::snprintf(name, sizeof name, "gpu-check-%016llx.json", static_cast<unsigned long long>(hash_of(key)));
  return (fs::path(directory) / name).string();
}

std::string to_json(const CardCheck& check, const CardKey& key) {
  return json_of(check, key).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<CardCheck> kept_check(const std::string& directory, const CardKey& key) {
  const Result<std::string> text = config::read_small_file(kept_path(directory, key), kMostBytes);
  if (!text) return std::nullopt;
  try {
    return check_of(Json::parse(*text), key);
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

Status keep_check(const std::string& directory, const CardKey& key, const CardCheck& check) {
  const std::string path = kept_path(directory, key);
  std::error_code error;
  if (fs::create_directories(directory, error)) fs::permissions(directory, fs::perms::owner_all, error);
  if (error) return not_kept(path, error.message());
  const std::string part = path + "." + std::to_string(::getpid());
  {
    std::ofstream file(part, std::ios::trunc);
    file << to_json(check, key);
    file.close();
    if (!file) {
      fs::remove(part, error);
      return not_kept(path, "it cannot be written");
    }
  }
  fs::rename(part, path, error);
  if (!error) return {};
  const std::string why = error.message();
  fs::remove(part, error);
  return not_kept(path, why);
}

}  // namespace troupe::model
