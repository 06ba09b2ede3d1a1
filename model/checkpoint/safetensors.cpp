#include "model/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace troupe::model {
namespace {

using JsonValue = nlohmann::json;

struct TypeName {
  const char* name;
  FileType type;
  std::size_t bytes;
};

// In the order of the enumerators, so that the enumerator is the index.
constexpr TypeName kTypes[] = {
    {"BOOL", FileType::boolean, 1},    {"U8", FileType::u8, 1},           {"I8", FileType::i8, 1},
    {"F8_E5M2", FileType::f8_e5m2, 1}, {"F8_E4M3", FileType::f8_e4m3, 1}, {"I16", FileType::i16, 2},
    {"U16", FileType::u16, 2},         {"F16", FileType::f16, 2},         {"BF16", FileType::bf16, 2},
    {"I32", FileType::i32, 4},         {"U32", FileType::u32, 4},         {"F32", FileType::f32, 4},
    {"I64", FileType::i64, 8},         {"U64", FileType::u64, 8},         {"F64", FileType::f64, 8},
};

std::string clipped(const std::string& text) { return text.size() <= 80 ? text : text.substr(0, 80) + "…"; }

// Reads the header's JSON event by event. Its grammar is two levels deep, and the first event that does not
// fit ends the parse, so hostile nesting or size costs nothing.
class HeaderReader final : public nlohmann::json_sax<JsonValue> {
 public:
  std::vector<TensorEntry> tensors;
  std::string error;  ///< empty: none so far

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::outside: place_ = Place::top; return true;
      case Place::value: place_ = metadata_ ? Place::metadata : Place::tensor; return true;
      default: return wrong("an object where none belongs");
    }
  }
  bool end_object() override {
    switch (place_) {
      case Place::top: place_ = Place::done; return true;
      case Place::metadata: place_ = Place::top; return true;
      case Place::tensor: place_ = Place::top; return finish_tensor();
      default: return wrong("an object that ends where none began");
    }
  }
  bool key(std::string& name) override {
    if (place_ == Place::top) {
      metadata_ = name == "__metadata__";
      place_ = Place::value;
      if (!metadata_) return begin_tensor(name);
      if (has_metadata_) return wrong("two __metadata__ entries");
      return has_metadata_ = true;
    }
    if (place_ == Place::metadata) return true;
    field_ = name == "dtype"          ? Field::dtype
             : name == "shape"        ? Field::shape
             : name == "data_offsets" ? Field::offsets
                                      : Field::none;
    if (field_ == Field::none) return wrong("the unknown key '" + clipped(name) + "'");
    const unsigned bit = 1u << static_cast<int>(field_);
    if (seen_ & bit) return wrong("the key '" + name + "' twice");
    seen_ |= bit;
    return true;
  }
  bool string(std::string& text) override {
    if (place_ == Place::metadata) return true;
    if (place_ != Place::tensor || field_ != Field::dtype) return wrong("a string where none belongs");
    field_ = Field::none;
    const auto* found =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& t) { return text == t.name; });
    if (found == std::end(kTypes)) return wrong("the unknown dtype '" + clipped(text) + "'");
    tensors.back().type = found->type;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || field_ == Field::none || field_ == Field::dtype) {
      return wrong("an array where none belongs");
    }
    place_ = Place::array;
    return true;
  }
  bool end_array() override {
    place_ = Place::tensor;
    if (field_ == Field::offsets && offsets_ != 2) return wrong("data_offsets without two numbers");
    field_ = Field::none;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::array) return wrong("a number where none belongs");
    TensorEntry& tensor = tensors.back();
    if (field_ == Field::offsets) {
      if (offsets_ == 2) return wrong("data_offsets without two numbers");
      (offsets_++ == 0 ? tensor.begin : tensor.end) = value;
      return true;
    }
    if (tensor.shape.size() == kMaxDimensions) return wrong("more than 8 dimensions");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return wrong("a dimension of " + std::to_string(value));
    }
    tensor.shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool number_integer(number_integer_t) override { return wrong("a negative number"); }
  bool number_float(number_float_t, const std::string&) override { return wrong("a fraction"); }
  bool null() override { return wrong("null"); }
  bool boolean(bool) override { return wrong("a truth value"); }
  bool binary(binary_t&) override { return wrong("binary data"); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return wrong("invalid JSON");
  }

 private:
  enum class Place { outside, top, value, metadata, tensor, array, done };
  enum class Field { dtype, shape, offsets, none };

  bool wrong(const std::string& what) {
    if (error.empty()) {
      error = what;
      if (!tensors.empty() && place_ != Place::top) error += " (at tensor '" + tensors.back().name + "')";
    }
    return false;
  }

  bool begin_tensor(const std::string& name) {
    if (tensors.size() == kMaxTensors) return wrong("more than " + std::to_string(kMaxTensors) + " tensors");
    if (name.empty() || name.size() > kMaxTensorNameBytes) return wrong("a tensor name of bad length");
    if (!known_.insert(name).second) return wrong("the tensor '" + clipped(name) + "' twice");
    tensors.emplace_back().name = name;
    seen_ = 0;
    offsets_ = 0;
    return true;
  }

  bool finish_tensor() {
    if (seen_ != 0b111)
      return wrong("tensor '" + tensors.back().name + "' without dtype, shape and data_offsets");
    return true;
  }

  Place place_ = Place::outside;
  Field field_ = Field::none;
  bool metadata_ = false;  // the value that begins belongs to __metadata__
  bool has_metadata_ = false;
  unsigned seen_ = 0;  // fields of the current tensor
  int offsets_ = 0;
  std::unordered_set<std::string> known_;
};

