#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

/// Writes `bytes` at the descriptor's position, whatever count of calls that takes. Gives how many were
/// written; errno tells why there are fewer than `bytes` has.
std::size_t write_all(int fd, std::string_view bytes);

/// Puts `text` in the place of the file at `path`, whose owner alone can read it, by way of `path`.new: after
/// a death or a loss of power there is the old text or this one. False, with errno, if that failed.
bool replace_file(const std::string& path, std::string_view text);

/// The entries of the directory at `path` are on the disk as well, where its file system can do that.
void sync_directory(const std::string& path);

}  // namespace troupe
