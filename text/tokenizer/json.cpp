#include "text/tokenizer/json.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/utf8.h"
#include "config/json_file.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/split.h"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxTokenizerJson = 256 << 20;

/// The characters that byte-level vocabularies use for bytes (the table of GPT-2): printable Latin-1 for
/// itself, the others from U+0100 on in order.
struct ByteAlphabet {
  char32_t character[256];
  int byte_of[0x180];

  ByteAlphabet() {
    std::fill(std::begin(byte_of), std::end(byte_of), -1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      character[byte] = printable ? static_cast<char32_t>(byte) : next++;
      byte_of[character[byte]] = byte;
    }
  }

  /// The bytes that `piece` spells; false when it is not written in this alphabet.
  bool decode(std::string_view piece, std::string& out) const {
    out.clear();
    for (std::size_t at = 0; at < piece.size();) {
      const utf8::Step step = utf8::decode(piece, at);
      if (step.point >= std::size(byte_of) || byte_of[step.point] < 0) return false;
      out += static_cast<char>(byte_of[step.point]);
      at += static_cast<std::size_t>(step.bytes);
    }
    return true;
  }
};

/// object[name] without a copy (the vocabulary and the merges are most of a large file); null when it is
/// absent.
const json& member(const json& object, const char* name) {
  static const json null;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : null;
}

