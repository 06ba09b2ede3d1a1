#include "text/tokenizer/files.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <unordered_set>

#include "config/json_file.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxSmallFile = 32 << 20;

/// null when there is no such file.
Result<json> read_object(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return json();
  Result<std::string> text = read_text_file(path.string(), kMaxSmallFile);
  if (!text.ok()) return text.status();
  return config::parse_json_object(*text, path.string());
}

/// A token is written as a string or as an object with "content".
std::string content(const json& j) {
  if (j.is_string()) return j.get<std::string>();
  const auto found = j.is_object() ? j.find("content") : j.end();
  return j.is_object() && found != j.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool flag(const json& j, const char* name) {
  const auto found = j.find(name);
  return found != j.end() && found->is_boolean() && found->get<bool>();
}

void read_roles(const json& j, TokenizerFiles& files) {
  if (!j.is_object()) return;
  for (auto entry = j.begin(); entry != j.end(); ++entry) {
    const std::string& name = entry.key();
    if (name.ends_with("_token") && !content(*entry).empty()) {
      files.roles.emplace(name, content(*entry));
      files.specials.push_back(content(*entry));
    }
    if (name != "additional_special_tokens" && name != "extra_special_tokens") continue;
    for (const json& token : *entry) files.specials.push_back(content(token));
  }
}

Status read_added(const json& decoder, const std::string& path, TokenizerFiles& files) {
  for (auto entry = decoder.begin(); decoder.is_object() && entry != decoder.end(); ++entry) {
    AddedToken token;
    const std::string& key = entry.key();
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), token.id);
    token.text = content(*entry);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || !entry->is_object()) {
      return invalid("added_tokens_decoder of " + path + " has an entry \"" + key.substr(0, 40) +
                     "\" that is not an id with its token");
    }
    if (token.text.empty()) continue;
    token.special = flag(*entry, "special");
    token.normalized = flag(*entry, "normalized");
    token.single_word = flag(*entry, "single_word");
    token.lstrip = flag(*entry, "lstrip");
    token.rstrip = flag(*entry, "rstrip");
    files.added.push_back(std::move(token));
  }
  return {};
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) return failure(Code::not_found, "cannot read " + path + ": " + error.message());
  if (size > max_bytes) return invalid(path + " is larger than " + std::to_string(max_bytes) + " bytes");
  std::ifstream stream(path, std::ios::binary);
  std::string text(size, '\0');
  if (!stream.read(text.data(), static_cast<std::streamsize>(size))) return invalid("cannot read " + path);
  return text;
}

Result<TokenizerFiles> TokenizerFiles::read(const std::string& dir) {
  const std::filesystem::path place(dir);
  TokenizerFiles files;
  Result<json> config = read_object(place / "tokenizer_config.json");
  if (!config.ok()) return config.status();
  Result<json> map = read_object(place / "special_tokens_map.json");
  if (!map.ok()) return map.status();
  Result<json> added = read_object(place / "added_tokens.json");
  if (!added.ok()) return added.status();

  if (config->is_object() && config->contains("added_tokens_decoder")) {
    const std::string path = (place / "tokenizer_config.json").string();
    if (Status status = read_added((*config)["added_tokens_decoder"], path, files); !status.ok())
      return status;
  }
  std::unordered_set<std::string> known;
  for (const AddedToken& token : files.added) known.insert(token.text);
  for (auto entry = added->begin(); added->is_object() && entry != added->end(); ++entry) {
    const bool fits = entry->is_number_integer() && *entry >= 0 && *entry <= kMaxTokenId;
    if (!fits) {
      return invalid("added_tokens.json of " + dir + " gives \"" + entry.key().substr(0, 80) + "\" the id " +
                     entry->dump().substr(0, 40) + ", allowed are 0 to " + std::to_string(kMaxTokenId));
    }
    if (known.contains(entry.key()) || entry.key().empty()) continue;
    AddedToken token;
    token.id = entry->get<TokenId>();
    token.text = entry.key();
    token.guarded = is_markup(token.text);
    files.added.push_back(std::move(token));
  }
  read_roles(*config, files);
  read_roles(*map, files);
  return files;
}

Status apply_files(const TokenizerFiles& files, Vocabulary& vocabulary) {
  std::map<std::string, std::size_t> by_text;  // of vocabulary.added
  for (std::size_t i = 0; i < vocabulary.added.size(); ++i) by_text.emplace(vocabulary.added[i].text, i);
  for (const AddedToken& token : files.added) {
    const auto known = by_text.find(token.text);
    if (known != by_text.end()) {
      AddedToken& old = vocabulary.added[known->second];
      if (old.id != token.id) {
        return invalid("the token " + token.text.substr(0, 80) + " has the id " + std::to_string(old.id) +
                       " in the tokenizer and " + std::to_string(token.id) + " in the files beside it");
      }
      old.special = old.special || token.special;
      continue;
    }
    if (!vocabulary.set(token.id, token.text)) {
      return invalid("the added token " + token.text.substr(0, 80) + " has the id " +
                     std::to_string(token.id) + ", allowed are 0 to " + std::to_string(kMaxTokenId));
    }
    by_text.emplace(token.text, vocabulary.added.size());
    vocabulary.added.push_back(token);
  }
  // A special token that no list of added tokens names may still be a piece of the vocabulary.
  std::unordered_map<std::string_view, TokenId> pieces;
  for (std::size_t id = 0; id < vocabulary.bytes.size(); ++id) {
    pieces.try_emplace(vocabulary.bytes[id], static_cast<TokenId>(id));
  }
  std::vector<AddedToken> found;
  for (const std::string& text : files.specials) {
    if (text.empty()) continue;
    if (const auto known = by_text.find(text); known != by_text.end()) {
      const std::size_t at = known->second;
      (at < vocabulary.added.size() ? vocabulary.added[at] : found[at - vocabulary.added.size()]).special =
          true;
    } else if (const auto piece = pieces.find(text); piece != pieces.end()) {
      by_text.emplace(text, vocabulary.added.size() + found.size());
      AddedToken token;
      token.id = piece->second;
      token.text = text;
      token.special = true;
      found.push_back(std::move(token));
    }
  }
  vocabulary.added.insert(vocabulary.added.end(), found.begin(), found.end());
  auto role = [&](const char* name, std::optional<TokenId>& id) {
    const auto text = files.roles.find(name);
    const auto token = text == files.roles.end() ? by_text.end() : by_text.find(text->second);
    if (token != by_text.end()) id = vocabulary.added[token->second].id;
  };
  role("bos_token", vocabulary.bos);
  role("eos_token", vocabulary.eos);
  role("pad_token", vocabulary.pad);
  return {};
}

}  // namespace troupe
