#include "model/swap/swap_store.h"

#include <sys/mman.h>

#include <cstring>

#include "base/debug_build.h"
#include "model/bytes_text.h"
#include "model/swap/checksum.h"

namespace troupe::model {

Result<std::unique_ptr<SwapStore>> SwapStore::in_memory(std::int32_t blocks, std::size_t block_bytes) {
  std::unique_ptr<SwapStore> store(new SwapStore(blocks, block_bytes));
  const std::size_t bytes = static_cast<std::size_t>(blocks) * block_bytes;
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return failure(Code::unavailable, "no memory for a swap space of " + bytes_text(bytes) + ".");
  }
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  store->memory_ = static_cast<std::byte*>(memory);
  store->mapped_ = bytes;
  return store;
}

Result<std::unique_ptr<SwapStore>> SwapStore::in_file(const std::string& path, std::int32_t blocks,
                                                      std::size_t block_bytes) {
  std::unique_ptr<SwapStore> store(new SwapStore(blocks, block_bytes));
  Result<SwapFile> file = SwapFile::open(path, static_cast<std::uint64_t>(blocks) * block_bytes);
  if (!file) return file.status();
  store->file_.emplace(std::move(*file));
  return store;
}

SwapStore::~SwapStore() {
  if (memory_ != nullptr) ::munmap(memory_, mapped_);
}

bool SwapStore::checked() const { return kDebugBuild || file_.has_value(); }

bool SwapStore::write(BlockId block, const std::byte* from) {
  const auto i = static_cast<std::size_t>(block);
  if (checked()) sums_[i] = checksum({from, block_bytes_});
  if (file_) return file_->write(i * block_bytes_, from, block_bytes_);
  std::memcpy(memory_ + i * block_bytes_, from, block_bytes_);
  return true;
}

bool SwapStore::read(BlockId block, std::byte* to) {
  const auto i = static_cast<std::size_t>(block);
  if (file_) {
    if (!file_->read(i * block_bytes_, to, block_bytes_)) return false;
  } else {
    std::memcpy(to, memory_ + i * block_bytes_, block_bytes_);
  }
  return !checked() || checksum({to, block_bytes_}) == sums_[i];
}

Result<std::unique_ptr<SwapStore>> make_swap_store(const std::string& path, std::int32_t blocks,
                                                   std::size_t block_bytes) {
  if (blocks == 0) return std::unique_ptr<SwapStore>();
  if (path.empty()) return SwapStore::in_memory(blocks, block_bytes);
  return SwapStore::in_file(path, blocks, block_bytes);
}

}  // namespace troupe::model
