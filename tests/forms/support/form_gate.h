#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "support/temp_directory.h"

namespace troupe::testing {

/// Holds a process up at the check of regex() until it is opened.
class Gate {
 public:
  std::string regex() const { return "check gate " + path(); }
  void open() const { std::ofstream(path() + ".open").put('.'); }
  /// How often a process has come to it.
  std::size_t arrivals() const {
    std::error_code none;
    const auto bytes = std::filesystem::file_size(path() + ".waiting", none);
    return none ? 0 : static_cast<std::size_t>(bytes);
  }
  void wait_for_one() const {
    for (int i = 0; arrivals() == 0 && i < 30'000; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(arrivals(), 1u);
  }

 private:
  std::string path() const { return (folder_.path() / "gate").string(); }
  const test::TempDirectory folder_;
};

}  // namespace troupe::testing
