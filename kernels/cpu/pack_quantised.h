#pragma once
// Pack and FillRandom into int8, int4 and wint2.
#include "gpu/cpu.h"
#include "kernels/fill_random.h"
#include "kernels/pack.h"

namespace troupe::kernels {

void pack_quantised(Cpu& device, const Pack& op);
/// Of a source with scales.
void pack_codes(Cpu& device, const Pack& op);
/// Of a source of wint2.
void pack_wint2(Cpu& device, const Pack& op);
/// Not the numbers of other formats: draws bytes and scales, by the output and the inputs as others do, so
/// that weights have the deviation.
void fill_wint2(Cpu& device, const FillRandom& op);
/// `table`: the 4096 draws.
void fill_quantised(Cpu& device, const FillRandom& op, const float* table);

}  // namespace troupe::kernels
