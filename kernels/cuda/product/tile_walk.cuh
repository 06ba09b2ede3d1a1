#pragma once
// The order in which the blocks of a persistent kernel go through the tiles of a (grouped) matrix product.
//
// Groups come one after the other. Within a group tiles go down a band of kBand row tiles, then to the next
// column of tiles, so that what runs at the same time shares both rows of x and rows of the weight in L2.
#include <cstdint>

namespace troupe::kernels::cuda {

struct ProductTile {
  int group = 0;
  int row = 0;     ///< first; may be at or past `end` in the last block of a cluster
  int end = 0;     ///< of the group's rows
  int column = 0;  ///< first
};

/// Offsets of the groups. They are read past the L1 cache: another kernel wrote them after this block may
/// have started, and what __ldg() finds in L1 may be older. That takes as long as some steps of a product, so
/// warps that others wait for have a copy of the first ones in shared memory.
struct GroupOffsets {
  const std::int32_t* all = nullptr;     ///< null: one group of all rows
  const std::int32_t* copies = nullptr;  ///< the first `copied`, in shared memory
  int copied = 0;

  __device__ int at(int i) const { return i < copied ? copies[i] : __ldcg(all + i); }
};

template <int kTileRows, int kTileColumns>
class TileWalk {
 public:
  /// Visits tiles first, first + step, … of all groups; `rows` are those of the one group where there are no
  /// offsets.
  __device__ TileWalk(const GroupOffsets& offsets, int groups, int rows, int columns, int first, int step)
      : offsets_(offsets),
        groups_(groups),
        column_tiles_((columns + kTileColumns - 1) / kTileColumns),
        step_(step),
        tile_(first - step) {
    enter(0, offsets.all == nullptr ? 0 : offsets.at(0), offsets.all == nullptr ? rows : offsets.at(1));
  }

  /// Moves to the next tile. False if there is none.
  __device__ bool next(ProductTile& tile) {
    tile_ += step_;
    while (tile_ >= tiles_) {
      tile_ -= tiles_;
      if (group_ + 1 >= groups_) return false;
      enter(group_ + 1, end_, offsets_.at(group_ + 2));
    }
    const int band = tile_ / (kBand * column_tiles_);
    const int in_band = tile_ - band * kBand * column_tiles_;
    const int height = min(kBand, row_tiles_ - band * kBand);
    const int column = in_band / height;
    tile.group = group_;
    tile.row = begin_ + (band * kBand + in_band - column * height) * kTileRows;
    tile.end = end_;
    tile.column = column * kTileColumns;
    return true;
  }

 private:
  static constexpr int kBand = 2048 / kTileRows;

  __device__ void enter(int group, int begin, int end) {
    group_ = group;
    begin_ = begin;
    end_ = end;
    row_tiles_ = (end - begin + kTileRows - 1) / kTileRows;
    tiles_ = row_tiles_ * column_tiles_;
  }

  GroupOffsets offsets_;
  int groups_, column_tiles_, step_;
  int tile_;  ///< within the group
  int group_ = 0, begin_ = 0, end_ = 0, row_tiles_ = 0, tiles_ = 0;
};

}  // namespace troupe::kernels::cuda
