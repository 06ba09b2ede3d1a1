#include "ipc/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

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

// The interface that mapped_region requires of what it maps: a descriptor.
struct Mapping {
  int fd;
  bip::mapping_handle_t get_mapping_handle() const {
    return bip::ipcdetail::mapping_handle_from_file_handle(fd);
  }
};

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
  struct stat st {};
  if (fstat(fd, &st) != 0) return system_failure("the descriptor of a shared segment is unusable");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return not_ours("its size is not sealed");
  const auto bytes = static_cast<std::uint64_t>(st.st_size);
  if (bytes < least) return not_ours("it has " + std::to_string(bytes) + " bytes");
  try {
    return std::make_unique<bip::mapped_region>(Mapping{fd}, access == Access::read ? bip::read_only : bip::read_write,
                                                0, bytes);
  } catch (const bip::interprocess_exception& e) {
    const std::string what = "a shared segment of " + std::to_string(bytes) + " bytes cannot be mapped";
    if (e.get_native_error() == ENOMEM) return failure(Code::unavailable, what + " for lack of memory" + address_space_remark());
    return failure(Code::internal, what + ": " + e.what());
  }
}

}  // namespace troupe::ipc