// True if shape and offsets of the tensor agree. No product may overflow.
bool consistent(const TensorEntry& tensor, std::uint64_t data_bytes) {
  if (tensor.begin > tensor.end || tensor.end > data_bytes) return false;
  std::uint64_t bytes = size_of(tensor.type);
  for (const std::int64_t dimension : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes)) return false;
  }
  return bytes == tensor.end - tensor.begin;
}

}  // namespace

const char* to_string(FileType type) { return kTypes[static_cast<int>(type)].name; }
std::size_t size_of(FileType type) { return kTypes[static_cast<int>(type)].bytes; }

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t dimension : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dimension);
  }
  return text + "]";
}

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                            const std::string& where) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t length = 0;
  if (bytes.size() < sizeof length || file_bytes < sizeof length) {
    return invalid(where + " is truncated: " + std::to_string(file_bytes) +
                   " bytes hold no safetensors header.");
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeaderBytes) {
    return invalid(where + " has a corrupt header: its length reads " + std::to_string(length) +
                   ", at most " + std::to_string(kMaxHeaderBytes) + " is allowed.");
  }
  if (length > file_bytes - sizeof length || length > bytes.size() - sizeof length) {
    return invalid(where + " is truncated: its header takes " + std::to_string(length) +
                   " bytes, the file has " + std::to_string(file_bytes) + ".");
  }

  SafetensorsHeader header;
  header.data_at = sizeof length + length;
  HeaderReader reader;
  const char* text = reinterpret_cast<const char*>(bytes.data() + sizeof length);
  const bool parsed = JsonValue::sax_parse(text, text + length, &reader);
  if (!parsed || !reader.error.empty()) {
    return invalid(where + " has a corrupt header: it holds " +
                   (reader.error.empty() ? "invalid JSON" : reader.error) + ".");
  }

  const std::uint64_t data_bytes = file_bytes - header.data_at;
  for (const TensorEntry& tensor : reader.tensors) {
    if (tensor.end > data_bytes && tensor.begin <= tensor.end) {
      return invalid(where + " is truncated: tensor '" + tensor.name + "' ends at byte " +
                     std::to_string(tensor.end) + " of the data, the file has " + std::to_string(data_bytes) +
                     ".");
    }
    if (!consistent(tensor, data_bytes)) {
      return invalid(where + " has a corrupt header: tensor '" + tensor.name + "', " +
                     to_string(tensor.type) + " " + shape_text(tensor.shape) + ", cannot lie at bytes " +
                     std::to_string(tensor.begin) + " to " + std::to_string(tensor.end) + ".");
    }
  }
  header.tensors = std::move(reader.tensors);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const TensorEntry& tensor : header.tensors) {
    if (tensor.begin != covered) {
      return invalid(where + " has a corrupt header: tensor '" + tensor.name + "' begins at byte " +
                     std::to_string(tensor.begin) + " of the data, " + std::to_string(covered) +
                     " was expected.");
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    return invalid(where + " has a corrupt header: it names " + std::to_string(covered) +
                   " bytes of data, the file has " + std::to_string(data_bytes) + ".");
  }
  return header;
}

}  // namespace troupe::model