/// "<0x41>" to 0x41; -1 for anything else.
int byte_of_fallback(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  int byte = 0;
  for (char c : piece.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

class JsonTokenizer : public VocabularyTokenizer {
 public:
  /// `normalized` are the added tokens that are looked for after normalisation.
  JsonTokenizer(Vocabulary vocabulary, std::shared_ptr<const VocabularyImage> shared,
                std::vector<AddedToken> normalized, Normalizer normalizer, PreTokenizer pre_tokenizer,
                BytePairEncoder encoder)
      : VocabularyTokenizer(std::move(vocabulary), std::move(shared)),
        normalizer_(std::move(normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        encoder_(std::move(encoder)) {
    for (AddedToken& token : normalized) token.text = normalizer_.apply(token.text);
    std::erase_if(normalized, [](const AddedToken& token) { return token.text.empty(); });
    after_normalization_ = AddedTokens(std::move(normalized));
  }

 private:
  void encode_ordinary(std::string_view text, bool first, std::vector<TokenId>& out) const override {
    BytePairEncoder::Scratch scratch;
    if (normalizer_.empty()) return encode_words(text, first, scratch, out);
    const std::string normal = normalizer_.apply(text);
    const auto any = [](const AddedToken&, std::size_t, std::size_t) { return true; };
    for (const AddedPart& part : after_normalization_.split(normal, any)) {
      if (part.token) {
        out.push_back(part.token->id);
      } else {
        const auto piece = std::string_view(normal).substr(part.begin, part.end - part.begin);
        encode_words(piece, first && part.begin == 0, scratch, out);
      }
    }
  }

  void encode_words(std::string_view text, bool first, BytePairEncoder::Scratch& scratch,
                    std::vector<TokenId>& out) const {
    std::string storage;
    for (std::string_view word : pre_tokenizer_.split(pre_tokenizer_.prepare(text, first, storage))) {
      encoder_.encode(word, scratch, out);
    }
  }

  const Normalizer normalizer_;
  const PreTokenizer pre_tokenizer_;
  const BytePairEncoder encoder_;
  AddedTokens after_normalization_;
};

/// Reads one file; every member is a step of load().
class Loader {
 public:
  Loader(std::string path, const TokenizerFiles& files, std::shared_ptr<const VocabularyImage> shared)
      : path_(std::move(path)), files_(files), shared_(std::move(shared)) {}

  Result<std::shared_ptr<const Tokenizer>> load() {
    Result<std::string> text = read_text_file(path_, kMaxTokenizerJson);
    if (!text.ok()) return text.status();
    const Result<json> root = config::parse_json_object(*text, path_);
    if (!root.ok()) return root.status();
    const json& model = member(*root, "model");
    if (!model.is_object() || !model.contains("vocab") || !model["vocab"].is_object()) {
      return fail("has no model with a vocab");
    }
    if (const json type = model.value("type", json("BPE")); type != "BPE") {
      return fail("has a model of the type " + type.dump() + ", offered is \"BPE\"");
    }
    Result<PreTokenizer> pre_tokenizer = PreTokenizer::from_json(member(*root, "pre_tokenizer"));
    if (!pre_tokenizer.ok()) return fail(pre_tokenizer.status().message);
    Result<Normalizer> normalizer = Normalizer::from_json(member(*root, "normalizer"));
    if (!normalizer.ok()) return fail(normalizer.status().message);
    byte_level_ = pre_tokenizer->byte_level();
    if (Status status = check_decoder(member(*root, "decoder")); !status.ok()) return status;
    if (Status status = check_model(model); !status.ok()) return status;
    if (Status status = read_vocabulary(model["vocab"]); !status.ok()) return status;
    if (Status status = read_added(member(*root, "added_tokens")); !status.ok()) return status;
    if (Status status = apply_files(files_, vocabulary_); !status.ok()) return fail(status.message);
    Result<BytePairEncoder> encoder = read_encoder(model);
    if (!encoder.ok()) return encoder.status();
    std::vector<AddedToken> normalized;
    auto later = [&](const AddedToken& token) {
      return token.normalized && !token.special && !normalizer->empty();
    };
    std::copy_if(vocabulary_.added.begin(), vocabulary_.added.end(), std::back_inserter(normalized), later);
    std::erase_if(vocabulary_.added, later);
    return std::shared_ptr<const Tokenizer>(std::make_shared<const JsonTokenizer>(
        std::move(vocabulary_), std::move(shared_), std::move(normalized), std::move(*normalizer),
        std::move(*pre_tokenizer), std::move(*encoder)));
  }

 private:
  Status fail(const std::string& message) const { return invalid(path_ + " " + message); }

  // The kind of vocabulary determines how pieces become text; a decoder that differs is refused.
  Status check_decoder(const json& decoder) {
    static const std::set<json> kKnown = {"ByteLevel", "Replace", "ByteFallback",
                                          "Fuse",      "Strip",   "Metaspace"};
    if (decoder.is_null()) return {};
    auto type_of = [](const json& part) { return part.is_object() ? part.value("type", json()) : json(); };
    const bool sequence = type_of(decoder) == "Sequence" && decoder.contains("decoders");
    for (const json& part : sequence ? decoder["decoders"] : json::array({decoder})) {
      if (kKnown.contains(type_of(part))) continue;
      return fail("has a decoder of the type " + type_of(part).dump() + ", which is not offered");
    }
    return {};
  }

  Status check_model(const json& model) {
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const json value = model.value(name, json());
      if (!value.is_null() && value != "")
        return fail("has a " + std::string(name) + ", which is not offered");
    }
    byte_fallback_ = model.value("byte_fallback", json(false)) == true;
    return {};
  }

  std::string printed(const std::string& piece) const {
    std::string bytes;
    if (byte_level_) return alphabet_.decode(piece, bytes) ? bytes : piece;
    if (const int byte = byte_fallback_ ? byte_of_fallback(piece) : -1; byte >= 0) {
      return std::string(1, static_cast<char>(byte));
    }
    for (std::size_t at = 0; at < piece.size();) {
      const bool blank = std::string_view(piece).substr(at).starts_with(kBlank);
      bytes += blank ? ' ' : piece[at];
      at += blank ? kBlank.size() : 1;
    }
    return bytes;
  }

  Status read_vocabulary(const json& vocab) {
    ids_.reserve(vocab.size());
    for (auto entry = vocab.begin(); entry != vocab.end(); ++entry) {
      const bool fits = entry->is_number_integer() && entry->get<std::int64_t>() >= 0 &&
                        entry->get<std::int64_t>() <= kMaxTokenId;
      if (!fits) return fail("gives the piece \"" + entry.key().substr(0, 80) + "\" an id that is not one");
      ids_.emplace(entry.key(), entry->get<TokenId>());
      vocabulary_.set(entry->get<TokenId>(), printed(entry.key()));
    }
    return {};
  }

  Status read_added(const json& added) {
    if (!added.is_array()) return {};
    for (const json& entry : added) {
      AddedToken token;
      if (!entry.is_object() || !entry.value("id", json()).is_number_integer() ||
          !entry.value("content", json()).is_string()) {
        return fail("has an entry of added_tokens without id or content");
      }
      const auto id = entry["id"].get<std::int64_t>();
      token.id = id < 0 || id > kMaxTokenId ? -1 : static_cast<TokenId>(id);
      token.text = entry["content"].get<std::string>();
      auto flag = [&](const char* name) { return entry.value(name, json(false)) == true; };
      token.special = flag("special");
      token.normalized = flag("normalized");
      token.single_word = flag("single_word");
      token.lstrip = flag("lstrip");
      token.rstrip = flag("rstrip");
      if (token.text.empty()) continue;
      if (!vocabulary_.set(token.id, token.text)) {
        return fail("has an added token with the id " + entry["id"].dump() + ", allowed are 0 to 4000000");
      }
      vocabulary_.added.push_back(std::move(token));
    }
    return {};
  }

  TokenId id_of(const std::string& piece) const {
    const auto found = ids_.find(piece);
    return found == ids_.end() ? -1 : found->second;
  }

  Result<BytePairEncoder> read_encoder(const json& model) {
    BytePairEncoder::Options options;
    options.byte_level = byte_level_;
    if (const json unknown = model.value("unk_token", json()); unknown.is_string()) {
      options.unknown = id_of(unknown.get<std::string>());
    }
    options.fuse_unknown = model.value("fuse_unk", json(false)) == true;
    // Ids that only trusted text may spell are never the result of a word.
    std::vector<bool> reserved(vocabulary_.bytes.size(), false);
    for (const AddedToken& token : vocabulary_.added) {
      if (token.special || token.guarded) reserved[static_cast<std::size_t>(token.id)] = true;
    }
    auto ordinary = [&](TokenId id) { return id >= 0 && !reserved[static_cast<std::size_t>(id)]; };
    for (int byte = 0; byte < 256; ++byte) {
      std::string piece;
      if (byte_level_) {
        utf8::append(piece, alphabet_.character[byte]);
      } else if (byte_fallback_) {
        char name[8];
        std::snprintf(name, sizeof(name), "<0x%02X>", byte);
        piece = name;
      }
      const TokenId id = id_of(piece);
      options.byte_ids[static_cast<std::size_t>(byte)] = ordinary(id) ? id : -1;
    }
    const bool whole_words = model.value("ignore_merges", json(false)) == true;
    for (const auto& [piece, id] : ids_) {
      if (!ordinary(id)) continue;
      const bool character = utf8::length(piece) == 1;
      if (!byte_level_ && character) options.characters.emplace(piece, id);
      if (whole_words) options.whole_words.emplace(byte_level_ ? printed(piece) : piece, id);
    }
    BytePairEncoder encoder(std::move(options));
    const json& merges = member(model, "merges");
    if (!merges.is_array()) return fail("has no list of merges");
    for (const json& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto& pair = merge.get_ref<const std::string&>();
        const std::size_t blank = pair.find(' ', 1);
        if (blank != std::string::npos) {
          left = pair.substr(0, blank);
          right = pair.substr(blank + 1);
        }
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      }
      const TokenId ids[3] = {id_of(left), id_of(right), id_of(left + right)};
      if (left.empty() || right.empty() || ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
        return fail("has a merge of pieces that are not in its vocab: " + merge.dump().substr(0, 120));
      }
      if (ordinary(ids[0]) && ordinary(ids[1]) && ordinary(ids[2])) encoder.add_merge(ids[0], ids[1], ids[2]);
    }
    return encoder;
  }

  const std::string path_;
  const TokenizerFiles& files_;
  std::shared_ptr<const VocabularyImage> shared_;
  const ByteAlphabet alphabet_;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  Vocabulary vocabulary_;
  std::unordered_map<std::string, TokenId> ids_;  // by the spelling of the file
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> load_tokenizer_json(const std::string& path,
                                                             const TokenizerFiles& files,
                                                             std::shared_ptr<const VocabularyImage> shared) {
  return Loader(path, files, std::move(shared)).load();
}

}  // namespace troupe
