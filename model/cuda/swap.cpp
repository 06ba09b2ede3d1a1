#include "model/cuda/swap.h"

#include "base/check.h"
#include "base/debug_build.h"
#include "model/swap/checksum.h"

namespace troupe::model {

CudaSwap::CudaSwap(Cuda& device, const kernels::KvCache& kv, std::int32_t blocks)
    : kv_(static_cast<std::byte*>(kv.data)),
      bytes_(kv.block_bytes()),
      memory_(static_cast<std::size_t>(blocks) * bytes_, PinnedMemory::Contents::unset),
      sums_(kDebugBuild ? static_cast<std::size_t>(blocks) : 0),
      lanes_{Lane(device), Lane(device)} {}

void CudaSwap::submit(const wire::CacheCommand& command, std::span<const wire::BlockCopy> copies) {
  const bool in = command.op == wire::CacheOp::swap_in;
  Lane& lane = this->lane(command.op);
  TROUPE_CHECK(lane.count < lane.flights.size());
  if (open() == 0) progress_ = Clock::now();
  Flight& flight = lane.flights[(lane.first + lane.count++) % lane.flights.size()];
  flight.id = command.id;
  flight.copies.assign(copies.begin(), copies.end());
  // A copy out to these blocks has ended, or they would not be found.
  flight.failed = kDebugBuild && in && !intact(copies);
  flight.start.record(lane.stream.stream());
  // Neighbours on both sides are one copy: the shorter the copies, the less of the link they use.
  for (std::size_t i = 0; i < copies.size();) {
    std::size_t n = 1;
    while (i + n < copies.size() && copies[i + n].from == copies[i + n - 1].from + 1 &&
           copies[i + n].to == copies[i + n - 1].to + 1) {
      ++n;
    }
    lane.stream.copy(in ? device(copies[i].to) : host(copies[i].to),
                     in ? host(copies[i].from) : device(copies[i].from), n * bytes_);
    i += n;
  }
  flight.end.record(lane.stream.stream());
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
    const Flight& flight = lane.at(0);
    if (kDebugBuild && l == 0) {
      for (const wire::BlockCopy& copy : flight.copies) {
        sums_[static_cast<std::size_t>(copy.to)] = checksum({host(copy.to), bytes_});
      }
    }
    const std::int64_t now = now_ns();
    const auto took = static_cast<std::int64_t>(1e6 * flight.end.milliseconds_since(flight.start));
    out = {flight.id, flight.failed, now - took, now};
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
  for (Lane& lane : lanes_) lane.first = lane.count = 0;
}

}  // namespace troupe::model
