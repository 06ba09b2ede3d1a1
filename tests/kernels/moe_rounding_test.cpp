// Where the mixture-of-experts block rounds to the dtype, by hand numbers: the same rule on every device.
#include <cmath>

#include "kernels/device_under_test.h"
#include "kernels/moe.h"

namespace troupe::kernels {
namespace {

class MoeRoundingTest : public OpTest {};
TROUPE_ALL_DEVICES(MoeRoundingTest);

// Every expert's weighted output is rounded to the dtype on its own, and nothing else behind its product is;
// a part of it, which other ranks' parts are added to, is not either.
// Two routed experts of weight 1/2 each and a shared one, whose activation is silu(1) in the dtype.
TEST_P(MoeRoundingTest, EachExpertsWeightedOutputIsRounded) {
  const std::vector<float> downs[3] = {{1.0078125f, -1.5f}, {1.3984375f, 0.34375f}, {-0.71484375f, 2.9375f}};
  const int outputs = gate_up_outputs(1);
  const Weight router(device(), DType::f32, 2, 2, {0, 0, 0, 0});
  const Rows bias(device(), DType::f32, 1, 2, {0, 0});
  const Memory gate_up_memory(device(), 3 * matrix_bytes(dtype(), outputs, 2)),
      down_memory(device(), 3 * matrix_bytes(dtype(), 2, 1));
  const MatrixStack gate_up{{gate_up_memory.as(), dtype(), outputs, 2}, 3};
  const MatrixStack down{{down_memory.as(), dtype(), 2, 1}, 3};
  const std::vector<float> one{1, 0};
  for (int g = 0; g < 3; ++g) {
    for (const Place place : {Place::gate, Place::up}) {
      run(device(), Pack{.into = gate_up.at(g),
                         .source = one.data(),
                         .source_dtype = DType::f32,
                         .place = place,
                         .outputs = 1});
    }
    run(device(),
        Pack{.into = down.at(g), .source = downs[g].data(), .source_dtype = DType::f32, .outputs = 2});
  }
  const Rows x(device(), dtype(), 1, 2, {1, 0});
  const std::vector<float> before{3.25f, -0.0078125f};
  const Rows y(device(), DType::f32, 1, 2, before), of_parts(device(), DType::f32, 1, 2, before);
  for (const Rows* residual : {&y, &of_parts}) {
    run(device(), Moe{.residual = residual->floats(),
                      .x = x.data(),
                      .router = router.matrix,
                      .bias = bias.floats(),
                      .gate_up = gate_up,
                      .down = down,
                      .experts = 2,
                      .parts = residual == &of_parts,
                      .shared = 1,
                      .top_k = 2,
                      .rows = 1});
  }
  const float activation = rounded_to(dtype(), 1 / (1 + std::exp(-1.0f)));
  for (std::size_t i = 0; i < 2; ++i) {
    float expected = before[i], unrounded = before[i];
    for (int g = 0; g < 3; ++g) {
      const float part = (g < 2 ? 0.5f : 1.0f) * (activation * rounded_to(dtype(), downs[g][i]));
      expected += rounded_to(dtype(), part);
      unrounded += part;
    }
    EXPECT_NEAR(of_parts.at(0, int(i)), unrounded, 1e-6);
    if (dtype() == DType::f32) {
      EXPECT_NEAR(y.at(0, int(i)), expected, 1e-6);
    } else {
      ASSERT_NE(expected, unrounded) << "the case tells nothing";
      EXPECT_EQ(y.at(0, int(i)), expected);
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
