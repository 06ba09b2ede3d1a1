#pragma once
// A directory of a test's own: ctest runs cases side by side, so no two of them may share a file name.
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace troupe::test {

/// Empty when made, gone with everything in it at the end of its life.
class TempDirectory {
 public:
  TempDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace troupe::test
