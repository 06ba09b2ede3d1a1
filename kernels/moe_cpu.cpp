// The rows are routed, sorted by expert, and each expert's panels are then read once for all of its rows, as
// in the dense block. A piece of the second product is a panel of outputs for all experts, one after the
// other in rising order: whoever runs it adds to its columns of the residual alone, so that the sum over a
// row's experts needs no memory of its own and has one order.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/static_inputs.h"
#include "kernels/moe.h"
#include "kernels/quantize.h"

namespace troupe::kernels {
namespace {

constexpr int kRowsAtOnce =
    2048;  // bounds the working memory: enough rows for each expert to be compute-bound
constexpr int kRoutedRowsPerClaim = 16;
constexpr int kMostPanelsPerClaim = 8;  // of down; neighbours, so that an expert's part is a long run
constexpr int kMostPairsPerClaim = 4;
constexpr int kExpertClaimsPerThread = 8;

/// Some rows of one group: they stay in the cache while the group's panels pass.
struct GroupRows {
  int group = 0;    ///< expert or held + slice
  int first = 0;    ///< place of its first row in the grouped order
  int operand = 0;  ///< its first row among the operands: the shared slices have theirs in common
  int rows = 0;
};

/// The pieces of device.scratch(): add() all, then get them.
class ScratchLayout {
 public:
  template <class T>
  std::size_t add(std::size_t count) {
    const std::size_t at = bytes_;
    bytes_ += (count * sizeof(T) + 63) / 64 * 64;
    return at;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

/// One run over at most kRowsAtOnce rows.
class MoeRun {
 public:
  MoeRun(Cpu& device, const Moe& op)
      : device_(device),
        op_(op),
        r_(routines(device.isa())),
        x_format_(r_, op.gate_up.first),
        a_format_(r_, op.down.first) {
    const auto rows = static_cast<std::size_t>(op.rows);
    const auto k = static_cast<std::size_t>(op.top_k);
    const std::size_t groups = static_cast<std::size_t>(op.in_stacks() + op.shared);
    const std::size_t places = rows * (k + static_cast<std::size_t>(op.shared));
    x_.element = x_format_.element();
    a_.element = a_format_.element();
    x_.ld = x_format_.pitch() / x_.element;
    a_.ld = a_format_.pitch() / a_.element;
    unit_rows_ = rows_of_a_block(std::max(x_format_.row_bytes(), a_format_.row_bytes()),
                                 tile_of(r_, op.gate_up.first.format).rows.most);
    // Experts with static scales each have codes of their own.
    const std::size_t operands = rows == 1 && !w4a8() ? 1 : rows * (k + (op.shared > 0 ? 1 : 0));
    const std::size_t activations = keeps_activations() ? places * a_format_.width() : 0;

    ScratchLayout layout;
    const std::size_t logits = layout.add<float>(rows * experts_stride());
    const std::size_t chosen = layout.add<std::int32_t>(rows * k);
    const std::size_t weights = layout.add<float>(rows * k);
    const std::size_t row_of = layout.add<std::int32_t>(places);
    const std::size_t weight_of = layout.add<float>(places);
    const std::size_t offsets = layout.add<std::int32_t>(groups + 1);
    const std::size_t units = layout.add<GroupRows>(groups + places / static_cast<std::size_t>(unit_rows_));
    const std::size_t x = layout.add<std::byte>(operands * x_format_.pitch());
    const std::size_t a = layout.add<std::byte>(places * a_format_.pitch());
    const std::size_t activation = layout.add<float>(activations);
    auto* base = static_cast<std::byte*>(device.scratch(layout.bytes()));
    logits_ = reinterpret_cast<float*>(base + logits);
    chosen_ = reinterpret_cast<std::int32_t*>(base + chosen);
    weights_ = reinterpret_cast<float*>(base + weights);
    row_of_ = reinterpret_cast<std::int32_t*>(base + row_of);
    weight_of_ = reinterpret_cast<float*>(base + weight_of);
    offsets_ = reinterpret_cast<std::int32_t*>(base + offsets);
    units_ = reinterpret_cast<GroupRows*>(base + units);
    x_.data = base + x;
    a_.data = base + a;
    activations_ = reinterpret_cast<float*>(base + activation);
    router_rows_ = tile_of(r_, op.router.format).rows.most;
    device.reserve_lanes(static_cast<std::size_t>(router_rows_) * x_format_.width() * sizeof(float));
  }

  void run() {
    score();
    choose();
    group();
    w4a8() ? gather_static() : gather();
    gate_up();
    if (w4a8()) rotate();
    if (op_.largest.wanted()) find_largest();
    down();
  }

 private:
  DType dtype() const { return op_.down.first.activations(); }
  bool w4a8() const { return op_.gate_up_inputs != nullptr; }
  bool keeps_activations() const { return w4a8() || op_.largest.wanted(); }
  std::size_t experts_stride() const { return static_cast<std::size_t>(padded(op_.experts)); }
  const std::byte* x_row(int row) const {
    return static_cast<const std::byte*>(op_.x) + static_cast<std::size_t>(row) *
                                                      static_cast<std::size_t>(padded(op_.router.inputs)) *
                                                      size_of(dtype());
  }
  /// Its place in the stacks, or -1: it is a padding row's, or on another rank.
  int held(std::int32_t expert) const {
    const int place = expert - op_.first;
    return expert >= 0 && place >= 0 && place < op_.in_stacks() ? place : -1;
  }
  bool counts(int row) const { return op_.slots == nullptr || op_.slots[row].block != kPaddingBlock; }

  /// logits = router · x, every one a single sum over the inputs in rising order.
  void score() {
    const int panels = padded(op_.experts) / kPanel;
    const int tiles = (op_.rows + router_rows_ - 1) / router_rows_;
    const int cuts = tiles < device_.pool().threads() ? panels : 1;
    const auto width = static_cast<std::size_t>(padded(op_.router.inputs));
    device_.pool().for_each(tiles * cuts, 1, [&](int begin, int end, int lane) {
      auto* floats = static_cast<float*>(device_.lane(lane));
      for (int item = begin; item < end; ++item) {
        const int first = item / cuts * router_rows_;
        const int last = std::min(op_.rows, first + router_rows_);
        for (int row = first; row < last; ++row) {
          r_.expand[static_cast<int>(dtype())](floats + static_cast<std::size_t>(row - first) * width,
                                               x_row(row), width);
        }
        for (int panel = item % cuts; panel < panels; panel += cuts) {
          multiply<1>(r_, op_.router, {floats, width, sizeof(float)}, 0, last - first, panel,
                      [&](int from, int count, const TileSums& sums) {
                        for (int i = 0; i < count; ++i) {
                          std::memcpy(logits_ +
                                          static_cast<std::size_t>(first + from + i) * experts_stride() +
                                          static_cast<std::size_t>(panel) * kPanel,
                                      sums(0, i), kPanel * sizeof(float));
                        }
                      });
        }
      }
    });
  }

  void choose() {
    device_.pool().for_each(op_.rows, kRoutedRowsPerClaim, [&](int begin, int end, int) {
      for (int row = begin; row < end; ++row) choose(row);
    });
    if (op_.chosen != nullptr) {
      std::memcpy(op_.chosen, chosen_,
                  static_cast<std::size_t>(op_.rows) * static_cast<std::size_t>(op_.top_k) * sizeof *chosen_);
    }
  }

  void choose(int row) {
    float* p = logits_ + static_cast<std::size_t>(row) * experts_stride();
    std::int32_t* chosen = chosen_ + static_cast<std::size_t>(row) * static_cast<std::size_t>(op_.top_k);
    float* weights = weights_ + static_cast<std::size_t>(row) * static_cast<std::size_t>(op_.top_k);
    if (!counts(row) || (op_.kinds != nullptr && op_.kinds[row] != op_.kind)) {
      std::fill_n(chosen, op_.top_k, -1);
      return;
    }
    const float largest = *std::max_element(p, p + op_.experts);
    float sum = 0;
    for (int e = 0; e < op_.experts; ++e) sum += p[e] = std::exp(p[e] - largest);
    for (int e = 0; e < op_.experts; ++e) p[e] /= sum;
    bool taken[kMostExperts] = {};
    for (int k = 0; k < op_.top_k; ++k) {
      int best = -1;  // NaN compares false: a row of them takes the first experts
      for (int e = 0; e < op_.experts; ++e) {
        if (!taken[e] && (best < 0 || p[e] + op_.bias[e] > p[best] + op_.bias[best])) best = e;
      }
      taken[best] = true;
    }
    int k = 0;
    float of_chosen = 0;
    for (int e = 0; e < op_.experts; ++e) {
      if (!taken[e]) continue;
      chosen[k] = e;
      weights[k++] = p[e];
      of_chosen += p[e];
    }
    for (k = 0; k < op_.top_k; ++k) weights[k] /= std::max(of_chosen, 1e-12f);
  }

  /// Counting sort by expert, rows rising; then every row that counts once for each shared slice.
  void group() {
    const int groups = op_.in_stacks() + op_.shared;
    const int choices = op_.rows * op_.top_k;
    std::fill_n(offsets_, groups + 1, 0);
    int counted = 0;
    for (int i = 0; i < choices; ++i) {
      if (const int place = held(chosen_[i]); place >= 0) ++offsets_[place + 1];
    }
    for (int row = 0; row < op_.rows; ++row) counted += counts(row);
    for (int s = 0; s < op_.shared; ++s) offsets_[op_.in_stacks() + s + 1] = counted;
    for (int g = 0; g < groups; ++g) offsets_[g + 1] += offsets_[g];
    std::int32_t next[kMostExperts];
    std::copy_n(offsets_, op_.in_stacks(), next);
    for (int i = 0; i < choices; ++i) {
      const int expert = held(chosen_[i]);
      if (expert < 0) continue;
      const std::int32_t place = next[expert]++;
      row_of_[place] = i / op_.top_k;
      weight_of_[place] = weights_[i];
    }
    std::int32_t place = offsets_[op_.in_stacks()];
    operands_ = place + (op_.shared > 0 ? counted : 0);
    for (int s = 0; s < op_.shared; ++s) {
      for (int row = 0; row < op_.rows; ++row) {
        if (!counts(row)) continue;
        row_of_[place] = row;
        weight_of_[place++] = 1;
      }
    }
    count_ = 0;
    for (int g = 0; g < groups; ++g) {
      const int slice = std::max(0, g - op_.in_stacks());
      for (int first = offsets_[g]; first < offsets_[g + 1]; first += unit_rows_) {
        units_[count_++] = {.group = g,
                            .first = first,
                            .operand = op_.rows == 1 && !w4a8() ? 0 : first - slice * counted,
                            .rows = std::min(unit_rows_, offsets_[g + 1] - first)};
      }
    }
    if (op_.rows == 1 && !w4a8()) operands_ = std::min(operands_, 1);
  }

  void gather() {
    auto* to = const_cast<std::byte*>(static_cast<const std::byte*>(x_.data));
    device_.pool().for_each(operands_, kRoutedRowsPerClaim, [&](int begin, int end, int) {
      for (int i = begin; i < end; ++i) {
        x_format_.convert(to + static_cast<std::size_t>(i) * x_format_.pitch(), x_row(row_of_[i]), 0,
                          x_format_.width());
      }
    });
  }

  void gather_static() {
    auto* to = const_cast<std::byte*>(static_cast<const std::byte*>(x_.data));
    device_.pool().for_each(count_, 1, [&](int begin, int end, int lane) {
      auto* floats = static_cast<float*>(device_.lane(lane));
      for (int u = begin; u < end; ++u) {
        const GroupRows& unit = units_[u];
        for (int place = unit.first; place < unit.first + unit.rows; ++place) {
          r_.expand[static_cast<int>(dtype())](floats, x_row(row_of_[place]), x_format_.width());
          quantise_static(to + static_cast<std::size_t>(place) * x_format_.pitch(), floats, x_format_.width(),
                          op_.gate_up_inputs[unit.group]);
        }
      }
    });
  }

  float* activation_row(int place) const {
    return activations_ + static_cast<std::size_t>(place) * a_format_.width();
  }

  void rotate() {
    auto* to = const_cast<std::byte*>(static_cast<const std::byte*>(a_.data));
    device_.pool().for_each(count_, 1, [&](int begin, int end, int) {
      for (int u = begin; u < end; ++u) {
        const GroupRows& unit = units_[u];
        for (int place = unit.first; place < unit.first + unit.rows; ++place) {
          float* row = activation_row(place);
          rotate_blocks(r_, dtype(), row, a_format_.width());
          quantise_static(to + static_cast<std::size_t>(place) * a_format_.pitch(), row, a_format_.width(),
                          op_.down_inputs[unit.group]);
        }
      }
    });
  }

  /// Of each expert's rows, for Moe::largest. A unit's rows are one expert's, and units of the shared slices
  /// come last.
  void find_largest() {
    device_.pool().for_each(op_.in_stacks(), 1, [&](int begin, int end, int lane) {
      auto* x = static_cast<float*>(device_.lane(lane));
      for (int expert = begin; expert < end; ++expert) {
        for (int place = offsets_[expert]; place < offsets_[expert + 1]; ++place) {
          r_.expand[static_cast<int>(dtype())](x, x_row(row_of_[place]), x_format_.width());
          raise(op_.largest.gate_up[expert], x, static_cast<std::size_t>(op_.gate_up.first.inputs));
          float* row = activation_row(place);
          rotate_blocks(r_, dtype(), row, a_format_.width());
          raise(op_.largest.down[expert], row, a_format_.width());
        }
      }
    });
  }

  static void raise(float& largest, const float* numbers, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) largest = larger_magnitude(largest, numbers[i]);
  }

  /// silu(gate) * up of 32 activations of a row, each rounded.
  void store_static(int place, int pair, const float* gate, const float* up) const {
    alignas(64) float gates[kPanel], ups[kPanel], product[kPanel];
    std::copy_n(gate, kPanel, gates);
    std::copy_n(up, kPanel, ups);
    round_to(r_, dtype(), gates, kPanel);
    round_to(r_, dtype(), ups, kPanel);
    r_.swiglu[static_cast<int>(dtype())](product, gates, ups, kPanel);
    r_.expand[static_cast<int>(dtype())](activation_row(place) + static_cast<std::size_t>(pair) * kPanel,
                                         product, kPanel);
  }

  int claim(int pieces, int most) const {
    return std::clamp(pieces / (device_.pool().threads() * kExpertClaimsPerThread), 1, most);
  }

  void gate_up() {
    const Matrix& shape = op_.gate_up.first;
    const auto swiglu = r_.swiglu[static_cast<int>(dtype())];
    const int pairs = padded(shape.outputs) / kPanel / 2;
    auto* to = const_cast<std::byte*>(static_cast<const std::byte*>(a_.data));
    device_.pool().for_each(
        count_ * pairs, claim(count_ * pairs, kMostPairsPerClaim), [&](int begin, int end, int) {
          const TileUse tiles(r_);
          for (int item = begin; item < end; ++item) {
            const GroupRows unit = units_[item / pairs];
            const int pair = item % pairs;
            const Matrix weight = op_.gate_up.at(unit.group);
            const auto store = [&](int from, int rows, const TileSums& sums) {
              for (int i = 0; i < rows; ++i) {
                const auto place = static_cast<std::size_t>(unit.first - unit.operand + from + i);
                if (w4a8()) {
                  store_static(static_cast<int>(place), pair, sums(0, i), sums(1, i));
                  continue;
                }
                alignas(64) float rounded[kPanel];
                swiglu(rounded, sums(0, i), sums(1, i), kPanel);
                if (op_.largest.wanted()) {
                  r_.expand[static_cast<int>(dtype())](
                      activation_row(static_cast<int>(place)) + static_cast<std::size_t>(pair) * kPanel,
                      rounded, kPanel);
                }
                a_format_.convert(to + place * a_format_.pitch(), rounded,
                                  static_cast<std::size_t>(pair) * kPanel, kPanel);
              }
            };
            multiply<2>(r_, weight, x_, unit.operand, unit.operand + unit.rows, 2 * pair, store);
          }
        });
  }

  void down() {
    const Matrix& shape = op_.down.first;
    const int panels = padded(shape.outputs) / kPanel;
    const auto ld = static_cast<std::size_t>(padded(shape.outputs));
    const auto narrow = r_.narrow[static_cast<int>(dtype())];
    const auto expand = r_.expand[static_cast<int>(dtype())];
    device_.pool().for_each(panels, claim(panels, kMostPanelsPerClaim), [&](int begin, int end, int) {
      const TileUse tiles(r_);
      for (int u = 0; u < count_; ++u) {
        const GroupRows unit = units_[u];
        const Matrix weight = op_.down.at(unit.group);
        for (int panel = begin; panel < end; ++panel) {
          const auto add = [&](int from, int rows, const TileSums& sums) {
            for (int i = 0; i < rows; ++i) {
              float* at = op_.residual + static_cast<std::size_t>(row_of_[from + i]) * ld +
                          static_cast<std::size_t>(panel) * kPanel;
              const float w = weight_of_[from + i];
              alignas(64) float part[kPanel];
              std::copy_n(sums(0, i), kPanel, part);
              if (w4a8()) round_to(r_, dtype(), part, kPanel);
              for (int o = 0; o < kPanel; ++o) part[o] *= w;
              if (!w4a8() && shape.activations() != DType::f32 && !op_.parts) {
                alignas(64) std::uint16_t rounded[kPanel];
                narrow(rounded, part, kPanel);
                expand(part, rounded, kPanel);
              }
              for (int o = 0; o < kPanel; ++o) at[o] += part[o];
            }
          };
          multiply<1>(r_, weight, a_, unit.first, unit.first + unit.rows, panel, add);
        }
      }
    });
  }

  Cpu& device_;
  const Moe& op_;
  const Routines& r_;
  const OperandFormat x_format_, a_format_;
  int unit_rows_ = 0, router_rows_ = 0;
  int count_ = 0;     ///< units
  int operands_ = 0;  ///< rows of x_
  float* logits_ = nullptr;
  std::int32_t* chosen_ = nullptr;
  float* weights_ = nullptr;
  std::int32_t* row_of_ = nullptr;  ///< by place
  float* weight_of_ = nullptr;
  std::int32_t* offsets_ = nullptr;
  GroupRows* units_ = nullptr;
  Operands x_{};
  Operands a_{};
  float* activations_ = nullptr;  ///< (places, width) where keeps_activations(): down's inputs as floats
};

}  // namespace

void run(Cpu& device, const Moe& op) {
  TROUPE_CHECK(op.experts >= 1 && op.experts <= kMostExperts && op.shared >= 0);
  TROUPE_CHECK(op.top_k >= 1 && op.top_k <= std::min(op.experts, kMostChosen));
  TROUPE_CHECK(op.router.activations() == DType::f32 && op.gate_up.first.format == op.down.first.format);
  TROUPE_CHECK(op.first >= 0 && op.first + op.in_stacks() <= op.experts);
  TROUPE_CHECK(op.gate_up.count == op.in_stacks() + op.shared && op.down.count == op.gate_up.count);
  TROUPE_CHECK(op.gate_up_inputs == nullptr ||
               (op.shared == 0 && op.down_inputs != nullptr &&
                op.down.first.format.kind == WeightKind::int4 && op.down.first.format.group == 0 &&
                op.down.first.inputs % kHadamardBlock == 0));
  TROUPE_CHECK(!op.largest.wanted() || (op.gate_up_inputs == nullptr && op.largest.down != nullptr &&
                                        op.down.first.inputs % kHadamardBlock == 0));
  if (op.norm.weight != nullptr) run(device, op.norm);
  const auto width = static_cast<std::size_t>(padded(op.router.inputs));
  for (int first = 0; first < op.rows; first += kRowsAtOnce) {
    Moe some = op;
    const auto skipped = static_cast<std::size_t>(first);
    some.rows = std::min(op.rows - first, kRowsAtOnce);
    some.residual += skipped * width;
    some.x = static_cast<const std::byte*>(op.x) + skipped * width * size_of(op.down.first.activations());
    if (op.slots != nullptr) some.slots += skipped;
    if (op.kinds != nullptr) some.kinds += skipped;
    if (op.chosen != nullptr) some.chosen += skipped * static_cast<std::size_t>(op.top_k);
    MoeRun(device, some).run();
  }
  if (op.next_norm.weight != nullptr) run(device, op.next_norm);
}

}  // namespace troupe::kernels
