// Field numbers of sentencepiece_model.proto: ModelProto.pieces 1 {piece 1, score 2, type 3},
// ModelProto.normalizer_spec 3 {add_dummy_prefix 3}.
#include "text/tokenizer/sentencepiece_file.h"

#include <cstdint>

namespace troupe {
namespace {

/// Reads one message field by field. Never reads past its end.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  /// False at the end or when the message is damaged; ok() tells which.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = varint();
    field = static_cast<int>(key >> 3);
    const int wire = static_cast<int>(key & 7);
    bytes = {};
    number = 0;
    if (wire == 0) {
      number = varint();
    } else if (wire == 2) {
      const std::uint64_t size = varint();
      take(size, bytes);
    } else if (wire == 1 || wire == 5) {
      take(wire == 1 ? 8 : 4, bytes);
    } else {
      ok_ = false;
    }
    return ok_;
  }
  bool ok() const { return ok_; }

  int field = 0;
  std::uint64_t number = 0;  // of a varint field
  std::string_view bytes;    // of any other

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }

  void take(std::uint64_t size, std::string_view& out) {
    ok_ = ok_ && size <= rest_.size();
    if (!ok_) return;
    out = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace

Result<SentencePieceFile> SentencePieceFile::parse(std::string_view bytes) {
  SentencePieceFile file;
  Message model(bytes);
  bool ok = true;
  while (model.next()) {
    Message part(model.bytes);
    if (model.field == 1) {
      Piece piece;
      while (part.next()) {
        if (part.field == 1) piece.text = part.bytes;
        if (part.field == 3) piece.type = static_cast<Type>(part.number);
      }
      ok = ok && part.ok();
      file.pieces.push_back(std::move(piece));
    } else if (model.field == 3) {
      while (part.next()) {
        if (part.field == 3) file.add_dummy_prefix = part.number != 0;
      }
      ok = ok && part.ok();
    }
  }
  if (!ok || !model.ok() || file.pieces.empty())
    return invalid("is not a SentencePiece model (damaged or cut off)");
  return file;
}

}  // namespace troupe
