// The table of checks names every op of a GPU and takes each of its ways. On a GPU every check holds, also
// with each of the ways that can be avoided left out.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "gpu/cards.h"
#include "kernels/check/kernel_check.h"
#include "kernels/check/side.h"

namespace troupe::kernels::check {
namespace {

using cuda::GpuTraits, cuda::traits_of;

/// Structs X of which kernels/*.h declares `void run(Cuda& device, const X& op)`.
std::set<std::string> ops_of_a_gpu() {
  const std::regex declared(R"(^void run\(Cuda& device, const (\w+)& op\);)");
  std::set<std::string> ops;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(TROUPE_TEST_DATA) / "../../kernels")) {
    if (entry.path().extension() != ".h") continue;
    std::ifstream file(entry.path());
    std::smatch found;
    for (std::string line; std::getline(file, line);) {
      if (std::regex_search(line, found, declared)) ops.insert(found[1]);
    }
  }
  return ops;
}

std::set<std::string> names_in(std::string_view op) {
  std::set<std::string> names;
  for (std::size_t begin = 0; begin < op.size();) {
    const std::size_t end = std::min(op.find(", ", begin), op.size());
    names.emplace(op.substr(begin, end - begin));
    begin = end + 2;
  }
  return names;
}

class KernelChecks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kernel_checks().empty()) GTEST_SKIP() << "this build has no CUDA";
  }
};

TEST_F(KernelChecks, NameEveryOpOfAGpu) {
  std::set<std::string> checked;
  for (const KernelCheck& check : kernel_checks()) checked.merge(names_in(check.op));
  const std::set<std::string> ops = ops_of_a_gpu();
  EXPECT_GT(ops.size(), 30u) << "the declarations are not found";
  for (const std::string& op : ops)
    EXPECT_TRUE(checked.contains(op)) << op << " has no check in kernels/check/";
  for (const std::string& op : checked) EXPECT_TRUE(ops.contains(op)) << "there is no op " << op;
}

TEST_F(KernelChecks, StandBehindWhatTheyNeed) {
  std::set<std::string> before;
  std::set<std::string> names;
  for (const KernelCheck& check : kernel_checks()) {
    EXPECT_TRUE(check.needs.empty() || before.contains(std::string(check.needs)))
        << check.op << " needs " << check.needs;
    before.emplace(check.op);
    EXPECT_TRUE(names.insert(std::string(check.op) + ", " + check.what).second)
        << "twice: " << check.op << ", " << check.what;
  }
}

TEST_F(KernelChecks, TakeEveryWayOfAHopper) {
  KernelWays taken;
  for (const KernelCheck& check : kernel_checks()) {
    if (const auto way = check.way(cuda::kH200).avoidable) taken.add(*way);
  }
  for (int i = 0; i < kKernelWays; ++i)
    EXPECT_TRUE(taken.contains(static_cast<KernelWay>(i)))
        << to_string(static_cast<KernelWay>(i)) << " is taken by no check";
}

TEST_F(KernelChecks, AnAvoidedWayIsNotTakenOnAnyCard) {
  std::vector<GpuTraits> all{cuda::kH200};
  for (const Card& card : cards()) {
    if (card.capability >= 80) all.push_back(traits_of(card));
  }
  for (const GpuTraits& gpu : all) {
    for (const KernelCheck& check : kernel_checks()) {
      GpuTraits without = gpu;
      int replaced = 0;
      for (TakenWay way = check.way(without); way.avoidable; way = check.way(without)) {
        ASSERT_TRUE(without.may(*way.avoidable))
            << check.op << ", " << check.what << ": " << way.name << " is taken though it is avoided";
        without.avoided.add(*way.avoidable);
        ASSERT_LE(++replaced, kKernelWays);
      }
      EXPECT_NE(check.way(without).name, "unsupported") << check.op << ", " << check.what;
    }
  }
}

TEST(CompareNumbers, FindsWhatIsWrong) {
  const Numbers reference{1, -2, 0.5f};
  EXPECT_TRUE(compare({1, -2, 0.5f}, reference, kExact).ok());
  EXPECT_FALSE(compare({1, -2, 0.50001f}, reference, kExact).ok());
  EXPECT_TRUE(compare({1.009f, -2, 0.5f}, reference, {0.01, 0}).ok());
  EXPECT_FALSE(compare({1, -2, 0.51f}, reference, {0.01, 0}).ok());
  EXPECT_TRUE(compare({1, -2, 0.51f}, reference, {0, 0.01}).ok());
  EXPECT_FALSE(compare({1, -2, std::nanf("")}, reference, {1, 1}).ok());
  EXPECT_FALSE(compare({1, -2}, reference, {1, 1}).ok());
  EXPECT_FALSE(compare({0, 0}, {0, 0}, {1, 1}).ok()) << "a reference of zeros checks nothing";
}

class KernelChecksOnCuda : public KernelChecks {
 protected:
  /// False behind an error of CUDA: the process can go on with no other check.
  static bool holds(const KernelCheck& check, Cpu& cpu, Cuda& device) {
    const std::string name = "without \"" + to_string(device.avoided()) + "\": " + std::string(check.op) +
                             ", " + check.what + ", " + check.way(traits_of(device)).name;
    try {
      const Status status = check.run(cpu, device);
      EXPECT_TRUE(status.ok()) << name << ": " << status.message;
      return true;
    } catch (const CudaError& error) {
      ADD_FAILURE() << name << ": " << error.what();
      return false;
    }
  }
  void SetUp() override {
    KernelChecks::SetUp();
    if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  }
};

TEST_F(KernelChecksOnCuda, AllHold) {
  Cuda device;
  Cpu cpu({.pin = false});
  for (const KernelCheck& check : kernel_checks()) {
    if (!holds(check, cpu, device)) return;
  }
}

TEST_F(KernelChecksOnCuda, AllHoldWithoutEachWay) {
  Cpu cpu({.pin = false});
  const Cuda whole;
  for (int i = 0; i < kKernelWays; ++i) {
    const auto way = static_cast<KernelWay>(i);
    Cuda device({.avoided = {way}});
    for (const KernelCheck& check : kernel_checks()) {
      if (check.way(traits_of(whole)).avoidable == way && !holds(check, cpu, device)) return;
    }
  }
}

}  // namespace
}  // namespace troupe::kernels::check
