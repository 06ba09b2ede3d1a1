#include "fetch/listing.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "base/utf8.h"

namespace troupe::fetch {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxFiles = 10'000;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 50;
constexpr std::size_t kMaxNameBytes = 255;  // of Linux's file systems

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 200)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > 200 ? "…\"" : "\"");
}

Status not_a_list(const std::string& why) {
  return invalid("the hub's list of files cannot be read: " + why);
}

Result<Json> parse(std::string_view text) {
  Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded())
    return not_a_list("it is not JSON; it begins with " + in_quotes(text.substr(0, 60)));
  return document;
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool is_hidden(std::string_view path) {
  return path.starts_with('.') || path.find("/.") != std::string_view::npos;
}

struct EntryKeys {
  const char* path;
  const char* size;
  const char* type;
  std::string_view folder;  ///< the type of a folder
};

/// Calls set_sum(entry, file) for each file of the array `entries`.
template <class SetSum>
Result<std::vector<RemoteFile>> read_entries(const Json& entries, const EntryKeys& keys, SetSum&& set_sum) {
  if (!entries.is_array()) return not_a_list("it holds no array of files");
  std::vector<RemoteFile> out;
  for (const Json& entry : entries) {
    if (!entry.is_object()) return not_a_list("one of its entries is not an object");
    RemoteFile file;
    file.path = text_of(entry, keys.path);
    if (Status s = check_path(file.path); !s.ok()) return s;
    if (text_of(entry, keys.type) == keys.folder || is_hidden(file.path)) continue;
    const auto size = entry.find(keys.size);
    if (size == entry.end() || !size->is_number_unsigned() || size->get<std::uint64_t>() > kMaxFileBytes) {
      return not_a_list(in_quotes(file.path) + " has no valid size");
    }
    file.size = size->get<std::uint64_t>();
    if (Status s = set_sum(entry, file); !s.ok()) return s;
    if (out.size() == kMaxFiles)
      return not_a_list("it has more than " + std::to_string(kMaxFiles) + " files");
    out.push_back(std::move(file));
  }
  return out;
}

/// An absent sum is none; one that is there must be a sum.
Status set_sum(RemoteFile& file, SumKind kind, std::string hex) {
  if (hex.empty()) return {};
  std::ranges::transform(hex, hex.begin(),
                         [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; });
  if (!is_hex(hex, kind == SumKind::sha256 ? 64 : 40)) {
    return not_a_list(in_quotes(file.path) + " has the malformed checksum " + in_quotes(hex));
  }
  file.sum = {kind, std::move(hex)};
  return {};
}

}  // namespace

Status check_path(std::string_view path) {
  const auto refuse = [&](const char* why) {
    return invalid("the hub lists the file " + in_quotes(path) + ", " + why +
                   "; nothing is written for such a list");
  };
  if (path.empty() || path.starts_with('/')) return refuse("which is not a relative path");
  if (path.size() > 1024 || !utf8::is_valid(path))
    return refuse("which is not a path of at most 1,024 bytes of UTF-8");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view name = path.substr(begin, end - begin);
    if (name.empty() || name == "." || name == "..")
      return refuse("which leads out of the model's folder or nowhere");
    if (name.size() > kMaxNameBytes) return refuse("with a name of more than 255 bytes");
    for (const char c : name) {
      if (c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
        return refuse("with a character that is not allowed");
    }
    begin = end + 1;
  }
  return {};
}

