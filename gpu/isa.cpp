#include "gpu/isa.h"

namespace troupe {

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::baseline: return "baseline";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::avx512_vnni: return "avx512_vnni";
    case Isa::avx512_bf16: return "avx512_bf16";
  }
  return "unknown";
}

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect_cpu();
  return features;
}

std::vector<Isa> usable_isas() {
  std::vector<Isa> isas;
  for (int i = 0; i <= static_cast<int>(cpu_features().best); ++i) isas.push_back(static_cast<Isa>(i));
  return isas;
}

}  // namespace troupe
