#pragma once
// What the draft layer needs beside the ops of a dense layer (model/draft_pass.inl). CopyRows also gathers
// rows that finish a layer without the others.
#include <cstddef>
#include <cstdint>

#include "gpu/device.h"
#include "gpu/dtype.h"
#include "kernels/matrix.h"

namespace troupe::kernels {

/// What the draft layer projects: out[r] = norm(embedding of r) | norm(hidden row of r), without padding
/// between the halves. norm() is AddRmsNorm's. The hidden row is hidden[from[r]], or kept[-1 - from[r]] where
/// from[r] is negative. The rows of `residual` are zero afterwards: the projection adds to them.
struct DraftInput {
  void* out = nullptr;                    ///< (rows, padded(2 * cols)) of dtype
  float* residual = nullptr;              ///< (rows, padded(cols)): the embeddings
  const void* hidden = nullptr;           ///< (…, padded(cols)) of dtype
  const void* kept = nullptr;             ///< the same
  const std::int32_t* from = nullptr;     ///< (rows)
  const float* embedding_norm = nullptr;  ///< (padded(cols)), values representable in dtype
  const float* hidden_norm = nullptr;     ///< the same
  DType dtype = DType::bf16;
  int rows = 0;
  int cols = 0;
  float eps = 1e-5f;
};

/// out[r] = cast(rows[pick ? pick[r] : r]).
struct RoundRows {
  void* out = nullptr;                 ///< (count, padded(cols)) of dtype
  const float* rows = nullptr;         ///< (…, padded(cols))
  const std::int32_t* pick = nullptr;  ///< (count), or null for all in order
  DType dtype = DType::bf16;
  int count = 0;
  int cols = 0;
};

/// Row from ? from[i] : i of one array to row to ? to[i] : i of another, for `count` rows; where to[i] is
/// negative nothing is copied, and from[i] may be anything. No two have the same `to` from 0 on. The strides
/// are bytes from one row to the next. Arrays, strides and row_bytes are multiples of 16 bytes.
struct CopyRows {
  void* out = nullptr;
  const void* rows = nullptr;
  const std::int32_t* to = nullptr;    ///< (count), or null for all in order
  const std::int32_t* from = nullptr;  ///< the same
  int count = 0;
  std::size_t out_stride = 0;
  std::size_t row_stride = 0;
  std::size_t row_bytes = 0;
};

void run(Cpu& device, const DraftInput& op);
void run(Cpu& device, const RoundRows& op);
void run(Cpu& device, const CopyRows& op);
void run(Cuda& device, const DraftInput& op);
void run(Cuda& device, const RoundRows& op);
void run(Cuda& device, const CopyRows& op);

}  // namespace troupe::kernels
