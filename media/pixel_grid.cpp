#include "media/pixel_grid.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace troupe::media {
namespace {

constexpr std::int64_t kFactor = kPatchSide * kMergeSide;  // pixels of a token's side
constexpr std::int64_t kMaxRatio = 200;

/// The nearest multiple of kFactor, at least one; halves go to the even multiple.
std::int64_t rounded(std::int64_t pixels) {
  const std::int64_t whole = pixels / kFactor, rest = pixels % kFactor;
  const bool up = 2 * rest > kFactor || (2 * rest == kFactor && whole % 2 == 1);
  return std::max<std::int64_t>(kFactor, (whole + (up ? 1 : 0)) * kFactor);
}

std::int64_t multiple(double factors) { return static_cast<std::int64_t>(factors) * kFactor; }

}  // namespace

// The order of the floating-point operations is the reference's: a size on the edge between two multiples
// depends on it.
Result<PatchGrid> grid_of(std::int64_t width, std::int64_t height, const PixelLimits& limits) {
  if (width < 1 || height < 1)
    return invalid("is " + std::to_string(width) + " x " + std::to_string(height) +
                       " pixels; each side must have 1 or more",
                   {}, "invalid_image");
  std::int64_t rows = height, columns = width;
  if (std::max(rows, columns) > kMaxRatio * std::min(rows, columns)) {
    const std::int64_t short_side = rounded(std::min(rows, columns));
    (rows > columns ? columns : rows) = short_side;
    (height > width ? rows : columns) = kMaxRatio * short_side;
  }
  std::int64_t to_rows = rounded(rows), to_columns = rounded(columns);
  const double pixels = static_cast<double>(rows) * static_cast<double>(columns);
  const bool shrinks = to_rows * to_columns > limits.max_pixels;
  if (shrinks) {
    const double beta = std::sqrt(pixels / static_cast<double>(limits.max_pixels));
    to_rows = multiple(std::floor(static_cast<double>(rows) / beta / kFactor));
    to_columns = multiple(std::floor(static_cast<double>(columns) / beta / kFactor));
  } else if (to_rows * to_columns < limits.min_pixels) {
    const double beta = std::sqrt(static_cast<double>(limits.min_pixels) / pixels);
    to_rows = multiple(std::ceil(static_cast<double>(rows) * beta / kFactor));
    to_columns = multiple(std::ceil(static_cast<double>(columns) * beta / kFactor));
  }
  const std::int64_t product = to_rows * to_columns;
  if (product < limits.min_pixels || product > limits.max_pixels || product == 0)
    return invalid("is " + std::to_string(width) + " x " + std::to_string(height) +
                       " pixels, for which there is no size in multiples of " + std::to_string(kFactor) +
                       " with " + std::to_string(limits.min_pixels) + " to " +
                       std::to_string(limits.max_pixels) + " pixels",
                   {}, shrinks ? "image_too_large" : "image_too_small");
  return PatchGrid{1, static_cast<std::int32_t>(to_rows / kPatchSide),
                   static_cast<std::int32_t>(to_columns / kPatchSide)};
}

}  // namespace troupe::media
