#pragma once
// Where a CPU worker keeps swapped blocks: in memory, or in the file of --swap-path.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "model/swap/swap_file.h"

namespace troupe::model {

/// Blocks [0, blocks) of block_bytes. Used by one thread at a time. What comes back is compared with a
/// checksum from a file always (others can write it), from memory in debug builds.
class SwapStore {
 public:
  /// In memory, which is not touched before it is used. unavailable when there is none.
  static Result<std::unique_ptr<SwapStore>> in_memory(std::int32_t blocks, std::size_t block_bytes);
  /// In a file; errors as SwapFile::open().
  static Result<std::unique_ptr<SwapStore>> in_file(const std::string& path, std::int32_t blocks,
                                                    std::size_t block_bytes);
  ~SwapStore();
  SwapStore(const SwapStore&) = delete;
  SwapStore& operator=(const SwapStore&) = delete;

  /// False when the block could not be written; its contents are unknown then.
  bool write(BlockId block, const std::byte* from);
  /// False when the block could not be read, or is not what was written.
  bool read(BlockId block, std::byte* to);

 private:
  SwapStore(std::int32_t blocks, std::size_t block_bytes)
      : block_bytes_(block_bytes), sums_(static_cast<std::size_t>(blocks)) {}
  bool checked() const;

  const std::size_t block_bytes_;
  std::vector<std::uint64_t> sums_;
  std::byte* memory_ = nullptr;
  std::size_t mapped_ = 0;
  std::optional<SwapFile> file_;
};

/// In memory, or in the file `path` if it is not empty; null without blocks.
Result<std::unique_ptr<SwapStore>> make_swap_store(const std::string& path, std::int32_t blocks,
                                                   std::size_t block_bytes);

}  // namespace troupe::model
