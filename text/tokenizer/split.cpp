#include "text/tokenizer/split.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/utf8.h"

namespace troupe {
namespace {

/// Unicode normalisation form C. Text that is not valid UTF-8 is returned as it is.
std::string to_nfc(std::string_view text) {
  // No character below U+0300 (first byte 0xCC) changes: the common text needs no table.
  if (std::all_of(text.begin(), text.end(), [](unsigned char byte) { return byte < 0xCC; })) {
    return std::string(text);
  }
  utf8proc_uint8_t* normal = nullptr;
  const auto bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                  static_cast<utf8proc_ssize_t>(text.size()), &normal,
                                  static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(normal, std::free);
  if (bytes == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (bytes < 0) return std::string(text);
  return std::string(reinterpret_cast<const char*>(normal), static_cast<std::size_t>(bytes));
}

using nlohmann::json;

constexpr int kMaxDepth = 8;            // sequences inside sequences
constexpr int kMaxGrowth = 16;          // times as long that a text may become; "▁" for a blank is 3
constexpr std::size_t kMaxAdded = 256;  // bytes

/// The split of GPT-2, which ByteLevel includes unless use_regex is false.
constexpr const char* kGpt2 =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

std::string type_of(const json& j) {
  const auto type = j.is_object() ? j.find("type") : j.end();
  return j.is_object() && type != j.end() && type->is_string() ? type->get<std::string>() : "(no type)";
}

bool flag(const json& j, const char* name, bool fallback) {
  const auto found = j.find(name);
  return found != j.end() && found->is_boolean() ? found->get<bool>() : fallback;
}

std::string word(const json& j, const char* name) {
  const auto found = j.find(name);
  return found != j.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string escape_literal(std::string_view literal) {
  std::string out;
  for (char c : literal) {
    if (c == '\\' ||
        (c > 0 && c < 0x7F && !std::isalnum(static_cast<unsigned char>(c)) && c != ' ' && c != '\n')) {
      out += '\\';
    }
    out += c;
  }
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  std::size_t at = 0;
  for (std::size_t found; (found = text.find(from, at)) != text.npos; at = found + from.size()) {
    out += text.substr(at, found - at);
    out += to;
  }
  out += text.substr(at);
  return out;
}

}  // namespace

Result<Normalizer> Normalizer::from_json(const json& j) {
  Normalizer result;
  Status status = result.add(j, 0);
  if (status.ok()) status = result.check_growth();
  if (!status.ok()) return status;
  return result;
}

/// Steps in a row multiply: ten that double a text would make 8 GiB of 8 MiB.
Status Normalizer::check_growth() const {
  double factor = 1;
  std::size_t added = 0;
  for (const Step& step : steps_) {
    if (step.kind == Step::Kind::prepend) added += step.to.size();
    if (step.kind != Step::Kind::replace) continue;
    factor *= std::max(1.0, static_cast<double>(step.to.size()) / static_cast<double>(step.from.size()));
  }
  if (factor <= kMaxGrowth && added <= kMaxAdded) return {};
  return invalid("the normalizer of tokenizer.json could make a text more than " +
                 std::to_string(kMaxGrowth) + " times as long, or " + std::to_string(kMaxAdded) +
                 " bytes longer");
}

Status Normalizer::add(const json& j, int depth) {
  if (j.is_null()) return {};
  const std::string type = type_of(j);
  if (type == "Sequence" && depth < kMaxDepth && j.contains("normalizers")) {
    for (const json& part : j["normalizers"]) {
      if (Status status = add(part, depth + 1); !status.ok()) return status;
    }
    return {};
  }
  if (type == "Prepend") {
    steps_.push_back({Step::Kind::prepend, {}, word(j, "prepend")});
    return {};
  }
  if (type == "Replace" && j.contains("pattern") && j["pattern"].contains("String")) {
    steps_.push_back({Step::Kind::replace, word(j["pattern"], "String"), word(j, "content")});
    if (!steps_.back().from.empty()) return {};
  }
  if (type == "NFC") {
    steps_.push_back({Step::Kind::nfc, {}, {}});
    return {};
  }
  return invalid("the normalizer \"" + type +
                 "\" of tokenizer.json is not offered (Sequence, Prepend, Replace of a "
                 "string and NFC are)");
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::prepend:
        if (!out.empty()) out = step.to + out;
        break;
      case Step::Kind::replace: out = replace_all(out, step.from, step.to); break;
      case Step::Kind::nfc: out = to_nfc(out); break;
    }
  }
  return out;
}

Result<PreTokenizer> PreTokenizer::from_json(const json& j) {
  PreTokenizer result;
  Status status = result.add(j, 0);
  if (!status.ok()) return status;
  return result;
}

Status PreTokenizer::add(const json& j, int depth) {
  if (j.is_null()) return {};
  const std::string type = type_of(j);
  if (type == "Sequence" && depth < kMaxDepth && j.contains("pretokenizers")) {
    for (const json& part : j["pretokenizers"]) {
      if (Status status = add(part, depth + 1); !status.ok()) return status;
    }
    return {};
  }
  if (type == "ByteLevel") return add_byte_level(j);
  if (type == "Digits") {
    return add_pattern(flag(j, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", Behavior::isolated);
  }
  if (type == "Split") return add_split(j);
  if (type == "Metaspace") return add_metaspace(j);
  return invalid(
      "the pre_tokenizer \"" + type +
      "\" of tokenizer.json is not offered (Sequence, ByteLevel, Digits, Split and Metaspace are)");
}

Status PreTokenizer::add_pattern(const std::string& expression, Behavior behavior, bool invert) {
  Result<Pattern> pattern = Pattern::compile(expression);
  if (!pattern.ok()) return pattern.status();
  steps_.push_back({std::move(*pattern), behavior, invert});
  return {};
}

Status PreTokenizer::add_byte_level(const json& j) {
  byte_level_ = true;
  if (flag(j, "add_prefix_space", true)) {
    if (!steps_.empty())
      return invalid("ByteLevel with add_prefix_space after another pre_tokenizer is not offered");
    prefix_ = Prefix::always;
  }
  return flag(j, "use_regex", true) ? add_pattern(kGpt2, Behavior::isolated) : Status{};
}

Status PreTokenizer::add_split(const json& j) {
  static constexpr std::pair<const char*, Behavior> kBehaviors[] = {
      {"Isolated", Behavior::isolated},
      {"Removed", Behavior::removed},
      {"MergedWithPrevious", Behavior::merged_with_previous},
      {"MergedWithNext", Behavior::merged_with_next},
      {"Contiguous", Behavior::contiguous}};
  const std::string name = word(j, "behavior");
  const auto* behavior = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                      [&](const auto& known) { return name == known.first; });
  if (behavior == std::end(kBehaviors))
    return invalid("the behavior \"" + name + "\" of a Split is not offered");
  if (!j.contains("pattern") || !j["pattern"].is_object())
    return invalid("a Split of tokenizer.json has no pattern");
  const json& pattern = j["pattern"];
  const std::string expression =
      pattern.contains("Regex") ? word(pattern, "Regex") : escape_literal(word(pattern, "String"));
  if (expression.empty()) return invalid("the pattern of a Split in tokenizer.json is empty");
  return add_pattern(expression, behavior->second, flag(j, "invert", false));
}

Status PreTokenizer::add_metaspace(const json& j) {
  blank_ = word(j, "replacement");
  if (blank_.empty() || blank_.size() > kMaxGrowth || !steps_.empty())
    return invalid("this use of Metaspace in tokenizer.json is not offered");
  const std::string scheme = word(j, "prepend_scheme");
  const bool legacy = scheme.empty() && flag(j, "add_prefix_space", true);
  prefix_ = scheme == "first" ? Prefix::first : scheme == "always" || legacy ? Prefix::always : Prefix::none;
  return flag(j, "split", true) ? add_pattern(escape_literal(blank_), Behavior::merged_with_next) : Status{};
}

std::string_view PreTokenizer::prepare(std::string_view text, bool first, std::string& storage) const {
  const bool spelled = blank_ != " ";
  if (spelled) {
    storage = replace_all(text, " ", blank_);
    text = storage;
  }
  const bool wanted = prefix_ == Prefix::always || (prefix_ == Prefix::first && first);
  if (wanted && !text.empty() && !text.starts_with(blank_)) {
    storage = blank_ + std::string(text);
    text = storage;
  }
  return text;
}

void PreTokenizer::refine(const Step& step, std::string_view text, std::vector<std::string_view>& out) {
  Pattern::Ranges matches;
  step.pattern.find_all(text, matches);
  if (matches.empty() && !step.invert) {
    out.push_back(text);
    return;
  }
  // The whole text in order, as parts that match and parts that do not.
  struct Part {
    std::size_t begin, end;
    bool match;
  };
  std::vector<Part> parts;
  std::size_t at = 0;
  for (const auto& [begin, end] : matches) {
    if (begin > at) parts.push_back({at, begin, step.invert});
    parts.push_back({begin, end, !step.invert});
    at = end;
  }
  if (at < text.size()) parts.push_back({at, text.size(), step.invert});

  std::vector<Part> kept;
  bool glue = false;  // the previous part is joined with the next one
  for (const Part& part : parts) {
    const bool to_previous = !kept.empty() && kept.back().end == part.begin;
    bool merge = false;
    switch (step.behavior) {
      case Behavior::isolated: break;
      case Behavior::removed:
        if (part.match) continue;
        break;
      case Behavior::merged_with_previous: merge = part.match && to_previous && !kept.back().match; break;
      case Behavior::merged_with_next:
        merge = glue && !part.match;
        glue = part.match;
        break;
      case Behavior::contiguous: merge = to_previous && kept.back().match == part.match; break;
    }
    if (merge) {
      kept.back().end = part.end;
      if (step.behavior == Behavior::merged_with_previous) kept.back().match = true;
    } else {
      kept.push_back(part);
    }
  }
  for (const Part& part : kept) out.push_back(text.substr(part.begin, part.end - part.begin));
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> words{text};
  for (const Step& step : steps_) {
    std::vector<std::string_view> finer;
    finer.reserve(words.size() * 2);
    for (std::string_view word : words) refine(step, word, finer);
    words = std::move(finer);
  }
  return words;
}

}  // namespace troupe
