#pragma once
// The safetensors format: 8 bytes little-endian header length, a JSON header
// {name: {"dtype", "shape", "data_offsets": [begin, end]}}, then the data the offsets count from.
//
// A checkpoint is a download: nothing in the header is trusted. Every number is checked against the length of
// the file, without overflow, before any data is read, and the limits below bound the memory that parsing
// takes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace troupe::model {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  ///< the format's own limit
inline constexpr std::size_t kMaxTensors = 65'536;             ///< of one checkpoint
inline constexpr std::size_t kMaxTensorNameBytes = 512;
inline constexpr std::size_t kMaxDimensions = 8;

enum class FileType : std::uint8_t {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64,
};

const char* to_string(FileType type);  ///< "BF16", as the header spells it
std::size_t size_of(FileType type);

std::string shape_text(std::span<const std::int64_t> shape);  ///< "[2048, 1024]"

/// One line of a header.
struct TensorEntry {
  std::string name;
  FileType type{};
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< bytes from the file's first data byte
  std::uint64_t end = 0;    ///< end - begin is the shape's product times the type's size
};

struct SafetensorsHeader {
  std::uint64_t data_at = 0;         ///< offset of the first data byte in the file
  std::vector<TensorEntry> tensors;  ///< in order of `begin`; together they cover the data without a gap
};

/// Parses the header of a file that has `file_bytes` bytes, of which `bytes` are the first ones and
/// contain the header. `where` begins the messages.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                            const std::string& where);

}  // namespace troupe::model
