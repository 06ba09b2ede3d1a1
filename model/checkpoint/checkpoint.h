#pragma once
// The tensors of a checkpoint directory, mapped into memory.
//
// Files are mapped read-only, so opening a checkpoint of any size costs its headers. A file that another
// process truncates while it is mapped raises SIGBUS on access: checkpoints must not be changed under a
// server that is loading.
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

namespace troupe::model {

inline constexpr std::size_t kMaxShards = 4'096;

/// One tensor of an open checkpoint. `data` lies in the mapping and is not aligned to its type.
struct FileTensor {
  FileType type{};
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;  ///< the shape's product times the type's size
};

/// Movable; the mappings live as long as it does. Immutable after open, so any number of threads may read.
class Checkpoint {
 public:
  /// The shards of model.safetensors.index.json where there is one, else model.safetensors. Errors
  /// name the file; not_found when there is neither.
  static Result<Checkpoint> open(const std::filesystem::path& directory);

  /// A single file.
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
  class Mapping;

  Status add_file(const std::filesystem::path& file);

  std::vector<std::unique_ptr<Mapping>> mappings_;
  std::map<std::string, FileTensor, std::less<>> tensors_;
  std::uint64_t data_bytes_ = 0;
};

}  // namespace troupe::model
