#include "gpu/ceilings.h"

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "gpu/buffer.h"

namespace troupe {
namespace {

constexpr std::size_t kPiece = std::size_t{256} << 10;
constexpr int kPiecesTimed = 512;  // 128 MiB: no cache serves it again on the next pass

// Reads 64 bytes a step in the widest vectors there are; the xor keeps it from being dropped.
__attribute__((target("avx512f"))) std::uint64_t read_512(const std::byte* from, std::size_t bytes) {
  typedef std::uint64_t V __attribute__((vector_size(64)));
  V sum[4] = {};
  const auto* p = reinterpret_cast<const V*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(V); i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] ^= p[i + static_cast<std::size_t>(j)];
  }
  const V all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
  return all[0] ^ all[1] ^ all[2] ^ all[3] ^ all[4] ^ all[5] ^ all[6] ^ all[7];
}

__attribute__((target("avx2"))) std::uint64_t read_256(const std::byte* from, std::size_t bytes) {
  typedef std::uint64_t V __attribute__((vector_size(32)));
  V sum[4] = {};
  const auto* p = reinterpret_cast<const V*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(V); i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] ^= p[i + static_cast<std::size_t>(j)];
  }
  const V all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
  return all[0] ^ all[1] ^ all[2] ^ all[3];
}

std::uint64_t read_64(const std::byte* from, std::size_t bytes) {
  std::uint64_t sum[4] = {};
  const auto* p = reinterpret_cast<const std::uint64_t*>(from);
  for (std::size_t i = 0; i < bytes / 8; i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] ^= p[i + static_cast<std::size_t>(j)];
  }
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

using Reader = std::uint64_t (*)(const std::byte*, std::size_t);

Reader reader(Isa isa) { return isa >= Isa::avx512 ? read_512 : isa == Isa::avx2 ? read_256 : read_64; }

constexpr std::int64_t kRounds = 400'000;

// Twenty-four independent sums hide the latency; asm keeps the compiler from simplifying the constants.
__attribute__((target("avx512f,avx512bf16"))) void dots_bf16() {
  typedef float V __attribute__((vector_size(64)));
  V sum[24] = {};
  V a = {}, b = {};
  for (std::int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < 24; ++j) asm volatile("vdpbf16ps %2, %1, %0" : "+v"(sum[j]) : "v"(a), "v"(b));
  }
}

__attribute__((target("avx512f"))) void fmas_512() {
  typedef float V __attribute__((vector_size(64)));
  V sum[24] = {};
  V a = {}, b = {};
  for (std::int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < 24; ++j) asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum[j]) : "v"(a), "v"(b));
  }
}

__attribute__((target("avx2,fma"))) void fmas_256() {
  typedef float V __attribute__((vector_size(32)));
  V sum[12] = {};
  V a = {}, b = {};
  for (std::int64_t i = 0; i < 2 * kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum[j]) : "x"(a), "x"(b));
  }
}

void muls_128() {
  typedef float V __attribute__((vector_size(16)));
  V sum[12] = {};
  V a = {};
  for (std::int64_t i = 0; i < 2 * kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) asm volatile("mulps %1, %0\n\taddps %1, %0" : "+x"(sum[j]) : "x"(a));
  }
}

struct MeasuredLoop {
  void (*run)();
  double operations;
};

MeasuredLoop loop(Isa isa) {
  const auto rounds = static_cast<double>(kRounds);
  switch (isa) {
    case Isa::avx512_bf16: return {dots_bf16, rounds * 24 * 64};
    case Isa::avx512: return {fmas_512, rounds * 24 * 32};
    case Isa::avx2: return {fmas_256, 2 * rounds * 12 * 16};
    case Isa::baseline: break;
  }
  return {muls_128, 2 * rounds * 12 * 8};
}

template <class Pass>
double best_seconds(int passes, Pass&& pass) {
  double best = 1e9;
  for (int i = 0; i < passes; ++i) {
    const std::int64_t start = now_ns();
    pass();
    best = std::min(best, static_cast<double>(now_ns() - start) * 1e-9);
  }
  return best;
}

}  // namespace

double read_bandwidth(Cpu& device, std::size_t bytes) {
  bytes = bytes / kPiece * kPiece;
  auto buffer = Buffer<Cpu>::make(device, bytes, "the bandwidth measurement");
  if (!buffer) return 0;
  auto* memory = static_cast<std::byte*>(buffer->data());
  const int pieces = static_cast<int>(bytes / kPiece);
  device.pool().for_each(pieces, 8, [&](int begin, int end, int) {
    std::fill(memory + static_cast<std::size_t>(begin) * kPiece,
              memory + static_cast<std::size_t>(end) * kPiece, std::byte{1});
  });
  // Each piece of a few milliseconds counts by its best pass: what else runs on the cores seldom hits all.
  const Reader read = reader(device.isa());
  std::atomic<std::uint64_t> sink{0};
  double seconds = 0;
  for (int first = 0; first < pieces; first += kPiecesTimed) {
    const int count = std::min(kPiecesTimed, pieces - first);
    const std::byte* from = memory + static_cast<std::size_t>(first) * kPiece;
    seconds += best_seconds(7, [&] {
      device.pool().for_each(count, 4, [&](int begin, int end, int) {
        sink.fetch_xor(read(from + static_cast<std::size_t>(begin) * kPiece,
                            static_cast<std::size_t>(end - begin) * kPiece));
      });
    });
  }
  return static_cast<double>(bytes) / seconds;
}

double dot_peak(Cpu& device) {
  const MeasuredLoop inner = loop(device.isa());
  const int threads = device.pool().threads();
  const double seconds = best_seconds(7, [&] {
    device.pool().for_each(8 * threads, 1, [&](int begin, int end, int) {
      for (int i = begin; i < end; ++i) inner.run();
    });
  });
  return inner.operations * 8 * threads / seconds;
}

}  // namespace troupe
