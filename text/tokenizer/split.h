#pragma once
// The normalizer and pre_tokenizer of a tokenizer.json: from ordinary text to words.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/pattern.h"

namespace troupe {

/// Changes of the text before it is split. Offered: Sequence, Prepend, Replace (of a string), NFC. A file
/// whose steps could make a text more than 16 times as long is refused.
class Normalizer {
 public:
  static Result<Normalizer> from_json(const nlohmann::json& json);

  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;

 private:
  struct Step {
    enum class Kind { prepend, replace, nfc } kind;
    std::string from, to;
  };
  Status add(const nlohmann::json& json, int depth);
  Status check_growth() const;
  std::vector<Step> steps_;
};

/// Splits of the text into words. Offered: Sequence, ByteLevel, Digits, Split, Metaspace.
class PreTokenizer {
 public:
  static Result<PreTokenizer> from_json(const nlohmann::json& json);

  /// True if words are encoded byte by byte (a ByteLevel part is present).
  bool byte_level() const { return byte_level_; }

  /// Prepares the text for split(): puts a blank in front, spells blanks "▁". `first` as in
  /// VocabularyTokenizer::encode_ordinary. Returns `text` itself, or a view of `storage`.
  std::string_view prepare(std::string_view text, bool first, std::string& storage) const;

  /// The words of `text` in order; they cover it except for parts that a Split removes.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  struct Step {
    Pattern pattern;
    Behavior behavior;
    bool invert;
  };
  enum class Prefix { none, always, first };

  Status add(const nlohmann::json& json, int depth);
  Status add_pattern(const std::string& expression, Behavior behavior, bool invert = false);
  Status add_byte_level(const nlohmann::json& json);
  Status add_split(const nlohmann::json& json);
  Status add_metaspace(const nlohmann::json& json);
  static void refine(const Step& step, std::string_view text, std::vector<std::string_view>& out);

  std::vector<Step> steps_;
  Prefix prefix_ = Prefix::none;
  std::string blank_ = " ";  // the spelling of a blank
  bool byte_level_ = false;
};

}  // namespace troupe
