#include "kernels/encode_wint2.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/routines.h"
#include "kernels/weight_format.h"
#include "kernels/wint2.h"

namespace troupe::kernels {
namespace {

// The best of some hundred drawn lines for normally distributed weights, and the scale that suits it where
// they have a deviation of 1: a mean squared error of 0.110 (four even levels at best 0.119).
constexpr float kCodeScale = 119.93337f, kCodeZp = 1220.6462f, kScaleOfDeviation = 0.065f;
constexpr int kLargestScale = 15;
constexpr int kFirstScale = 12;  // of the largest group; leaves room for rising
constexpr int kPasses = 2;
constexpr int kQuads = kWint2Group / kWint2Inputs;

Wint2Book make_book() {
  Wint2Book book;
  for (int byte = 0; byte < 256; ++byte) {
    const auto word = static_cast<int>(wint2_word(static_cast<std::uint8_t>(byte), kCodeScale, kCodeZp));
    float square = 0;
    for (int j = 0; j < kWint2Inputs; ++j) {
      book.codes[j][byte] = static_cast<float>(wint2_code(word, j));
      square += book.codes[j][byte] * book.codes[j][byte];
    }
    book.half_square[byte] = square / 2;
  }
  return book;
}

/// Weights that share a scale, and the bytes found for one.
struct Group {
  float quads[kWint2Inputs][kQuads];
  float square = 0;  ///< of all weights
  int scale = 0;
  std::array<std::uint8_t, kQuads> bytes{};
  float product = 0;  ///< of the weights with their codes
  float codes = 0;    ///< sum of the codes' squares

  /// Squared error with scale * super.
  float error(float super) const {
    const float s = static_cast<float>(scale) * super;
    return square - s * (2 * product - s * codes);
  }
};

class Encoder {
 public:
  Encoder(Isa isa, const float* weights, int inputs)
      : r_(routines(isa)), groups_(std::size_t(inputs / kWint2Group)) {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      for (int i = 0; i < kWint2Group; ++i) {
        const float w = weights[g * kWint2Group + std::size_t(i)];
        groups_[g].quads[i % kWint2Inputs][i / kWint2Inputs] = w;
        groups_[g].square += w * w;
      }
    }
  }

  bool finite() const {
    return std::ranges::all_of(groups_, [](const Group& g) { return std::isfinite(g.square); });
  }

  void encode() {
    float largest = 0;
    for (const Group& g : groups_) largest = std::max(largest, deviation(g));
    super_ = rounded(largest * kScaleOfDeviation / kFirstScale);
    // Weights below the smallest normal number have no scale: they become zeros.
    if (!(super_ >= std::numeric_limits<float>::min())) {
      super_ = 1;
      return;
    }
    for (Group& g : groups_) search_near(g, deviation(g) * kScaleOfDeviation / super_);
    for (int pass = 1; pass < kPasses; ++pass) {
      improve_super();
      for (Group& g : groups_) {
        if (g.square > 0) search_near(g, g.codes > 0 ? g.product / g.codes / super_ : 1);
      }
    }
  }

  float super() const { return super_; }
  const std::vector<Group>& groups() const { return groups_; }

 private:
  static float deviation(const Group& g) { return std::sqrt(g.square / kWint2Group); }
  static float rounded(float number) { return bf16_to_float(float_to_bf16(number)); }

  /// The best bytes of the scales about `wanted`.
  void search_near(Group& g, float wanted) {
    if (!(g.square > 0)) return;
    const int middle = std::clamp(static_cast<int>(std::nearbyint(wanted)), 1, kLargestScale);
    Group best;
    float least = std::numeric_limits<float>::infinity();
    for (int scale = std::max(1, middle - 1); scale <= std::min(kLargestScale, middle + 1); ++scale) {
      search(g, scale);
      if (const float error = g.error(super_); error < least) {
        least = error;
        best = g;
      }
    }
    g = best;
  }

  void search(Group& g, int scale) {
    static const Wint2Book book = make_book();
    alignas(64) float quads[kWint2Inputs][kQuads];
    const float reciprocal = 1 / (static_cast<float>(scale) * super_);
    for (int j = 0; j < kWint2Inputs; ++j) {
      for (int q = 0; q < kQuads; ++q) quads[j][q] = g.quads[j][q] * reciprocal;
    }
    r_.wint2_nearest(g.bytes.data(), quads, book);
    g.scale = scale;
    g.product = g.codes = 0;
    for (int q = 0; q < kQuads; ++q) {
      const std::uint8_t byte = g.bytes[std::size_t(q)];
      for (int j = 0; j < kWint2Inputs; ++j) g.product += g.quads[j][q] * book.codes[j][byte];
      g.codes += 2 * book.half_square[byte];
    }
  }

  /// The least-squares factor of all groups, their bytes and scales as they are.
  void improve_super() {
    double product = 0, codes = 0;
    for (const Group& g : groups_) {
      product += double(g.scale) * double(g.product);
      codes += double(g.scale) * g.scale * double(g.codes);
    }
    const float better = codes > 0 ? rounded(static_cast<float>(product / codes)) : 0;
    if (better >= std::numeric_limits<float>::min()) super_ = better;
  }

  const Routines& r_;
  std::vector<Group> groups_;
  float super_ = 1;
};

}  // namespace

Wint2Error& Wint2Error::operator+=(const Wint2Error& other) {
  squares += other.squares;
  of_weights += other.of_weights;
  finite &= other.finite;
  return *this;
}

Wint2Error encode_wint2(Isa isa, const float* weights, int inputs, const Wint2Columns& to,
                        std::size_t column) {
  TROUPE_CHECK(inputs % kWint2Unit == 0);
  Encoder encoder(isa, weights, inputs);
  if (!encoder.finite()) return {.finite = false};
  encoder.encode();
  Wint2Error error;
  const std::vector<Group>& groups = encoder.groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t q = 0; q < kQuads; ++q)
      to.codes[(g * kQuads + q) * to.stride + column] = groups[g].bytes[q];
    std::uint8_t& both = to.groups[g / 2 * to.stride + column];
    const auto scale = static_cast<unsigned>(groups[g].scale);
    both = static_cast<std::uint8_t>(g % 2 == 0 ? scale << 4 : both | scale);
    error.squares += std::max(0.0, double(groups[g].error(encoder.super())));
    error.of_weights += double(groups[g].square);
  }
  to.super_scales[column] = float_to_bf16(encoder.super());
  to.code_scales[column] = kCodeScale;
  to.code_zps[column] = kCodeZp;
  return error;
}

}  // namespace troupe::kernels
