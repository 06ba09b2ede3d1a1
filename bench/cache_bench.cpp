// The cache manager alone: leases that begin with published blocks, grow, publish and end, in a pool that
// evicts all the time. One operation is one block found, taken, published or dropped; CPU time of the thread.
#include <cstdint>
#include <random>
#include <vector>

#include "actors/cache/block_hash.h"
#include "actors/cache/cache_manager.h"
#include "bench/cpu_clock.h"
#include "bench/report.h"

namespace troupe {
namespace {

constexpr std::int32_t kBlocks = 20'000;
constexpr std::int32_t kLeases = 256;       // at once
constexpr std::int32_t kTableBlocks = 64;   // of a lease: 4,096 tokens
constexpr std::int32_t kSharedBlocks = 32;  // of these, begun like another lease
constexpr int kPrefixes = 10;
constexpr int kRounds = 40'000;

/// Million block operations a second.
double block_operations() {
  CacheManager cache;
  cache.reset(1, kBlocks, 64);
  std::mt19937_64 random(1);
  CacheAsks asks;
  CacheGrants grants;
  asks.epoch = 1;
  std::uint64_t next = 0;
  std::int64_t operations = 0;
  double us = 0;
  for (int round = 0; round < kRounds; ++round) {
    const RequestKey key{1, ++next};
    const std::uint64_t prefix = random() % kPrefixes;
    asks.releases.clear();
    if (next > kLeases) asks.releases.push_back({1, next - kLeases});
    asks.hashes.clear();
    for (std::uint64_t b = 0; b < kTableBlocks; ++b) {
      const std::uint64_t text = b < kSharedBlocks ? prefix : 1000 + next;
      asks.hashes.push_back({text + 1, (text * 1000 + b + 1) * 0x9e3779b97f4a7c15ull});
    }
    asks.grows = {{key, kTableBlocks, 0, {0, kTableBlocks}}};
    asks.publishes.clear();
    const double begin = bench::cpu_us();
    cache.answer(asks, grants);
    us += bench::cpu_us() - begin;
    const std::int32_t found = grants.grants[0].cached;

    asks.publishes = {{key, found, {found, kTableBlocks - found}}};
    asks.grows.clear();
    asks.releases.clear();
    const double again = bench::cpu_us();
    cache.answer(asks, grants);
    us += bench::cpu_us() - again;
    // Found and shared or taken, published, and once the pool is full dropped.
    operations += 2 * kTableBlocks + (kTableBlocks - found) + (next > kLeases ? kTableBlocks : 0);
  }
  return static_cast<double>(operations) / us;
}

/// Million tokens a second that are named.
double hashing() {
  const BlockHasher hasher({1, 2});
  std::vector<TokenId> tokens(64);
  BlockHash hash = hasher.root("");
  constexpr int kHashes = 200'000;
  const double begin = bench::cpu_us();
  for (int i = 0; i < kHashes; ++i) {
    tokens[0] = i;
    hash = hasher.next(hash, tokens);
  }
  const double us = bench::cpu_us() - begin;
  asm volatile("" ::"r"(hash.hi) : "memory");
  return kHashes * 64.0 / us;
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  troupe::bench::Report report(argc, argv);
  report.row({"cache.block_operations", troupe::block_operations(), "M/s", 0, 2});
  report.row({"cache.hashed_tokens", troupe::hashing(), "M/s", 0, 100});
  return report.all_met() ? 0 : 1;
}
