// Several kinds of text are a token as a whole: control pieces ("<s>"), which its
// encoder never finds in text; user-defined pieces ("<|begin_of_sentence|>", but also "\n" or digits), which
// it always finds; and, outside of the model file, the added tokens of the checkpoint. The reference
// tokenizers first split the text at all strings that name a token and encode the rest piece by piece; that
// is done here for trusted text.
//
// In untrusted text the encoder itself would still find user-defined markup. So such a text is cut inside
// every place that spells a reserved token and the parts are encoded apart, as ordinary text. Because the
// model's own normalisation could still spell one out of other characters (full-width brackets, say), the
// result is checked, and if need be encoded again a character at a time.
#include "text/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "base/utf8.h"
#include "text/tokenizer/sentencepiece_file.h"

namespace troupe {
namespace {

constexpr std::size_t kMaxSentencepieceFile = 64 << 20;

using Processor = sentencepiece::SentencePieceProcessor;
using Type = SentencePieceFile::Type;

std::string printed(const SentencePieceFile::Piece& piece) {
  if (piece.type == Type::byte && piece.text.size() == 6) {
    unsigned char byte = 0;
    std::from_chars(piece.text.data() + 3, piece.text.data() + 5, byte, 16);
    return std::string(1, static_cast<char>(byte));
  }
  if (piece.type == Type::control || piece.type == Type::unknown) return piece.text;
  std::string out;
  for (std::size_t at = 0; at < piece.text.size();) {
    const bool blank = std::string_view(piece.text).substr(at).starts_with(kBlank);
    out += blank ? ' ' : piece.text[at];
    at += blank ? kBlank.size() : 1;
  }
  return out;
}

class SentencePieceTokenizer : public VocabularyTokenizer {
 public:
  SentencePieceTokenizer(Vocabulary vocabulary, std::shared_ptr<const VocabularyImage> shared,
                         std::unique_ptr<const Processor> processor,
                         std::unique_ptr<const Processor> beginning)
      : VocabularyTokenizer(std::move(vocabulary), std::move(shared)),
        processor_(std::move(processor)),
        beginning_(std::move(beginning)) {
    std::vector<AddedToken> markup;
    for (const AddedToken& token : added().tokens()) {
      if (token.guarded) markup.push_back(token);
    }
    markup_ = AddedTokens(std::move(markup));
  }

 private:
  void encode_ordinary(std::string_view text, bool first, std::vector<TokenId>& out) const override {
    const Processor* processor = first && beginning_ ? beginning_.get() : processor_.get();
    // Cut after the first character of each spelling; one that overlaps the previous one is found as well,
    // since the search goes on inside it.
    std::size_t begin = 0;
    for (AddedPart found = markup_.find(text, 0); found.token; found = markup_.find(text, begin)) {
      const std::size_t cut = found.begin + static_cast<std::size_t>(utf8::decode(text, found.begin).bytes);
      encode_checked(*processor, text.substr(begin, cut - begin), out);
      processor = processor_.get();
      begin = cut;
    }
    encode_checked(*processor, text.substr(begin), out);
  }

  void encode_checked(const Processor& processor, std::string_view text, std::vector<TokenId>& out) const {
    const std::vector<int> ids = encode_raw(processor, text);
    const bool clean = std::none_of(ids.begin(), ids.end(), [&](int id) { return forbidden(id); });
    if (clean) {
      out.insert(out.end(), ids.begin(), ids.end());
      return;
    }
    for (std::size_t at = 0; at < text.size();) {
      const auto bytes = static_cast<std::size_t>(utf8::decode(text, at).bytes);
      for (int id : encode_raw(*processor_, text.substr(at, bytes))) {
        if (!forbidden(id)) out.push_back(id);
      }
      at += bytes;
    }
  }

  static std::vector<int> encode_raw(const Processor& processor, std::string_view text) {
    std::vector<int> ids;
    if (!text.empty()) (void)processor.Encode(absl::string_view(text.data(), text.size()), &ids);
    return ids;
  }

  bool forbidden(int id) const { return is_reserved(id) && id != processor_->unk_id(); }

  // Const use of a processor is thread-safe.
  const std::unique_ptr<const Processor> processor_;  // puts no blank before what it encodes
  // Puts one, for the beginning of a text; null if the model puts none.
  const std::unique_ptr<const Processor> beginning_;
  AddedTokens markup_;  // the reserved strings that the library itself would find
};

std::optional<TokenId> piece_id(int id) { return id < 0 ? std::nullopt : std::optional<TokenId>(id); }

}  // namespace

Result<std::shared_ptr<const Tokenizer>> load_tokenizer_model(const std::string& path,
                                                              const TokenizerFiles& files,
                                                              std::shared_ptr<const VocabularyImage> shared) {
  Result<std::string> bytes = read_text_file(path, kMaxSentencepieceFile);
  if (!bytes.ok()) return bytes.status();
  Result<SentencePieceFile> file = SentencePieceFile::parse(*bytes);
  if (!file.ok()) return invalid(path + " " + file.status().message);

  // A model with add_dummy_prefix needs the blank once, not before each part between special tokens. The
  // processor for all parts but the first has the setting off, by a second normalizer_spec {add_dummy_prefix:
  // false} at the end, which protobuf merges into the first.
  std::unique_ptr<const Processor> beginning;
  if (file->add_dummy_prefix) {
    auto as_it_is = std::make_unique<Processor>();
    if (const auto status = as_it_is->LoadFromSerializedProto(*bytes); !status.ok()) {
      return invalid(path + " is not a usable SentencePiece model: " + status.ToString());
    }
    beginning = std::move(as_it_is);
    bytes->append("\x1A\x02\x18\x00", 4);
  }
  auto processor = std::make_unique<Processor>();
  if (const auto status = processor->LoadFromSerializedProto(*bytes); !status.ok()) {
    return invalid(path + " is not a usable SentencePiece model: " + status.ToString());
  }
  if (processor->GetPieceSize() != static_cast<int>(file->pieces.size())) {
    return invalid(path + " is not a usable SentencePiece model: its pieces cannot be counted");
  }

  Vocabulary vocabulary;
  std::unordered_set<std::string> taken;
  for (std::size_t id = 0; id < file->pieces.size(); ++id) {
    const SentencePieceFile::Piece& piece = file->pieces[id];
    vocabulary.set(static_cast<TokenId>(id), printed(piece));
    const bool structural = piece.type == Type::control || piece.type == Type::unknown;
    const bool markup = piece.type == Type::user_defined && is_markup(piece.text);
    if ((!structural && !markup) || piece.text.empty() || !taken.insert(piece.text).second) continue;
    AddedToken token;
    token.id = static_cast<TokenId>(id);
    token.text = piece.text;
    token.special = structural;
    token.guarded = markup;
    vocabulary.added.push_back(std::move(token));
  }
  vocabulary.bos = piece_id(processor->bos_id());
  vocabulary.eos = piece_id(processor->eos_id());
  vocabulary.pad = piece_id(processor->pad_id());
  if (Status status = apply_files(files, vocabulary); !status.ok())
    return invalid(path + ": " + status.message);
  return std::shared_ptr<const Tokenizer>(std::make_shared<const SentencePieceTokenizer>(
      std::move(vocabulary), std::move(shared), std::move(processor), std::move(beginning)));
}

}  // namespace troupe
