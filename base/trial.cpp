#include "base/trial.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/owned_fd.h"

namespace troupe {
namespace {

namespace fs = std::filesystem;

Status cannot(const fs::path& directory, const std::string& why) {
  return failure(Code::unavailable, "no file can be made in " + directory.string() + ": " + why);
}

}  // namespace

TrialCleanup::TrialCleanup(const fs::path& path) {
  std::error_code error;
  fs::path above = fs::absolute(path, error).lexically_normal();
  while (above.has_relative_path() && !fs::exists(fs::symlink_status(above, error))) {
    if (above.has_filename()) missing_.push_back(above);
    above = above.parent_path();
  }
}

TrialCleanup::~TrialCleanup() {
  for (const fs::path& path : missing_) {
    std::error_code error;
    if (fs::is_regular_file(fs::symlink_status(path, error)) && fs::file_size(path, error) > 0) return;
    if (!fs::remove(path, error) && error) return;  // what another process has put there stays
  }
}

Status try_directory(const fs::path& directory) {
  const TrialCleanup cleanup(directory);
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return cannot(directory, error.message());
  std::string name = (directory / ".trial-XXXXXX").string();
  const OwnedFd file(::mkstemp(name.data()));
  if (!file.valid()) return cannot(directory, std::strerror(errno));
  const bool written = ::write(file.get(), "x", 1) == 1;
  const int reason = errno;
  ::unlink(name.c_str());
  return written ? Status{} : cannot(directory, std::strerror(reason));
}

}  // namespace troupe
