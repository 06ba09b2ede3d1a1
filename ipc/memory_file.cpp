#include "ipc/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/mapped_region.hpp>
#include <cerrno>
#include <string>

#include "base/exhaustion.h"
#include "ipc/system_failure.h"

namespace troupe::ipc {

namespace {

namespace bip = boost::interprocess;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int kConstantSeals = kSeals | F_SEAL_WRITE;

// The interface that mapped_region requires of what it maps: a descriptor.
struct Mapping {
  int fd;
  bip::mapping_handle_t get_mapping_handle() const {
    return bip::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

/// The file's size. Not ok: it lacks a seal.
Result<std::uint64_t> sealed_size(int fd, int needed, const char* lacks) {
  struct stat st {};
  if (fstat(fd, &st) != 0) return system_failure("the descriptor of a shared segment is unusable");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & needed) != needed) return not_ours(lacks);
  return static_cast<std::uint64_t>(st.st_size);
}

Result<MappedRegion> map(int fd, bip::mode_t mode, std::uint64_t bytes) {
  try {
    return std::make_unique<bip::mapped_region>(Mapping{fd}, mode, 0, bytes);
  } catch (const bip::interprocess_exception& e) {
    const std::string what = "a shared segment of " + std::to_string(bytes) + " bytes cannot be mapped";
    if (e.get_native_error() == ENOMEM)
      return failure(Code::unavailable, what + " for lack of memory" + address_space_remark());
    return failure(Code::internal, what + ": " + e.what());
  }
}

}  // namespace

Status not_ours(const std::string& what) { return invalid("not a shared segment of this program: " + what); }

Result<Fd> make_memory_file(const char* name, std::uint64_t bytes) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_failure("no memory file can be created");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return system_failure("a memory file cannot be sized");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return system_failure("a memory file cannot be sealed");
  return fd;
}

Result<MappedRegion> map_memory_file(int fd, std::uint64_t least, Access access) {
  const auto bytes = sealed_size(fd, kSeals, "its size is not sealed");
  if (!bytes.ok()) return bytes.status();
  if (*bytes < least) return not_ours("it has " + std::to_string(*bytes) + " bytes");
  return map(fd, access == Access::read ? bip::read_only : bip::read_write, *bytes);
}

Result<Fd> make_constant_file(const char* name, std::string_view contents) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_failure("no memory file can be created");
  for (std::size_t done = 0; done < contents.size();) {
    const ssize_t n = write(fd.get(), contents.data() + done, contents.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_failure("a memory file cannot be filled");
    done += static_cast<std::size_t>(n);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kConstantSeals) != 0)
    return system_failure("a memory file cannot be sealed");
  return fd;
}

Result<ConstantBytes> map_constant_file(int fd) {
  const auto bytes = sealed_size(fd, kConstantSeals, "its contents are not sealed");
  if (!bytes.ok()) return bytes.status();
  if (*bytes == 0) return not_ours("it is empty");
  // Before Linux 6.7 a shared mapping of a file that is sealed against writing is refused, even one that only
  // reads. A private one has the same pages until it writes.
  auto region = map(fd, bip::read_private, *bytes);
  if (!region.ok()) return region.status();
  const std::shared_ptr<const bip::mapped_region> owner(*std::move(region));
  return ConstantBytes{{static_cast<const std::byte*>(owner->get_address()), owner->get_size()}, owner};
}

}  // namespace troupe::ipc
