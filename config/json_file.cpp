#include "config/json_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace troupe::config {

Result<std::string> read_small_file(const std::filesystem::path& file, std::size_t limit) {
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(file, error);
  if (!std::filesystem::exists(found)) {
    return failure(Code::not_found, file.string() + " does not exist.");
  }
  if (!std::filesystem::is_regular_file(found)) return invalid(file.string() + " is not a file.");
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  if (error) return failure(Code::internal, file.string() + " cannot be read: " + error.message() + ".");
  if (bytes == 0) return invalid(file.string() + " is empty.");
  if (bytes > limit) {
    return invalid(file.string() + " has " + std::to_string(bytes) + " bytes; at most " +
                   std::to_string(limit) + " are read.");
  }
  std::string text(bytes, '\0');
  std::ifstream in(file, std::ios::binary);
  if (!in.read(text.data(), static_cast<std::streamsize>(bytes))) {
    return failure(Code::internal, file.string() + " cannot be read.");
  }
  return text;
}

Result<nlohmann::json> parse_json_object(std::string_view text, const std::string& where) {
  bool too_deep = false;
  const auto shallow = [&too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep |= depth > kMaxConfigDepth;
    return !too_deep;  // false discards the value, so nothing deeper is kept
  };
  nlohmann::json json = nlohmann::json::parse(text, shallow, false);
  if (too_deep) {
    return invalid(where + " is nested deeper than " + std::to_string(kMaxConfigDepth) + " levels.");
  }
  if (json.is_discarded()) return invalid(where + " is not valid JSON.");
  if (!json.is_object()) return invalid(where + " is not a JSON object.");
  return json;
}

}  // namespace troupe::config
