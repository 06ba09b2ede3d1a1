#pragma once
// Files for the tests of model/: a directory that goes away, and checkpoints written byte by byte.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "support/temp_directory.h"

namespace troupe::model::test {

using troupe::test::TempDirectory;

inline void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

inline std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A safetensors file with this header text, right or wrong, and so many bytes of data.
inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string data;
};

inline void write_safetensors(const std::filesystem::path& file, const std::vector<TestTensor>& tensors) {
  std::string header = "{", data;
  for (const TestTensor& t : tensors) {
    std::string shape;
    for (const std::int64_t d : t.shape) shape += (shape.empty() ? "" : ",") + std::to_string(d);
    if (header.size() > 1) header += ",";
    header += "\"" + t.name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":[" + shape +
              "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.data.size()) + "]}";
    data += t.data;
  }
  write_text(file, raw_safetensors(header + "}", data));
}

inline std::vector<TestTensor> tensors_of(const Checkpoint& checkpoint) {
  std::vector<TestTensor> tensors;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const auto bytes = read_tensor(tensor);
    tensors.push_back({name, to_string(tensor.type), tensor.shape,
                       std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())});
  }
  return tensors;
}

inline std::filesystem::path golden_directory(const std::string& name) {
  return std::filesystem::path(TROUPE_TEST_DATA) / "goldens" / name;
}

}  // namespace troupe::model::test
