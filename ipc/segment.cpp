#include "ipc/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <new>
#include <string>

#include "ipc/system_failure.h"
#include "ipc/wire.h"

namespace troupe::ipc {

namespace {

namespace bip = boost::interprocess;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// The interface that mapped_region requires of what it maps: a descriptor.
struct Mapping {
  int fd;
  bip::mapping_handle_t get_mapping_handle() const {
    return bip::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

Result<std::unique_ptr<bip::mapped_region>> map(int fd, std::size_t bytes) {
  try {
    return std::make_unique<bip::mapped_region>(Mapping{fd}, bip::read_write, 0, bytes);
  } catch (const bip::interprocess_exception& e) {
    return failure(Code::internal,
                   "a shared segment of " + std::to_string(bytes) + " bytes cannot be mapped: " + e.what());
  }
}

}  // namespace

Result<Fd> Segment::create(SegmentKind kind, std::uint32_t down_bytes, std::uint32_t up_bytes) {
  if (!RingMemory::valid_capacity(down_bytes) || !RingMemory::valid_capacity(up_bytes)) {
    return invalid("the rings of a segment have " + std::to_string(down_bytes) + " and " +
                   std::to_string(up_bytes) + " bytes; each must be a power of two from 4 KiB to 1 GiB");
  }
  const std::uint64_t bytes = std::uint64_t{kSegmentHeaderBytes} + down_bytes + up_bytes;
  Fd fd(memfd_create(kind == SegmentKind::step ? "troupe-step" : "troupe-cache",
                     MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_failure("no memory file can be created");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return system_failure("a memory file cannot be sized");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return system_failure("a memory file cannot be sealed");

  auto region = map(fd.get(), bytes);
  if (!region) return region.status();
  auto* header = new ((*region)->get_address()) SegmentHeader;
  header->version = wire::kVersion;
  header->kind = kind;
  header->bytes = bytes;
  header->header_bytes = kSegmentHeaderBytes;
  header->down_bytes = down_bytes;
  header->up_bytes = up_bytes;
  header->epoch.store(1, std::memory_order_relaxed);
  header->magic = kSegmentMagic;
  return fd;
}

Result<Segment> Segment::attach(int fd, SegmentKind kind) {
  const auto wrong = [](const std::string& what) {
    return invalid("not a shared segment of this program: " + what);
  };
  struct stat st {};
  if (fstat(fd, &st) != 0) return system_failure("the descriptor of a shared segment is unusable");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return wrong("its size is not sealed");
  if (st.st_size < static_cast<off_t>(kSegmentHeaderBytes)) {
    return wrong("it has " + std::to_string(st.st_size) + " bytes");
  }
  const auto bytes = static_cast<std::uint64_t>(st.st_size);
  auto region = map(fd, bytes);
  if (!region) return region.status();

  const auto& h = *static_cast<const SegmentHeader*>((*region)->get_address());
  if (h.magic != kSegmentMagic) return wrong("its first word is another");
  if (h.version != wire::kVersion) {
    return wrong("it has wire version " + std::to_string(h.version) + ", not " +
                 std::to_string(wire::kVersion));
  }
  if (h.kind != kind) return wrong("it is of kind " + std::to_string(static_cast<std::uint32_t>(h.kind)));
  const std::uint32_t down = h.down_bytes, up = h.up_bytes;
  if (!RingMemory::valid_capacity(down) || !RingMemory::valid_capacity(up) ||
      h.header_bytes != kSegmentHeaderBytes || h.bytes != bytes ||
      std::uint64_t{kSegmentHeaderBytes} + down + up != bytes) {
    return wrong("its layout does not fit its " + std::to_string(bytes) + " bytes");
  }
  return Segment(std::move(*region), down, up);
}

Segment::Segment(std::unique_ptr<bip::mapped_region> region, std::uint32_t down_bytes, std::uint32_t up_bytes)
    : region_(std::move(region)), header_(static_cast<SegmentHeader*>(region_->get_address())) {
  auto* data = static_cast<std::byte*>(region_->get_address()) + kSegmentHeaderBytes;
  down_ = {&header_->down, data, down_bytes};
  up_ = {&header_->up, data + down_bytes, up_bytes};
}

Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;
Segment::~Segment() = default;

}  // namespace troupe::ipc
