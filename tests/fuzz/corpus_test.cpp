// The kept inputs of every target, run once each, and mutants of them: a regression fails here without a
// fuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/mutants.h"
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

std::vector<Input> kept_inputs(const std::string& target) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(TROUPE_TEST_DATA) /
                                                               "../fuzz/corpus" / target))
    files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<Input> kept;
  for (const auto& file : files) kept.push_back(bytes_of(file));
  return kept;
}

TEST_P(Corpus, MutantsAreSurvived) {
  constexpr int kMost = 100'000;
  constexpr std::clock_t kProcessorTime = 2 * CLOCKS_PER_SEC;
  const std::vector<Input> kept = kept_inputs(GetParam());
  std::mt19937_64 random(20261129);
  const std::clock_t begin = std::clock();
  int run = 0;
  for (; run < kMost && std::clock() - begin < kProcessorTime; ++run) {
    const Input input = mutant_of(kept, random);
    const KeptIfDeadly kept_if_deadly(GetParam().c_str(), input);
    targets().at(GetParam())(input);
  }
  RecordProperty("mutants", run);
  EXPECT_GE(run, 10);
}

TEST(Mutants, DifferFromWhatIsKeptAndCanBeHadAgain) {
  const std::vector<Input> kept{{'a', 'b', 'c', 'd'}, {'x'}, {}};
  std::mt19937_64 once(1), again(1);
  int different = 0;
  for (int i = 0; i < 1000; ++i) {
    const Input input = mutant_of(kept, once);
    EXPECT_EQ(input, mutant_of(kept, again));
    different += std::ranges::find(kept, input) == kept.end();
  }
  EXPECT_GT(different, 500);
  const std::vector<Input> large{Input(kMostBytes, 'x')};
  for (int i = 0; i < 100; ++i) EXPECT_LE(mutant_of(large, once).size(), kMostBytes);
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
