#include "model/cpu_isa.h"

#include "kernels/best_isa.h"

namespace troupe::model {
namespace {

Isa isa_of(config::CpuIsa asked) {
  switch (asked) {
    case config::CpuIsa::baseline: return Isa::baseline;
    case config::CpuIsa::avx2: return Isa::avx2;
    case config::CpuIsa::avx512: return Isa::avx512;
    case config::CpuIsa::avx512_vnni: return Isa::avx512_vnni;
    case config::CpuIsa::avx512_bf16: return Isa::avx512_bf16;
    case config::CpuIsa::automatic:
    case config::CpuIsa::amx: break;
  }
  return Isa::amx;
}

}  // namespace

Status check_isa(config::CpuIsa asked) {
  const CpuFeatures& cpu = cpu_features();
  const Isa wanted = isa_of(asked);
  if (asked == config::CpuIsa::automatic || usable(wanted)) return {};
  if (wanted == Isa::amx && cpu.amx) return {};
  return invalid(std::string("--cpu-isa ") + to_string(wanted) + ": this processor (" + cpu.model +
                     ") does not have it; the best that it has is " + to_string(usable_isas().back()),
                 "cpu-isa");
}

Result<ChosenIsa> choose_isa(config::CpuIsa asked) {
  if (const Status has_it = check_isa(asked); !has_it.ok()) return has_it;
  const Isa wanted = isa_of(asked);
  if (wanted != Isa::amx) return ChosenIsa{wanted};
  // A test program that emulates AMX has it where it asks for it.
  if (asked == config::CpuIsa::amx && !cpu_features().amx) return ChosenIsa{wanted};
  return ChosenIsa{kernels::best_isa().isa, kernels::best_isa().why_not_amx};
}

}  // namespace troupe::model
