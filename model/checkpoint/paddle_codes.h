#pragma once
// Codes in the orders of Paddle's kernels (compute capability 7.5 to 9.0) as rows of outputs.
//
// The bytes of a tensor are one stream; its shape is a label. Of an output, low nibbles first:
//   paddle, 8 bits      two outputs take turns in pieces of 64 inputs, of which 16 lie as 0 8 1 9 … 7 15;
//                       a byte is code + 128
//   paddle, 4 bits      four outputs take turns in pieces of 64 inputs, of which 32 lie as 0 8 16 24 1 9 …
//                       7 15 23 31; a nibble is code + 8
//   paddle_w4a8         the same pieces, of which 32 lie as 0 16 1 17 … 15 31; a nibble is the code
//   paddle_w4a8_rows    [inputs / 2, outputs]: a byte has two inputs of an output; a nibble is the code
#include <cstddef>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/stored_format.h"
#include "model/checkpoint/tensor_map.h"

namespace troupe::model {

/// ok if the tensor can hold so many codes in that order; else why not, to follow the tensor's name.
Status check_paddle_codes(const FileTensor& tensor, const StoredFormat& format, std::int64_t outputs,
                          std::int64_t inputs);

/// `from`: a tensor's bytes, which have passed check_paddle_codes(). Rows of outputs, each plus
/// 2^(bits - 1), of 4 bits the lower half of a byte first.
std::vector<std::byte> rows_of_codes(const std::vector<std::byte>& from, const StoredFormat& format,
                                     std::size_t outputs, std::size_t inputs);

/// The codes of tensors as rows, of which it keeps the last: gate and up are parts of one.
class PaddleCodes {
 public:
  /// The whole tensor's rows, in which `first` and `stride` of the source count codes. An unreadable file is
  /// zeros, and its status() says why.
  const std::byte* rows_of(const WeightSource& source);

 private:
  const FileTensor* tensor_ = nullptr;
  std::vector<std::byte> rows_;
};

}  // namespace troupe::model
