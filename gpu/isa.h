#pragma once
// Instruction sets that the CPU ops are written for, and what the running machine has of them. The
// program itself is built for plain x86-64; each set has its own translation units in kernels/cpu.
#include <string>
#include <vector>

namespace troupe {

/// In rising order: a machine that has one has all before it.
enum class Isa : int {
  baseline = 0,  ///< x86-64 with SSE2
  avx2,          ///< AVX2, FMA, F16C
  avx512,        ///< AVX-512 F, BW, VL, DQ
  avx512_bf16,   ///< the same and bf16 dot products
};

inline constexpr int kIsas = 4;

const char* to_string(Isa isa);

struct CpuFeatures {
  Isa best = Isa::baseline;  ///< usable: the CPU has it and the operating system saves its registers
  bool avx512_vnni = false;  ///< 8-bit dot products
  bool avx_vnni = false;
  std::string model{};  ///< brand string, "AMD EPYC 9355"
};

const CpuFeatures& cpu_features();

/// Every set the machine has, baseline first.
std::vector<Isa> usable_isas();

}  // namespace troupe
