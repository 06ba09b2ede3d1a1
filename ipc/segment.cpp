#include "ipc/segment.h"

#include <boost/interprocess/mapped_region.hpp>
#include <string>

#include "ipc/file_header.h"

namespace troupe::ipc {

Result<Fd> Segment::create(SegmentKind kind, std::uint32_t down_bytes, std::uint32_t up_bytes) {
  if (!RingMemory::valid_capacity(down_bytes) || !RingMemory::valid_capacity(up_bytes)) {
    return invalid("the rings of a segment have " + std::to_string(down_bytes) + " and " +
                   std::to_string(up_bytes) + " bytes; each must be a power of two from 4 KiB to 1 GiB");
  }
  const std::uint64_t bytes = std::uint64_t{kSegmentHeaderBytes} + down_bytes + up_bytes;
  const char* const name = kind == SegmentKind::step ? "troupe-step" : "troupe-cache";
  return make_file_with<SegmentHeader>(name, bytes, kSegmentMagic, [&](SegmentHeader& header) {
    header.kind = kind;
    header.bytes = bytes;
    header.header_bytes = kSegmentHeaderBytes;
    header.down_bytes = down_bytes;
    header.up_bytes = up_bytes;
    header.epoch.store(1, std::memory_order_relaxed);
  });
}

Result<Segment> Segment::attach(int fd, SegmentKind kind) {
  auto region = map_memory_file(fd, kSegmentHeaderBytes);
  if (!region) return region.status();
  const std::uint64_t bytes = (*region)->get_size();

  const auto& h = *static_cast<const SegmentHeader*>((*region)->get_address());
  if (Status s = check_header(h, kSegmentMagic); !s.ok()) return s;
  if (h.kind != kind) return not_ours("it is of kind " + std::to_string(static_cast<std::uint32_t>(h.kind)));
  const std::uint32_t down = h.down_bytes, up = h.up_bytes;
  if (!RingMemory::valid_capacity(down) || !RingMemory::valid_capacity(up) ||
      h.header_bytes != kSegmentHeaderBytes || h.bytes != bytes ||
      std::uint64_t{kSegmentHeaderBytes} + down + up != bytes) {
    return not_ours("its layout does not fit its " + std::to_string(bytes) + " bytes");
  }
  return Segment(std::move(*region), down, up);
}

Segment::Segment(MappedRegion region, std::uint32_t down_bytes, std::uint32_t up_bytes)
    : region_(std::move(region)), header_(static_cast<SegmentHeader*>(region_->get_address())) {
  auto* data = static_cast<std::byte*>(region_->get_address()) + kSegmentHeaderBytes;
  down_ = {&header_->down, data, down_bytes};
  up_ = {&header_->up, data + down_bytes, up_bytes};
}

Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;
Segment::~Segment() = default;

}  // namespace troupe::ipc
