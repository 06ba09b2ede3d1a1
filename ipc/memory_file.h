#pragma once
// Memory files: memory without a name that several processes map. Its size is sealed, so no access behind a
// successful map can fault.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/status.h"
#include "ipc/fd.h"

namespace boost::interprocess {
class mapped_region;
}

namespace troupe::ipc {

using MappedRegion = std::unique_ptr<boost::interprocess::mapped_region>;

/// A new one of zeros, sealed against shrinking, growing and further seals. Pages take memory when they are
/// touched.
Result<Fd> make_memory_file(const char* name, std::uint64_t bytes);

enum class Access { read, write };

/// Maps the whole file after checking its seals. invalid_argument when it is not sealed or has fewer bytes
/// than `least`. Does not keep the descriptor.
Result<MappedRegion> map_memory_file(int fd, std::uint64_t least, Access access = Access::write);

/// A memory file with these bytes, which nobody can change any more.
Result<Fd> make_constant_file(const char* name, std::string_view contents);

/// Bytes of a file that does not change. They stay mapped as long as `owner`.
struct ConstantBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

/// Maps the whole of such a file. invalid_argument when it is empty or could be changed. Does not keep the
/// descriptor.
Result<ConstantBytes> map_constant_file(int fd);

/// "not a shared segment of this program: what".
Status not_ours(const std::string& what);

}  // namespace troupe::ipc
