#include "model/cuda/swap.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/debug_build.h"
#include "model/swap/checksum.h"

namespace troupe::model {

CudaSwap::CudaSwap(Cuda& device, const KvPart& kv, std::int32_t blocks)
    : kv_(static_cast<std::byte*>(kv.shape.data)),
      bytes_(kv.shape.block_bytes()),
      memory_(blocks == 0
                  ? PinnedMemory()
                  : PinnedMemory(static_cast<std::size_t>(blocks) * bytes_, PinnedMemory::Contents::unset)),
      sums_(kDebugBuild ? static_cast<std::size_t>(blocks) : 0),
      peers_(kv),
      lanes_{Lane(device), Lane(device), Lane(device)} {}

Status CudaSwap::attach(Cuda& device, std::uint32_t peer, const PeerKvMemory& memory) {
  const Result<bool> needed = peers_.needs(memory);
  if (!needed || !*needed) return needed.status();
  Result<ImportedMemory> mapped = ImportedMemory::open(device, memory.fd, memory.bytes());
  if (!mapped) return mapped.status();
  peers_.set(peer, memory, std::make_shared<const ImportedMemory>(std::move(*mapped)));
  return {};
}

void CudaSwap::submit(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies) {
  Lane& lane = lanes_[place(command.op)];
  TROUPE_CHECK(lane.count < lane.flights.size());
  if (open() == 0) progress_ = Clock::now();
  Flight& flight = lane.at(lane.count++);
  flight.id = command.id;
  flight.copies.assign(copies.begin(), copies.end());
  flight.start.record(lane.stream.stream());
  if (command.op == wire::CacheOp::swap_out) {
    flight.failed = false;
    copy(lane.stream, memory_.data(), kv_, copies);
  } else if (command.op == wire::CacheOp::swap_in) {
    // A copy out to these blocks has ended, or they would not be found.
    flight.failed = kDebugBuild && !intact(copies);
    copy(lane.stream, kv_, memory_.data(), copies);
  } else {
    flight.sources = peers_.of(command.peer, command.memory, copies);
    flight.failed = flight.sources.empty();
    for (const Peers::Source& source : flight.sources) copy(lane.stream, source, copies);
  }
  flight.end.record(lane.stream.stream());
}

void CudaSwap::copy(CudaCopyStream& stream, std::byte* to, const std::byte* from,
                    std::span<const wire::BlockCopy> copies) const {
  // Neighbours on both sides are one copy: the shorter the copies, the less of the link they use.
  for (std::size_t i = 0; i < copies.size();) {
    std::size_t n = 1;
    while (i + n < copies.size() && copies[i + n].from == copies[i + n - 1].from + 1 &&
           copies[i + n].to == copies[i + n - 1].to + 1) {
      ++n;
    }
    stream.copy(to + static_cast<std::size_t>(copies[i].to) * bytes_,
                from + static_cast<std::size_t>(copies[i].from) * bytes_, n * bytes_);
    i += n;
  }
}

void CudaSwap::copy(CudaCopyStream& stream, const Peers::Source& source,
                    std::span<const wire::BlockCopy> copies) const {
  const KvSlice& slice = source.slice;
  if (slice.bytes == bytes_) return copy(stream, kv_, source.memory->data(), copies);
  for (const wire::BlockCopy& pair : copies) {
    stream.copy_rows(
        kv_ + static_cast<std::size_t>(pair.to) * bytes_ + slice.to, slice.to_pitch,
        source.memory->data() + static_cast<std::size_t>(pair.from) * source.block_bytes + slice.from,
        slice.from_pitch, slice.bytes, slice.rows);
  }
}

void CudaSwap::delay(CUstream_st* stream, std::uint64_t id) const {
  for (const Lane& lane : lanes_) {
    if (lane.stream.stream() == stream) continue;
    const Flight* last = nullptr;  // of those meant: the ones before it end before it
    for (std::size_t i = 0; i < lane.count && lane.at(i).id <= id; ++i) last = &lane.at(i);
    if (last != nullptr) last->end.delay(stream);
  }
}

bool CudaSwap::take_ended(EndedCommand& out) {
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    Lane& lane = lanes_[l];
    if (lane.count == 0 || !lane.at(0).end.passed()) continue;
    Flight& flight = lane.at(0);
    if (kDebugBuild && l == kOut) {
      for (const wire::BlockCopy& copy : flight.copies) {
        sums_[static_cast<std::size_t>(copy.to)] = checksum({host(copy.to), bytes_});
      }
    }
    const std::int64_t now = now_ns();
    const auto took = static_cast<std::int64_t>(1e6 * flight.end.milliseconds_since(flight.start));
    out = {flight.id, flight.failed, now - took, now};
    flight.sources.clear();
    lane.first = (lane.first + 1) % lane.flights.size();
    --lane.count;
    progress_ = Clock::now();
    return true;
  }
  return false;
}

bool CudaSwap::intact(std::span<const wire::BlockCopy> copies) const {
  for (const wire::BlockCopy& copy : copies) {
    if (sums_[static_cast<std::size_t>(copy.from)] != checksum({host(copy.from), bytes_})) return false;
  }
  return true;
}

bool CudaSwap::idle() const {
  for (const Lane& lane : lanes_) {
    if (lane.count > 0 && !lane.at(lane.count - 1).end.passed()) return false;
  }
  return true;
}

void CudaSwap::forget() {
  for (Lane& lane : lanes_) {
    for (Flight& flight : lane.flights) flight.sources.clear();
    lane.first = lane.count = 0;
  }
}

}  // namespace troupe::model
