// Logits of the small reference checkpoints on the GPU, compared with those of transformers. Their shapes
// take the generic kernels; cuda_tuned_golden_test.cpp has shapes that take the tuned ones.
#include "gpu/cuda.h"
#include "model/support/golden.h"

namespace troupe::model {
namespace {

using test::GoldenCase;

class CudaGoldenLogits : public ::testing::TestWithParam<std::tuple<GoldenCase, DType, bool>> {};

TEST_P(CudaGoldenLogits, EqualTheReference) {
  if (const Status usable = cuda_usable(); !usable.ok()) GTEST_SKIP() << usable.message;
  const auto [which, dtype, invariant] = GetParam();
  Cuda device({.batch_invariant = invariant});
  test::check_golden(device, which, dtype);
}

std::string cuda_golden_name(const ::testing::TestParamInfo<CudaGoldenLogits::ParamType>& info) {
  const auto [which, dtype, invariant] = info.param;
  return std::string(which.checkpoint) + "_" + to_string(dtype) + (invariant ? "_invariant" : "");
}

INSTANTIATE_TEST_SUITE_P(All, CudaGoldenLogits,
                         ::testing::Combine(::testing::ValuesIn(test::kGoldenCases),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Bool()),
                         cuda_golden_name);

}  // namespace
}  // namespace troupe::model
