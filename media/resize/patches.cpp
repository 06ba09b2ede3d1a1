#include "media/resize/patches.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace troupe::media {
namespace {

/// Rows of the picture behind the horizontal pass, as planes, of which the last few are kept.
class ResizedRows {
 public:
  /// `kept`: rows that of() is asked for at once.
  ResizedRows(const Picture& picture, int columns, int kept, const Passes& passes)
      : picture_(picture),
        columns_(columns),
        passes_(passes),
        capacity_(kept + kRowsAtOnce),
        pitch_((static_cast<std::size_t>(columns) + kPitchUnit - 1) / kPitchUnit * kPitchUnit),
        rows_(static_cast<std::size_t>(capacity_) * bytes()) {
    if (columns == picture.width()) return;
    weights_ = bicubic_weights(picture.width(), columns);
    for (auto& row : resized_) row.resize(pitch_ * kPixelBytes);
  }

  std::size_t bytes() const { return 3 * pitch_; }
  std::size_t pitch() const { return pitch_; }

  /// Planes of row `y`, valid until `kept` further rows are asked for. Rows are asked for in ascending order,
  /// but for those that are still kept.
  const std::uint8_t* of(int y) {
    while (y >= made_) make();
    return slot(y);
  }

 private:
  std::uint8_t* slot(int y) { return rows_.data() + static_cast<std::size_t>(y % capacity_) * bytes(); }

  void make() {
    const int count = std::min(kRowsAtOnce, picture_.height() - made_);
    if (weights_.windows.empty()) {
      for (int i = 0; i < count; ++i)
        passes_.split(picture_.row(made_ + i), columns_, slot(made_ + i), pitch_);
    } else {
      std::array<const std::uint8_t*, kRowsAtOnce> from{};
      std::array<std::uint8_t*, kRowsAtOnce> to{};
      for (int i = 0; i < kRowsAtOnce; ++i) {
        from[static_cast<std::size_t>(i)] = picture_.row(made_ + std::min(i, count - 1));
        to[static_cast<std::size_t>(i)] = resized_[static_cast<std::size_t>(i)].data();
      }
      passes_.horizontal(from.data(), weights_.windows.data(), weights_.weights.data(), weights_.stride,
                         columns_, to.data());
      for (int i = 0; i < count; ++i)
        passes_.split(to[static_cast<std::size_t>(i)], columns_, slot(made_ + i), pitch_);
    }
    made_ += count;
  }

  const Picture& picture_;
  const int columns_;
  const Passes& passes_;
  const int capacity_;
  const std::size_t pitch_;
  std::vector<std::uint8_t> rows_;
  AxisWeights weights_;  // none: the width stays
  std::array<std::vector<std::uint8_t>, kRowsAtOnce> resized_;
  int made_ = 0;  // rows of the picture
};

/// Cuts the kPatchSide rows of row `row` of the grid into patches. Patch by patch, so that each is written at
/// once.
void cut_band(const std::uint8_t* rows, std::size_t row_bytes, std::size_t pitch, int row, int columns,
              std::uint8_t* patches) {
  for (int column = 0; column < columns; ++column) {
    std::uint8_t* to = patches + static_cast<std::size_t>(patch_index(row, column, columns)) * kPatchBytes;
    const std::uint8_t* from = rows + static_cast<std::size_t>(column) * kPatchSide;
    for (int plane = 0; plane < 3; ++plane, from += pitch)
      for (int y = 0; y < kPatchSide; ++y, to += kPatchSide)
        std::memcpy(to, from + static_cast<std::size_t>(y) * row_bytes, kPatchSide);
  }
}

}  // namespace

void resize_to_patches(const Picture& picture, const PatchGrid& grid, std::span<std::uint8_t> patches,
                       const Passes& with) {
  TROUPE_CHECK(grid.frames == 1 && patches.size() == patches_bytes(grid));
  const int height = grid.rows * kPatchSide;
  AxisWeights weights;
  int most = 1;
  if (height != picture.height()) {
    weights = bicubic_weights(picture.height(), height);
    for (const auto& window : weights.windows) most = std::max(most, window.count);
  }
  ResizedRows rows(picture, grid.columns * kPatchSide, most, with);
  std::vector<const std::uint8_t*> window(static_cast<std::size_t>(most));
  std::vector<std::uint8_t> band(rows.bytes() * kPatchSide);
  for (int y = 0; y < height; ++y) {
    std::uint8_t* sum = band.data() + static_cast<std::size_t>(y % kPatchSide) * rows.bytes();
    if (weights.windows.empty()) {
      std::memcpy(sum, rows.of(y), rows.bytes());
    } else {
      const auto [first, count] = weights.windows[static_cast<std::size_t>(y)];
      for (int i = count; i-- > 0;) window[static_cast<std::size_t>(i)] = rows.of(first + i);
      with.vertical(window.data(), weights.of(y), count, rows.bytes(), sum);
    }
    if ((y + 1) % kPatchSide == 0)
      cut_band(band.data(), rows.bytes(), rows.pitch(), y / kPatchSide, grid.columns, patches.data());
  }
}

}  // namespace troupe::media
