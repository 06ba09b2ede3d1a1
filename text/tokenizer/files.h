#pragma once
// The small files of a tokenizer's directory that say which tokens are special and which end a text.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/vocabulary.h"

namespace troupe {

/// The contents of added_tokens.json, special_tokens_map.json and tokenizer_config.json of a directory.
struct TokenizerFiles {
  std::vector<AddedToken> added;                       ///< with their ids
  std::unordered_map<std::string, std::string> roles;  ///< "eos_token" to its text, for every "…_token"
  std::vector<std::string> specials;  ///< the texts of roles and of additional_special_tokens

  /// Missing files are skipped; a file that is not an object is an error that names it.
  static Result<TokenizerFiles> read(const std::string& dir);
};

/// Reads a whole file of at most `max_bytes`.
Result<std::string> read_text_file(const std::string& path, std::size_t max_bytes);

/// Adds the files' contents to `vocabulary`: new tokens, the special mark of existing pieces, and the roles.
Status apply_files(const TokenizerFiles& files, Vocabulary& vocabulary);

}  // namespace troupe
