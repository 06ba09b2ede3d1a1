#include "gpu/ceiling_loops.h"
#include "gpu/tile_shapes.h"

namespace troupe {
namespace {

// Reads 64 bytes a step in the widest vectors of the set; the xor keeps the compiler from dropping the reads.
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

__attribute__((target("avx512f,avx512vnni"))) void dots_bytes() {
  typedef std::int32_t V __attribute__((vector_size(64)));
  V sum[24] = {};
  V a = {}, b = {};
  for (std::int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 24
    for (int j = 0; j < 24; ++j) asm volatile("vpdpbusd %2, %1, %0" : "+v"(sum[j]) : "v"(a), "v"(b));
  }
}

/// Eight tiles of 16 rows of 64 bytes.
constexpr TileShapes kWholeTiles{.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                 .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

// Four sums of 16 x 16, as the products have them.
__attribute__((target("amx-tile,amx-bf16"))) void tiles_bf16() {
  asm volatile("ldtilecfg %0" : : "m"(kWholeTiles));
  for (std::int64_t i = 0; i < kRounds / 16; ++i) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
}

__attribute__((target("amx-tile,amx-int8"))) void tiles_bytes() {
  asm volatile("ldtilecfg %0" : : "m"(kWholeTiles));
  for (std::int64_t i = 0; i < kRounds / 16; ++i) {
    asm volatile(
        "tdpbsud %tmm6, %tmm4, %tmm0\n\ttdpbsud %tmm7, %tmm4, %tmm1\n\t"
        "tdpbsud %tmm6, %tmm5, %tmm2\n\ttdpbsud %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
}

// Products of half a byte: pairs of them are added to 16 bits. Two such steps make one of a byte.
__attribute__((target("avx512f,avx512bw"))) void half_bytes_512() {
  typedef std::int32_t V __attribute__((vector_size(64)));
  V sum[12] = {};
  V a = {}, b = {}, product;
  for (std::int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      asm volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
                   : "+v"(sum[j]), "=&v"(product)
                   : "v"(a), "v"(b));
    }
  }
}

__attribute__((target("avx2"))) void half_bytes_256() {
  typedef std::int32_t V __attribute__((vector_size(32)));
  V sum[12] = {};
  V a = {}, b = {}, product;
  for (std::int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) {
      asm volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
                   : "+x"(sum[j]), "=&x"(product)
                   : "x"(a), "x"(b));
    }
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

}  // namespace

ReadLoop read_loop(Isa isa) { return isa >= Isa::avx512 ? read_512 : isa == Isa::avx2 ? read_256 : read_64; }

DotLoop dot_loop(Isa isa) {
  const auto rounds = static_cast<double>(kRounds);
  switch (isa) {
    case Isa::amx: return {tiles_bf16, rounds / 16 * 4 * 2 * 16 * 16 * 32};
    case Isa::avx512_bf16: return {dots_bf16, rounds * 24 * 64};
    case Isa::avx512_vnni:
    case Isa::avx512: return {fmas_512, rounds * 24 * 32};
    case Isa::avx2: return {fmas_256, 2 * rounds * 12 * 16};
    case Isa::baseline: break;
  }
  return {muls_128, 2 * rounds * 12 * 8};
}

DotLoop int8_dot_loop(Isa isa) {
  const auto rounds = static_cast<double>(kRounds);
  switch (isa) {
    case Isa::amx: return {tiles_bytes, rounds / 16 * 4 * 2 * 16 * 16 * 64};
    case Isa::avx512_bf16:
    case Isa::avx512_vnni: return {dots_bytes, rounds * 24 * 128};
    case Isa::avx512: return {half_bytes_512, rounds * 12 * 64};
    case Isa::avx2: return {half_bytes_256, rounds * 12 * 32};
    case Isa::baseline: break;
  }
  return dot_loop(isa);
}

}  // namespace troupe
