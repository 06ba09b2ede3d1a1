#include "config/model_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

namespace troupe::config {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNames[] = {"added_tokens.json",       "config.json",    "generation_config.json",
                                       "special_tokens_map.json", "tokenizer.json", "tokenizer.model",
                                       "tokenizer_config.json",   "vocab.json",     "merges.txt"};
constexpr std::string_view kEndings[] = {".jinja", ".safetensors", ".safetensors.index.json"};

bool is_read(const std::string& name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](std::string_view end) { return name.ends_with(end); });
}

/// Empty when the file can be read.
std::string fault_of(const fs::path& file) {
  std::error_code error;
  const fs::file_status found = fs::status(file, error);
  if (found.type() == fs::file_type::not_found) {
    return "is a symbolic link to " + fs::read_symlink(file, error).string() + ", which does not exist";
  }
  if (found.type() == fs::file_type::directory) return "is a directory, expected a file";
  if (found.type() == fs::file_type::fifo) return "is a FIFO, expected a file";
  if (found.type() != fs::file_type::regular)
    return "is no regular file" + (error ? ": " + error.message() : std::string());
  if (::access(file.c_str(), R_OK) != 0) return std::string("cannot be read: ") + std::strerror(errno);
  return {};
}

}  // namespace

Status check_model_directory(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (!is_read(entry->path().filename().string())) continue;
    const std::string fault = fault_of(entry->path());
    if (!fault.empty()) return invalid(entry->path().string() + " " + fault, "model", "invalid_value");
  }
  return {};
}

}  // namespace troupe::config
