#include "model/checkpoint/paddle_codes.h"

#include "base/check.h"

namespace troupe::model {
namespace {

constexpr std::size_t kPiece = 64;  // inputs of an output that lie together

std::byte nibbles(unsigned low, unsigned high) { return static_cast<std::byte>(low | high << 4); }

/// Calls place(output, first input, bytes) for each piece; `in_turn` outputs take turns.
template <class Place>
void for_each_piece(const std::vector<std::byte>& from, std::size_t outputs, std::size_t inputs,
                    std::size_t in_turn, std::size_t piece_bytes, Place&& place) {
  const std::byte* at = from.data();
  for (std::size_t group = 0; group < outputs; group += in_turn) {
    for (std::size_t input = 0; input < inputs; input += kPiece) {
      for (std::size_t i = 0; i < in_turn; ++i, at += piece_bytes) place(group + i, input, at);
    }
  }
}

void read_bytes(const std::byte* piece, std::byte* row) {
  for (std::size_t sixteen = 0; sixteen < kPiece; sixteen += 16) {
    for (std::size_t pair = 0; pair < 8; ++pair) {
      row[sixteen + pair] = piece[sixteen + 2 * pair];
      row[sixteen + pair + 8] = piece[sixteen + 2 * pair + 1];
    }
  }
}

/// `place[i]`: the input, of 32, that nibble i holds; `flip`: what makes it code + 8.
void read_nibbles(const std::byte* piece, std::byte* row, const std::uint8_t (&place)[32], unsigned flip) {
  for (std::size_t half = 0; half < kPiece / 2; half += 16, piece += 16, row += 16) {
    std::uint8_t codes[32];
    for (std::size_t i = 0; i < 32; ++i) {
      const auto both = std::to_integer<unsigned>(piece[i / 2]);
      codes[place[i]] = static_cast<std::uint8_t>((i % 2 == 0 ? both & 15 : both >> 4) ^ flip);
    }
    for (std::size_t i = 0; i < 16; ++i) row[i] = nibbles(codes[2 * i], codes[2 * i + 1]);
  }
}

constexpr std::uint8_t kWeightOnly[32] = {0, 8,  16, 24, 1, 9,  17, 25, 2, 10, 18, 26, 3, 11, 19, 27,
                                          4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31};
constexpr std::uint8_t kW4a8[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

}  // namespace

Status check_paddle_codes(const FileTensor& tensor, const StoredFormat& format, std::int64_t outputs,
                          std::int64_t inputs) {
  const std::int64_t bytes = outputs * inputs * format.bits / 8;
  const bool rows = format.order == CodeOrder::paddle_w4a8_rows;
  const std::int64_t in_turn = rows ? 1 : format.bits == 8 ? 2 : 4;
  const std::int64_t unit = rows ? 2 : static_cast<std::int64_t>(kPiece);
  const std::string sizes = std::to_string(outputs) + " outputs and " + std::to_string(inputs) + " inputs";
  if (outputs % in_turn != 0 || inputs % unit != 0) {
    return invalid("has " + sizes + "; its order takes multiples of " + std::to_string(in_turn) +
                   " outputs and " + std::to_string(unit) + " inputs");
  }
  const bool typed = tensor.type == FileType::i8 || tensor.type == FileType::u8;
  const bool shaped = tensor.shape.size() == 2 && static_cast<std::int64_t>(tensor.bytes) == bytes &&
                      (!rows || tensor.shape[1] == outputs);
  if (typed && shaped) return {};
  const std::string expected =
      rows ? "I8 of [" + std::to_string(inputs / 2) + ", " + std::to_string(outputs) + "]"
           : "a matrix of I8 with " + std::to_string(bytes) + " bytes";
  return invalid("is " + std::string(to_string(tensor.type)) + " of the shape " + shape_text(tensor.shape) +
                 "; expected is " + expected + " for " + std::to_string(format.bits) + " bits of " + sizes);
}

std::vector<std::byte> rows_of_codes(const std::vector<std::byte>& from, const StoredFormat& format,
                                     std::size_t outputs, std::size_t inputs) {
  const auto bits = static_cast<std::size_t>(format.bits);
  const std::size_t row = inputs * bits / 8, piece = kPiece * bits / 8;
  TROUPE_CHECK(from.size() == outputs * row);
  std::vector<std::byte> to(from.size());
  const auto at = [&](std::size_t output, std::size_t input) {
    return to.data() + output * row + input * bits / 8;
  };
  if (format.order == CodeOrder::paddle_w4a8_rows) {
    constexpr std::byte kFlip{0x88};
    for (std::size_t pair = 0; pair < row; ++pair) {
      for (std::size_t o = 0; o < outputs; ++o) to[o * row + pair] = from[pair * outputs + o] ^ kFlip;
    }
  } else if (format.bits == 8) {
    for_each_piece(
        from, outputs, inputs, 2, piece,
        [&](std::size_t o, std::size_t i, const std::byte* bytes) { read_bytes(bytes, at(o, i)); });
  } else {
    const bool w4a8 = format.w4a8();
    for_each_piece(from, outputs, inputs, 4, piece,
                   [&](std::size_t o, std::size_t i, const std::byte* bytes) {
                     read_nibbles(bytes, at(o, i), w4a8 ? kW4a8 : kWeightOnly, w4a8 ? 8 : 0);
                   });
  }
  return to;
}

const std::byte* PaddleCodes::rows_of(const WeightSource& source) {
  if (tensor_ != source.tensor) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(source.tensor->bytes));
    source.tensor->file->read(source.tensor->offset, bytes.data(), bytes.size());
    const auto inputs = static_cast<std::size_t>(source.stride);
    const std::size_t outputs = bytes.size() * 8 / static_cast<std::size_t>(source.stored->bits) / inputs;
    rows_ = rows_of_codes(bytes, *source.stored, outputs, inputs);
    tensor_ = source.tensor;
  }
  return rows_.data();
}

}  // namespace troupe::model
