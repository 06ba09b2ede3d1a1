// The norm behind the mixture-of-experts block: the bits of AddRmsNorm, in one kernel or two.
#include <cstring>

#include "kernels/moe_layer.h"

namespace troupe::kernels {
namespace {

class MoeNextNormTest : public OpTest {};
TROUPE_ALL_DEVICES(MoeNextNormTest);

TEST_P(MoeNextNormTest, HasAddRmsNormsBits) {
  for (const MoeCase& c : {MoeCase{40, 32, 4, 2, 2, 5}, MoeCase{1100, 32, 4, 1, 3, 3},
                           MoeCase{3200, 32, 4, 0, 2, 2}, MoeCase{8224, 32, 2, 1, 1, 2}}) {
    const MoeLayer layer(invariant_device(), dtype(), c);
    const auto numbers = std::size_t(c.rows * c.hidden);
    const Rows x(invariant_device(), dtype(), c.rows, c.hidden, random_floats(numbers, 5));
    const auto before = random_floats(numbers, 6);
    std::vector<float> w = random_floats(std::size_t(c.hidden), 7);
    for (float& v : w) v = rounded_to(dtype(), v);
    const Rows weight(invariant_device(), DType::f32, 1, c.hidden, w);
    Memory slots(invariant_device(), sizeof(KvSlot) * std::size_t(c.rows));
    for (int r = 0; r < c.rows; ++r) slots.change<KvSlot>()[r] = {r + 1 < c.rows ? r : kPaddingBlock, 0};
    const auto answer = [&](Rows& residual, Rows& out, bool inside) {
      const AddRmsNorm norm{.out = out.data(),
                            .residual = residual.floats(),
                            .weight = weight.floats(),
                            .dtype = dtype(),
                            .rows = c.rows,
                            .cols = c.hidden};
      Moe op = layer.op(residual, x.data(), c.rows);
      op.slots = slots.as<KvSlot>();
      if (inside) op.next_norm = norm;
      run(invariant_device(), op);
      if (!inside) run(invariant_device(), norm);
    };
    Rows apart(invariant_device(), DType::f32, c.rows, c.hidden, before),
        normed(invariant_device(), dtype(), c.rows, c.hidden);
    Rows inside(invariant_device(), DType::f32, c.rows, c.hidden, before),
        out(invariant_device(), dtype(), c.rows, c.hidden);
    answer(apart, normed, false);
    answer(inside, out, true);
    for (int r = 0; r < c.rows; ++r) {
      ASSERT_EQ(std::memcmp(inside.row(r), apart.row(r), apart.row_bytes()), 0)
          << "row " << r << " of " << c.hidden;
      ASSERT_EQ(std::memcmp(out.row(r), normed.row(r), normed.row_bytes()), 0)
          << "row " << r << " of " << c.hidden;
    }
    EXPECT_NE(std::memcmp(inside.row(0), before.data(), sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace troupe::kernels
