#pragma once
// A temporary directory for one test: ctest runs tests in parallel, so no two may share a file name.
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace troupe::test {

/// Empty at first; the destructor removes it with everything in it.
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