Status check_model_name(std::string_view name) {
  const auto is_word = [](std::string_view word) {
    const auto alphanumeric = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    };
    return !word.empty() && word.size() <= 96 && alphanumeric(word.front()) &&
           std::ranges::all_of(word,
                               [&](char c) { return alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
  };
  const std::size_t slash = name.find('/');
  if (slash != std::string_view::npos && is_word(name.substr(0, slash)) && is_word(name.substr(slash + 1)))
    return {};
  return invalid(
      "got the model name " + in_quotes(name) +
          ", expected ORG/NAME of letters, digits, '.', '_' and '-', for example baidu/ERNIE-4.5-0.3B-PT",
      "model");
}

Result<std::vector<RemoteFile>> parse_huggingface_tree(std::string_view json) {
  const Result<Json> document = parse(json);
  if (!document.ok()) return document.status();
  return read_entries(*document, {"path", "size", "type", "directory"},
                      [](const Json& entry, RemoteFile& file) {
                        const auto lfs = entry.find("lfs");
                        if (lfs == entry.end() || !lfs->is_object())
                          return set_sum(file, SumKind::git_blob, text_of(entry, "oid"));
                        std::string oid = text_of(*lfs, "oid");
                        if (oid.starts_with("sha256:")) oid.erase(0, 7);
                        return set_sum(file, SumKind::sha256, oid);
                      });
}

Result<std::vector<RemoteFile>> parse_modelscope_files(std::string_view json) {
  const Result<Json> document = parse(json);
  if (!document.ok()) return document.status();
  if (!document->is_object()) return not_a_list("it is not an object");
  if (const auto success = document->find("Success"); success != document->end() && *success == false)
    return not_a_list(in_quotes(text_of(*document, "Message")));
  const auto data = document->find("Data");
  if (data == document->end() || !data->is_object() || !data->contains("Files"))
    return not_a_list("it has no Data.Files");
  return read_entries((*data)["Files"], {"Path", "Size", "Type", "tree"},
                      [](const Json& entry, RemoteFile& file) {
                        return set_sum(file, SumKind::sha256, text_of(entry, "Sha256"));
                      });
}

Result<GitTree> parse_git_tree(std::string_view json) {
  const Result<Json> document = parse(json);
  if (!document.ok()) return document.status();
  if (!document->is_object() || !document->contains("tree")) return not_a_list("it has no tree");
  Json entries = (*document)["tree"];
  if (entries.is_array()) {  // entries of folders have no size
    for (Json& entry : entries) {
      if (entry.is_object() && text_of(entry, "type") == "tree") entry["size"] = 0U;
    }
  }
  auto files =
      read_entries(entries, {"path", "size", "type", "tree"}, [](const Json& entry, RemoteFile& file) {
        return set_sum(file, SumKind::git_blob, text_of(entry, "sha"));
      });
  if (!files.ok()) return files.status();
  const auto truncated = document->find("truncated");
  return GitTree{*std::move(files),
                 truncated != document->end() && truncated->is_boolean() && truncated->get<bool>()};
}

bool read_lfs_pointer(std::string_view text, RemoteFile& file) {
  constexpr std::string_view kFirst = "version https://git-lfs", kOid = "\noid sha256:", kSize = "\nsize ";
  if (!text.starts_with(kFirst)) return false;
  const std::size_t oid = text.find(kOid), size = text.find(kSize);
  if (oid == std::string_view::npos || size == std::string_view::npos) return false;
  const std::string_view hex = text.substr(oid + kOid.size(), 64);
  std::uint64_t bytes = 0;
  const auto read = std::from_chars(text.data() + size + kSize.size(), text.data() + text.size(), bytes);
  if (!is_hex(hex, 64) || read.ec != std::errc{} || bytes > kMaxFileBytes) return false;
  file.size = bytes;
  file.sum = {SumKind::sha256, std::string(hex)};
  return true;
}

Result<std::vector<RemoteFile>> choose_files(std::vector<RemoteFile> files, bool all) {
  constexpr std::array<std::string_view, 12> kOtherWeights = {".bin",      ".pt",      ".pth",  ".h5",
                                                              ".msgpack",  ".onnx",    ".gguf", ".ckpt",
                                                              ".pdparams", ".pdmodel", ".tar",  ".zip"};
  std::set<std::string_view> seen;
  for (const RemoteFile& file : files) {
    if (!seen.insert(file.path).second) return not_a_list("it names " + in_quotes(file.path) + " twice");
  }
  if (all) return files;
  if (!seen.contains("config.json")) {
    return invalid(
        "the repository has no config.json, so it is no checkpoint that troupe can serve; --all fetches it "
        "nevertheless",
        "model");
  }
  const bool safetensors =
      std::ranges::any_of(files, [](const RemoteFile& f) { return f.path.ends_with(".safetensors"); });
  if (safetensors) {
    std::erase_if(files, [&](const RemoteFile& file) {
      return std::ranges::any_of(kOtherWeights,
                                 [&](std::string_view ending) { return file.path.ends_with(ending); });
    });
  }
  return files;
}

}  // namespace troupe::fetch
