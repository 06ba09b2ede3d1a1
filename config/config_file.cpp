#include "config/config_file.h"

#include <yaml-cpp/yaml.h>

#include <charconv>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace troupe::config {
namespace {

constexpr std::size_t kMaxBytes = 1 << 20;
constexpr int kMaxYamlDepth = 16;
constexpr int kMaxNodes = 100'000;  // anchors may repeat a part many times

std::string place(const std::string& path, const YAML::Mark& mark) {
  return mark.is_null() ? path : path + ":" + std::to_string(mark.line + 1);
}

/// A plain scalar that looks like a number, true, false or null is one; a quoted one is a string.
nlohmann::json scalar(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  if (text.empty() || text == "null" || text == "~") return nullptr;
  std::int64_t whole = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (error == std::errc{} && end == text.data() + text.size()) return whole;
  double number = 0;
  const auto [stop, wrong] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (wrong == std::errc{} && stop == text.data() + text.size()) return number;
  return text;
}

/// Turns the value of one option to JSON.
class ValueReader {
 public:
  ValueReader(const std::string& path, const std::string& option) : path_(path), option_(option) {}

  Status read(const YAML::Node& node, nlohmann::json& out) { return read(node, 0, out); }

 private:
  Status read(const YAML::Node& node, int depth, nlohmann::json& out) {
    if (depth > kMaxYamlDepth || ++nodes_ > kMaxNodes) {
      return invalid(place(path_, node.Mark()) + ": " + option_ +
                     " is nested too deeply or holds too many values");
    }
    if (node.IsMap()) return read_map(node, depth, out);
    if (node.IsSequence()) {
      out = nlohmann::json::array();
      for (const auto& item : node) {
        out.emplace_back();
        if (Status status = read(item, depth + 1, out.back()); !status.ok()) return status;
      }
      return {};
    }
    out = node.IsScalar() ? scalar(node) : nlohmann::json();
    return {};
  }

  Status read_map(const YAML::Node& node, int depth, nlohmann::json& out) {
    out = nlohmann::json::object();
    std::map<std::string, int> lines;
    for (const auto& item : node) {
      const YAML::Mark& mark = item.first.Mark();
      if (!item.first.IsScalar())
        return invalid(place(path_, mark) + ": " + option_ + " has a key that is no text");
      const std::string& key = item.first.Scalar();
      const auto [first, fresh] = lines.emplace(key, mark.line + 1);
      if (!fresh) {
        return invalid(place(path_, mark) + ": " + option_ + ": the key " + key +
                           " is given twice, in lines " + std::to_string(first->second) + " and " +
                           std::to_string(mark.line + 1),
                       option_, "duplicate_key");
      }
      if (Status status = read(item.second, depth + 1, out[key]); !status.ok()) return status;
    }
    return {};
  }

  const std::string& path_;
  const std::string& option_;
  int nodes_ = 0;
};

Result<std::vector<FileEntry>> read_root(const YAML::Node& root, const std::string& path) {
  if (root.IsNull()) return std::vector<FileEntry>{};
  if (!root.IsMap()) return invalid(path + ": expected a map from option names to values");
  std::vector<FileEntry> entries;
  for (const auto& item : root) {
    if (!item.first.IsScalar())
      return invalid(place(path, item.first.Mark()) + ": an option name is expected");
    FileEntry& entry = entries.emplace_back(FileEntry{item.first.Scalar(), {}, item.first.Mark().line + 1});
    nlohmann::json value;
    if (Status status = ValueReader(path, entry.name).read(item.second, value); !status.ok()) return status;
    if (item.second.IsScalar()) {
      entry.values.push_back(item.second.Scalar());
    } else if (item.second.IsSequence()) {
      for (const auto& each : value) {
        entry.values.push_back(each.is_string() ? each.get<std::string>() : each.dump());
      }
    } else if (item.second.IsMap()) {
      entry.values.push_back(value.dump());
    }
  }
  return entries;
}

}  // namespace

Result<std::vector<FileEntry>> parse_config_text(const std::string& text, const std::string& path) {
  try {
    return read_root(YAML::Load(text), path);
  } catch (const YAML::Exception& error) {
    return invalid(place(path, error.mark) + ": " + error.msg);
  }
}

Result<std::vector<FileEntry>> read_config_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return invalid("--config: cannot read " + path);
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad()) return invalid("--config: cannot read " + path);
  if (text.size() > kMaxBytes) return invalid("--config: " + path + " is larger than 1 MiB");
  return parse_config_text(text, path);
}

}  // namespace troupe::config
