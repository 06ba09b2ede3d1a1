#pragma once
// Which rows of a step the last layer has to finish.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "model/step_batch.h"

namespace troupe::model {

/// The rows of a step that sample or are scored: nothing else reads the residual stream behind the last
/// layer, but for a draft layer. In a step with prompts they are few, and in one of a piece amid a prompt
/// there is none.
class ReadRows {
 public:
  /// Finishing some rows alone costs three copies of them, each a kernel on a GPU. It has to save at least so
  /// many rows; where no row is read there is nothing to copy.
  static constexpr int kFewestSaved = 32;

  /// Finds the rows of the batch. `sequences`: the batch's, with the block tables that the device reads.
  /// False: all rows have to run, because that saves too few, because more than `most` rows are read, because
  /// the device derives rows, or because a row that is read is of an image or a video; then rows() and
  /// sequences() mean nothing.
  bool find(const StepBatch& batch, std::span<const kernels::SequenceRows> sequences, std::size_t most);

  /// Rows of the batch, rising.
  std::span<const std::int32_t> rows() const { return rows_; }
  /// rows()[i] alone, as row i.
  std::span<const kernels::SequenceRows> sequences() const { return sequences_; }
  int count() const { return static_cast<int>(rows_.size()); }

 private:
  std::vector<std::int32_t> rows_;
  std::vector<kernels::SequenceRows> sequences_;
};

}  // namespace troupe::model
