#pragma once
// The parts of a SentencePiece model file (a protobuf message) that the library does not expose.
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe {

struct SentencePieceFile {
  enum class Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    Type type = Type::normal;
  };
  std::vector<Piece> pieces;     ///< by id
  bool add_dummy_prefix = true;  ///< whether a blank is put before every text

  /// Reads the message; an error if it is malformed.
  static Result<SentencePieceFile> parse(std::string_view bytes);
};

}  // namespace troupe
