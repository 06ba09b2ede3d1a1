#include "gpu/cards.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace troupe {
namespace {

constexpr double kGiB = 1 << 30;

std::uint64_t gib(double count) { return static_cast<std::uint64_t>(count * kGiB); }

std::string found(std::string_view name) {
  const auto card = find_card(name);
  return card.ok() ? std::string(card->name) : card.status().message;
}

TEST(Cards, AreFoundByTheNamesThatPeopleWrite) {
  EXPECT_EQ(found("A800"), "A800-80G");
  EXPECT_EQ(found("a800 80GB"), "A800-80G");
  EXPECT_EQ(found("NVIDIA A800 80GB PCIe"), "A800-80G");
  EXPECT_EQ(found("A100 [80G]"), "A100-80G");
  EXPECT_EQ(found("A30 40GB"), "A30-40G");
  EXPECT_EQ(found("A30 [24G]"), "A30-24G");
  EXPECT_EQ(found("H20 [144G]"), "H20-141G");
  EXPECT_EQ(found("RTX 4090"), "RTX-4090-24G");
  EXPECT_EQ(found("NVIDIA GeForce RTX 4090"), "RTX-4090-24G");
  EXPECT_EQ(found("h200"), "H200-141G");
}

TEST(Cards, WithoutASizeAreTheSmallest) {
  EXPECT_EQ(found("A30"), "A30-24G");
  EXPECT_EQ(found("H20"), "H20-96G");
}

TEST(Cards, UnknownOnesAreNamedBesideThoseThatAreKnown) {
  for (const char* name : {"", "-", "B9000", "A1000", "H2", "80G"}) {
    const auto card = find_card(name);
    ASSERT_FALSE(card.ok()) << name;
    EXPECT_EQ(card.status().code, Code::invalid_argument);
    EXPECT_EQ(
        card.status().message.rfind("--card: got \"" + std::string(name) + "\", expected one of A100-80G", 0),
        0u)
        << card.status().message;
  }
  EXPECT_LT(find_card(std::string(5000, 'x')).status().message.size(), 500u);
}

TEST(Cards, HaveNamesOfTheirOwnAndFactsThatAgree) {
  std::set<std::string_view> names;
  for (const Card& card : cards()) {
    EXPECT_TRUE(names.insert(card.name).second) << card.name;
    EXPECT_EQ(found(card.name), card.name);
    const int shared = card.capability >= 90 ? 227 : card.capability == 80 ? 163 : 99;
    if (card.capability >= 80) {
      EXPECT_EQ(card.block_shared_kib, shared) << card.name;
    }
    EXPECT_EQ(card.fp8_tflops > 0, card.capability >= 89) << card.name;
    EXPECT_GT(card.multiprocessors, 0);
    EXPECT_GT(card.memory_tb_per_s, 0);
    // A driver reports less than the size in the name, which may be decimal or binary gigabytes.
    const std::string size(card.name.substr(card.name.rfind('-') + 1));
    const double sold = std::stod(size) * 1e9;
    EXPECT_LT(static_cast<double>(card.memory_bytes()), sold * 1.08) << card.name;
    EXPECT_GT(static_cast<double>(card.memory_bytes()), sold * 0.9) << card.name;
  }
}

TEST(Cards, OfADriver) {
  const auto name = [](std::string_view driver, double size) {
    const Card* card = card_of_driver(driver, gib(size));
    return card == nullptr ? std::string("none") : std::string(card->name);
  };
  EXPECT_EQ(name("NVIDIA H200", 139.8), "H200-141G");
  EXPECT_EQ(name("NVIDIA H20", 95.2), "H20-96G");
  EXPECT_EQ(name("NVIDIA H20-3e", 139.7), "H20-141G");
  EXPECT_EQ(name("NVIDIA H20", 139.7), "H20-141G");
  EXPECT_EQ(name("NVIDIA H100 80GB HBM3", 79.2), "H100-80G");
  EXPECT_EQ(name("NVIDIA A100-SXM4-80GB", 79.25), "A100-80G");
  EXPECT_EQ(name("NVIDIA A100-SXM4-40GB", 39.5), "none");
  EXPECT_EQ(name("NVIDIA A10", 22.1), "A10-24G");
  EXPECT_EQ(name("NVIDIA A10G", 22.1), "none");
  EXPECT_EQ(name("NVIDIA GeForce RTX 4090", 23.6), "RTX-4090-24G");
  EXPECT_EQ(name("NVIDIA GeForce RTX 4090 D", 23.6), "none");
  EXPECT_EQ(name("NVIDIA GeForce RTX 4090 Laptop GPU", 15.7), "none");
  EXPECT_EQ(name("", 80), "none");
}

}  // namespace
}  // namespace troupe
