// Logits of the small reference checkpoints on the CPU, compared with those of transformers.
#include "model/support/golden.h"
#include "gpu/cpu.h"

namespace troupe::model {
namespace {

using test::GoldenCase;

class GoldenLogits : public ::testing::TestWithParam<std::tuple<GoldenCase, DType, Isa>> {};

TEST_P(GoldenLogits, EqualTheReference) {
  const auto [which, dtype, isa] = GetParam();
  if (!usable(isa)) GTEST_SKIP() << "this machine has no " << to_string(isa);
  Cpu device({.threads = 2, .pin = false, .isa = isa});
  test::check_golden(device, which, dtype);
}

std::string golden_name(const ::testing::TestParamInfo<GoldenLogits::ParamType>& info) {
  const auto [which, dtype, isa] = info.param;
  return std::string(which.checkpoint) + "_" + to_string(dtype) + "_" + to_string(isa);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenLogits,
                         ::testing::Combine(::testing::ValuesIn(test::kGoldenCases),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Values(Isa::baseline, Isa::avx2, Isa::avx512,
                                                              Isa::avx512_bf16, Isa::amx)),
                         golden_name);

}  // namespace
}  // namespace troupe::model
