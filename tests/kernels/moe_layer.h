#pragma once
// A mixture-of-experts block of random weights, and what it gives in double precision.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/device_under_test.h"
#include "kernels/moe.h"
#include "kernels/pack.h"

namespace troupe::kernels {

/// What one row's block is made of, in host memory, and what it gives.
struct MoeCase {
  int hidden = 0, intermediate = 0, experts = 0, shared = 0, top_k = 0, rows = 0;
  float router_deviation = 1;
};

class MoeLayer {
 public:
  MoeLayer(DeviceUnderTest& device, DType dtype, const MoeCase& c, std::uint32_t seed = 1)
      : case_(c),
        dtype_(dtype),
        router(device, DType::f32, c.experts, c.hidden,
               random_floats(std::size_t(c.experts * c.hidden), seed,
                             c.router_deviation / std::sqrt(float(c.hidden)))),
        bias(device, DType::f32, 1, c.experts, random_floats(std::size_t(c.experts), seed + 1, 0.02f)),
        gate_up_memory_(device, groups() * matrix_bytes(dtype, gate_up_outputs(c.intermediate), c.hidden)),
        down_memory_(device, groups() * matrix_bytes(dtype, c.hidden, c.intermediate)) {
    gate_up = {{gate_up_memory_.as(), dtype, gate_up_outputs(c.intermediate), c.hidden}, int(groups())};
    down = {{down_memory_.as(), dtype, c.hidden, c.intermediate}, int(groups())};
    for (int g = 0; g < int(groups()); ++g) {
      const auto w = [&](std::uint32_t which, int inputs) {
        auto values = random_floats(std::size_t(c.intermediate * c.hidden),
                                    seed + 10 * std::uint32_t(g) + which, 1 / std::sqrt(float(inputs)));
        for (float& v : values) v = rounded_to(dtype, v);
        return values;
      };
      gate.push_back(w(3, c.hidden));
      up.push_back(w(4, c.hidden));
      out.push_back(w(5, c.intermediate));
      Pack pack{.into = gate_up.at(g),
                .source = up.back().data(),
                .source_dtype = DType::f32,
                .place = Place::up,
                .outputs = c.intermediate};
      run(device, pack);
      pack.source = gate.back().data();
      pack.place = Place::gate;
      run(device, pack);
      run(device, Pack{.into = down.at(g),
                       .source = out.back().data(),
                       .source_dtype = DType::f32,
                       .outputs = c.hidden});
    }
  }

  std::size_t groups() const { return std::size_t(case_.experts + case_.shared); }

  Moe op(const Rows& residual, const void* x, int rows) const {
    return {.residual = residual.floats(),
            .x = x,
            .router = router.matrix,
            .bias = bias.floats(),
            .gate_up = gate_up,
            .down = down,
            .experts = case_.experts,
            .shared = case_.shared,
            .top_k = case_.top_k,
            .rows = rows};
  }

  struct Choice {
    std::vector<int> experts;     // rising
    std::vector<double> weights;  // of those
    double gap = 0;               // between the last that is chosen and the first that is not
  };
  Choice choose(const Rows& x, int row) const {
    std::vector<double> p(std::size_t(case_.experts));
    for (int e = 0; e < case_.experts; ++e)
      p[std::size_t(e)] = router.dot(e, [&](int i) { return x.at(row, i); });
    const double largest = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& v : p) sum += v = std::exp(v - largest);
    for (double& v : p) v /= sum;
    const auto score = [&](int e) { return p[std::size_t(e)] + double(bias.at(0, e)); };
    std::vector<int> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return score(a) > score(b); });
    Choice choice;
    choice.experts.assign(order.begin(), order.begin() + case_.top_k);
    choice.gap = case_.top_k < case_.experts
                     ? score(order[std::size_t(case_.top_k) - 1]) - score(order[std::size_t(case_.top_k)])
                     : 1;
    std::sort(choice.experts.begin(), choice.experts.end());
    double chosen = 0;
    for (const int e : choice.experts) chosen += p[std::size_t(e)];
    for (const int e : choice.experts) choice.weights.push_back(p[std::size_t(e)] / std::max(chosen, 1e-12));
    return choice;
  }

  /// expert_g(x[row]) and, in `size`, what its rounding errors are to be measured by.
  std::vector<double> expert(int g, const Rows& x, int row, double& size) const {
    const auto& wg = gate[std::size_t(g)];
    const auto& wu = up[std::size_t(g)];
    const auto& wd = out[std::size_t(g)];
    std::vector<double> a(std::size_t(case_.intermediate)), y(std::size_t(case_.hidden), 0.0);
    for (std::size_t j = 0; j < a.size(); ++j) {
      double g0 = 0, u0 = 0;
      for (int i = 0; i < case_.hidden; ++i) {
        const std::size_t at = j * std::size_t(case_.hidden) + std::size_t(i);
        g0 += double(wg[at]) * double(x.at(row, i));
        u0 += double(wu[at]) * double(x.at(row, i));
      }
      a[j] = g0 / (1 + std::exp(-g0)) * u0;
    }
    size = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      double s = 0;
      for (std::size_t j = 0; j < a.size(); ++j) {
        y[i] += double(wd[i * a.size() + j]) * a[j];
        s += std::abs(double(wd[i * a.size() + j]) * a[j]);
      }
      size = std::max(size, s);
    }
    return y;
  }

  const MoeCase case_;
  const DType dtype_;
  Weight router;
  Rows bias;
  MatrixStack gate_up, down;
  std::vector<std::vector<float>> gate, up, out;  // by group

 private:
  Memory gate_up_memory_, down_memory_;
};

}  // namespace troupe::kernels
