#include "model/checkpoint/pooling_config.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/json_file.h"

namespace troupe::model {

bool trained_for_embeddings(const std::string& directory) {
  const std::filesystem::path path = std::filesystem::path(directory) / "1_Pooling" / "config.json";
  const auto text = config::read_small_file(path);
  if (!text.ok()) return false;
  const auto file = config::parse_json_object(*text, path.string());
  if (!file.ok()) return false;
  const auto last_token = file->find("pooling_mode_lasttoken");
  return last_token != file->end() && *last_token == true;
}

}  // namespace troupe::model
