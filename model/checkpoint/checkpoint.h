#pragma once
// The tensors of a checkpoint directory: names, types, shapes, and where their bytes lie in the files.
//
// Opening a checkpoint of any size reads its headers alone. The files stay open, and their bytes are read
// when the weights are loaded; a file that is truncated or fails meanwhile is a Status (ShardFile::status()).
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/shard_file.h"

namespace troupe::model {

inline constexpr std::size_t kMaxShards = 4'096;

/// One tensor of an open checkpoint.
struct FileTensor {
  FileType type{};
  std::vector<std::int64_t> shape;
  const ShardFile* file = nullptr;  ///< the checkpoint's
  std::uint64_t offset = 0;         ///< in the file, at any alignment
  std::uint64_t bytes = 0;          ///< the shape's product times the type's size
};

/// A tensor's bytes, or why its file cannot be read.
Result<std::vector<std::byte>> read_tensor(const FileTensor& tensor);

/// Movable; the files stay open as long as it lives. Any number of threads may read.
class Checkpoint {
 public:
  /// Opens the shards that model.safetensors.index.json names; without an index, model.safetensors. Errors
  /// name the file; not_found if there is neither.
  static Result<Checkpoint> open(const std::filesystem::path& directory);

  /// Opens a single file.
  static Result<Checkpoint> open_file(const std::filesystem::path& file);

  Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  /// Null when there is no such tensor.
  const FileTensor* find(std::string_view name) const;

  const std::map<std::string, FileTensor, std::less<>>& tensors() const { return tensors_; }
  std::uint64_t data_bytes() const { return data_bytes_; }  ///< all tensors together

 private:
  Status add_file(const std::filesystem::path& path);

  std::vector<std::unique_ptr<ShardFile>> files_;
  std::map<std::string, FileTensor, std::less<>> tensors_;
  std::uint64_t data_bytes_ = 0;
};

}  // namespace troupe::model
