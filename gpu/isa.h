#pragma once
// Instruction sets that the CPU ops are written for, and which of them the running machine has. The program
// itself is built for the plain architecture; each set beyond that has its own translation units in
// kernels/cpu. On CPUs other than x86-64 there is the baseline alone.
#include <string>
#include <vector>

namespace troupe {

/// In rising order: a machine that has one of them has all before it.
enum class Isa : int {
  baseline = 0,  ///< the plain architecture: on x86-64 SSE2
  avx2,          ///< AVX2, FMA, F16C
  avx512,        ///< AVX-512 F, BW, VL, DQ
  avx512_vnni,   ///< the same and dot products of bytes
  avx512_bf16,   ///< the same and bf16 dot products
  amx,           ///< the same and products of tiles, of bf16 and of bytes
};

const char* to_string(Isa isa);

struct CpuFeatures {
  /// The CPU has it and the operating system saves its registers. Never amx: kernels/best_isa.h says
  /// whether that is right here.
  Isa best = Isa::baseline;
  bool amx = false;          ///< it has AMX; amx_refused() says whether this process may use it
  bool avx512_vnni = false;  ///< dot products of bytes
  bool avx_vnni = false;
  bool intel = false;   ///< Intel made it
  std::string model{};  ///< brand string, "AMD EPYC 9355"
};

/// Asked of the CPU once per process.
const CpuFeatures& cpu_features();
/// Asks the CPU: isa_x86.cpp or isa_generic.cpp.
CpuFeatures detect_cpu();

/// Why this process may not use AMX though the CPU has it; empty: it may, or there is none. The first call
/// asks the operating system for tile registers, for all threads that the process has or makes.
const std::string& amx_refused();
/// Asks the operating system: isa_x86.cpp or isa_generic.cpp. Empty, or why it refuses.
std::string ask_for_amx();

/// True if a device may have this set: the machine has it, or it is amx and the program emulates that.
bool usable(Isa isa);
/// Every usable set, baseline first.
std::vector<Isa> usable_isas();

/// False. A test program that links an emulation of AMX (tests/kernels/emulated_amx_x86.cpp) replaces it.
bool emulates_amx();

}  // namespace troupe
