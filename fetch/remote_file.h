#pragma once
// A file of a repository, as the hub's listing describes it.
#include <cstdint>
#include <string>

namespace troupe::fetch {

enum class SumKind {
  none,      ///< the hub gives no sum: only the size is checked
  sha256,    ///< of the content
  git_blob,  ///< git's SHA-1 of "blob SIZE", a zero byte and the content
};

struct Checksum {
  SumKind kind = SumKind::none;
  std::string hex;  ///< lower case; empty for none
};

struct RemoteFile {
  std::string path;  ///< relative, with slashes; has passed check_path()
  std::uint64_t size = 0;
  Checksum sum;
};

}  // namespace troupe::fetch
