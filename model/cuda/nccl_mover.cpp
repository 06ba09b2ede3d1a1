#include "model/cuda/nccl_mover.h"

#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "gpu/cuda_copy_stream.h"
#include "gpu/cuda_event.h"
#include "gpu/nccl_pair.h"

namespace troupe::model {
namespace {

/// The object counts while it lives; first among members, it goes last.
class Counted {
 public:
  explicit Counted(OpenMovers open) : open_(std::move(open)) { ++*open_; }
  ~Counted() { --*open_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  OpenMovers open_;
};

class NcclMover final : public PairMover {
 public:
  NcclMover(Cuda& device, std::byte* kv, std::size_t block_bytes, const PairTerms& terms, PairSide side,
            OpenMovers open)
      : counted_(std::move(open)),
        device_(device),
        ordinal_(device.ordinal()),
        kv_(kv),
        block_bytes_(block_bytes),
        terms_(terms),
        side_(side),
        nccl_(nccl_functions()),
        gpu_(pci_address_of(ordinal_)),
        stream_(device),
        staging_(stream_, terms.batch * terms.bytes()) {}

  /// On any thread, also when the device has gone.
  ~NcclMover() override {
    try {
      use_gpu(ordinal_);
    } catch (const CudaError&) {
      // The GPU has failed, which the device's own thread reports.
    }
  }

  std::string gpu() const override { return gpu_; }
  int library() const override { return nccl_.version; }

  void make_id(Id& id) override {
    const NcclId made = make_nccl_id(nccl_);
    static_assert(sizeof(Id) == sizeof(NcclId));
    std::memcpy(&id, made.data(), made.size());
  }

  void meet(const Id& id) override {
    device_.use_on_this_thread();
    NcclId same;
    std::memcpy(same.data(), &id, same.size());
    pair_.emplace(nccl_, same, side_ == PairSide::sender ? 0 : 1);
  }

  bool met() override { return pair_->settled(); }

  void move(std::span<const BlockId> blocks) override {
    device_.use_on_this_thread();
    TROUPE_CHECK(!blocks.empty() && blocks.size() <= terms_.batch);
    blocks_.assign(blocks.begin(), blocks.end());
    const std::size_t bytes = blocks.size() * terms_.bytes();
    launched_ = false;
    if (side_ == PairSide::receiver) return pair_->receive(staging_.data(), bytes, stream_.stream());
    copy_blocks();
    pair_->send(staging_.data(), bytes, stream_.stream());
  }

  // NCCL hands its work to the stream on a thread of its own: a mark that is set earlier would be passed too
  // early.
  bool moved() override {
    if (!pair_->settled()) return false;
    if (!std::exchange(launched_, true)) end_.record(stream_.stream());
    return end_.passed() && pair_->settled();
  }

  void put() override {
    copy_blocks();
    stream_.sync();
  }

 private:
  /// Between the KV memory and the staging memory, where the slices of a block lie one after the other.
  void copy_blocks() {
    std::byte* at = staging_.data();
    for (const BlockId block : blocks_) {
      std::byte* const own = kv_ + static_cast<std::size_t>(block) * block_bytes_;
      for (const KvSlice& slice : terms_.slices) {
        if (side_ == PairSide::sender) {
          stream_.copy_rows(at, slice.bytes, own + slice.from, slice.from_pitch, slice.bytes, slice.rows);
        } else {
          stream_.copy_rows(own + slice.to, slice.to_pitch, at, slice.bytes, slice.bytes, slice.rows);
        }
        at += slice.rows * slice.bytes;
      }
    }
  }

  // In the order in which they end: NCCL before the stream and the memory that it uses.
  const Counted counted_;
  Cuda& device_;
  const int ordinal_;
  std::byte* const kv_;
  const std::size_t block_bytes_;
  const PairTerms terms_;
  const PairSide side_;
  const NcclFunctions& nccl_;
  const std::string gpu_;
  CudaCopyStream stream_;
  StreamMemory staging_;
  CudaEvent end_;
  std::vector<BlockId> blocks_;
  bool launched_ = false;
  std::optional<NcclPair> pair_;
};

}  // namespace

std::unique_ptr<PairMover> make_nccl_mover(Cuda& device, std::byte* kv, std::size_t block_bytes,
                                           const PairTerms& terms, PairSide side, OpenMovers open) {
  device.use_on_this_thread();
  return std::make_unique<NcclMover>(device, kv, block_bytes, terms, side, std::move(open));
}

void await_end(const OpenMovers& movers) {
  for (const TimePoint end = Clock::now() + std::chrono::seconds(1); *movers > 0 && Clock::now() < end;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace troupe::model
