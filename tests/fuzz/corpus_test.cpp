// The kept inputs of every target, run once each: a regression fails here without a fuzzer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/target.h"

namespace troupe::fuzz {
namespace {

std::vector<std::uint8_t> bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Corpus : public testing::TestWithParam<std::string> {};

TEST_P(Corpus, EveryInputIsSurvived) {
  const std::filesystem::path folder =
      std::filesystem::path(TROUPE_TEST_DATA) / "../fuzz/corpus" / GetParam();
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename().string());
    const std::vector<std::uint8_t> input = bytes_of(entry.path());
    targets().at(GetParam())(input);
    targets().at(GetParam())(Bytes(input).first(input.size() / 2));
    ++inputs;
  }
  EXPECT_GT(inputs, 0);
  targets().at(GetParam())({});
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, target] : targets()) all.push_back(name);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Corpus, testing::ValuesIn(names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace troupe::fuzz
