#pragma once
// Which way each product of a step runs: pure functions of shapes and of the GPU, so that every choice can be
// made, printed and tested without one. run() does what they say.
#include <array>
#include <string>

#include "kernels/cuda/gpu_traits.h"
#include "kernels/cuda/product/shape.h"
#include "kernels/cuda/product/slab.h"
#include "kernels/cuda/product/stream.h"
#include "kernels/cuda/product/strip.h"
#include "kernels/cuda/product/unpacked.h"
#include "kernels/cuda/product/wgmma.h"

namespace troupe::kernels::cuda {

enum class LinearWay {
  unsupported,  ///< no kernel multiplies these types, or the product needs a halved norm and neither strips
                ///< nor slabs take it
  generic,      ///< any dtype, shape and GPU; slow
  stream,       ///< mma.sync: weights read once for a few rows (decode); large tiles where wgmma is missing
  strips,       ///< bf16 on Hopper: up to eight rows, weights of some megabytes
  slabs,        ///< bf16 on Hopper: 9 to 64 rows, weights of some megabytes
  wgmma,        ///< 16-bit types on Hopper: many rows (prefill)
  unpacked,  ///< int8, int4 and wint2 of experts on Hopper: many rows. Codes become bf16 in registers; wgmma
  expanded,  ///< int8 and int4 on Hopper: many rows. Codes become bf16 in memory, then wgmma
};

/// The way, and its plan; the other plans mean nothing.
struct LinearChoice {
  LinearWay way = LinearWay::unsupported;
  const char* reason = "";
  StripPlan strips{};
  SlabPlan slabs{};
  StreamPlan stream{};
  int wgmma_tile = 0;  ///< index into kWgmmaTiles; of wgmma and expanded
};

/// A product with rows.
LinearChoice choose(const LinearShape& shape, const GpuTraits& gpu);

/// The four products from one attention of a dense layer to the next, and the norms between them.
struct DenseTailShape {
  LinearShape attention_out, gate_up, down;
  LinearShape next;  ///< of the next layer
  bool has_next = false;
  bool plain_norms = true;  ///< norms that neither add to the stream first nor pick rows
};

struct DenseTailChoice {
  /// All products run as strips, or all as slabs, and each norm is made in halves by the product before and
  /// the one after it. Else the ops run one by one, as choose() says for each.
  bool halved_norms = false;
  const char* reason = "";
  int count = 0;  ///< with halved norms, of `products`
  std::array<LinearChoice, 4> products{};
};

DenseTailChoice choose(const DenseTailShape& shape, const GpuTraits& gpu);

/// "strips: 132 blocks of 40 outputs, clusters of 2, copy interval 53 cycles per KiB (…)".
std::string to_string(const LinearChoice& choice);
/// "add 2560 x 2560, 8 rows".
std::string to_string(const LinearShape& shape);
const char* to_string(LinearWay way);
const char* to_string(Ending ending);

}  // namespace troupe::kernels::cuda
