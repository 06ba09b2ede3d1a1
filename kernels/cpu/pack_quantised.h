#pragma once
// Pack and FillRandom into int8 and int4.
#include "gpu/cpu.h"
#include "kernels/fill_random.h"
#include "kernels/pack.h"

namespace troupe::kernels {

void pack_quantised(Cpu& device, const Pack& op);
/// Of a source with scales.
void pack_codes(Cpu& device, const Pack& op);
/// `table`: the 4096 draws.
void fill_quantised(Cpu& device, const FillRandom& op, const float* table);

}  // namespace troupe::kernels
