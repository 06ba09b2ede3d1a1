#pragma once
// The inner loops of the CPU ops, once per instruction set. The headers of this folder define them as
// templates over a vector type; routines_X.cpp instantiates them in a translation unit compiled for X, and
// nothing outside those units contains an instruction beyond the plain architecture.
#include <cstddef>
#include <cstdint>

#include "gpu/dtype.h"
#include "gpu/isa.h"
#include "kernels/kv_format.h"

namespace troupe::kernels {

/// How far ahead of its place a tile asks for memory. One of few rows reads as fast as the memory delivers.
/// On most machines their own prefetchers do that best, and the tile stays close; Intel's need a more distant
/// request. One of many rows asks early enough for the whole latency. kernels/README.md has the measurements.
struct NearBytes {
  std::size_t alone;  ///< a single row
  std::size_t few;
};
constexpr NearBytes near_bytes(bool intel) { return intel ? NearBytes{4096, 4096} : NearBytes{2048, 512}; }
inline constexpr std::size_t kFarBytes = 8192;

/// Inputs of one integer dot product. So many numbers of x share a scale.
inline constexpr int kDotInputs = 32;

/// What kDotInputs codes of x share.
struct OperandGroup {
  float scale = 0;
  /// Weights' codes are stored with an offset that makes them unsigned; this is -offset * the sum of x's
  /// codes.
  std::int32_t correction = 0;
};

/// c[r][0 … 32) (+)= x[r] · panel over `inputs` inputs.
struct TileArgs {
  const void* x = nullptr;  ///< operands: bf16 where Routines::native, else floats; of quantised weights int8
  std::size_t ldx = 0;      ///< elements between rows of x
  const OperandGroup* x_groups =
      nullptr;  ///< of quantised weights: the first row's; rows are ldx bytes apart
  const void* panel = nullptr;
  /// Groups of inputs: bf16 scales, 32 for a group of `group` inputs. Otherwise 32 floats by which the sums
  /// are multiplied at the end; null: not yet.
  const void* scales = nullptr;
  int group = 0;
  /// wint2: 32 code scales and 32 zero points, and the scales of groups from the first input on; `scales` as
  /// without groups.
  const float* lines = nullptr;
  const std::uint8_t* group_scales = nullptr;
  /// bf16: an odd count reads one more input, whose weights or x are 0. Quantised: a multiple of kDotInputs.
  int inputs = 0;
  int rows = 0;  ///< 1 … TileRows::most
  float* c = nullptr;
  std::size_t ldc = 0;
  bool accumulate = false;
  /// Memory that is prefetched while the panel is multiplied; null: the panel itself. One call covers
  /// 1 / ahead_calls of the panel's size, from `ahead` on.
  const void* ahead = nullptr;
  int ahead_calls = 1;
};

/// A row of x, or some of it, as the tiles of quantised weights take it. Each kDotInputs numbers:
///   scale = largest magnitude / 127, code = number / scale rounded to the nearest, ties to even; in fp32.
/// With a number that is not finite the scale is a NaN and the codes are 0.
struct QuantiseArgs {
  std::int8_t* codes = nullptr;
  OperandGroup* groups = nullptr;
  const void* x = nullptr;
  int count = 0;   ///< a multiple of kDotInputs
  int offset = 0;  ///< of the weights' codes
};

/// Lines of wint2, one for each output; see wint2.h.
struct Wint2Lines {
  int out_of_range =
      -1;             ///< an output some of whose code words leave 0 … kWint2LargestWord; -1: there is none
  int differing = 0;  ///< outputs with a byte for which rounding the product changes the code word
};

/// The codes that a line makes of each byte, and half of the sum of their squares.
struct Wint2Book {
  float codes[4][256];
  float half_square[256];
};

/// One norm row; see AddRmsNorm.
struct NormArgs {
  void* out = nullptr;
  float* h = nullptr;
  const float* add = nullptr;
  const float* weight = nullptr;
  int cols = 0;
  float eps = 0;
};

/// The queries of consecutive tokens of one sequence that share a KV head, over some spans of its past.
struct AttendArgs {
  const void* q = nullptr;        ///< first token's first head of the group; stored dtype
  std::size_t ldq = 0;            ///< elements between tokens
  void* out = nullptr;            ///< where its output goes, same shape; unused for a partial
  const std::byte* kv = nullptr;  ///< KvCache::data
  const std::int32_t* blocks = nullptr;
  std::size_t block_bytes = 0;
  std::size_t key_offset = 0;  ///< of this layer and head in a block
  std::size_t value_offset = 0;
  KvFormat format = KvFormat::plain;
  std::size_t scales_offset = 0;  ///< of an 8-bit format: from a piece's codes to its scales
  int position = 0;               ///< of the first token
  int first = 0;                  ///< Attention::first
  int tokens = 0;
  int group = 0;  ///< heads; tokens * group <= kAttendRows
  int head_dim = 0;
  float scale = 0;
  int first_span = 0;
  int spans = 0;
  float* partial = nullptr;  ///< null: write out. Else spans == 1: (tokens * group) rows of
                             ///< partial_floats(head_dim): maximum, sum, weighted values
  void* working = nullptr;   ///< attend_bytes(head_dim)
};

inline constexpr int kAttendRows = 48;
inline constexpr int kSpanTokens = 512;

constexpr int partial_floats(int head_dim) { return (head_dim + 31) / 32 * 32 + 16; }
constexpr std::size_t attend_bytes(int head_dim) {
  return sizeof(float) * (kAttendRows * (3 * std::size_t(partial_floats(head_dim)) + 2 * 64) +
                          32 * std::size_t(head_dim < 64 ? 64 : head_dim));  // a panel of expanded codes
}

/// Largest logit and whether all are finite.
struct Peak {
  float largest = 0;
  bool finite = true;
};

/// How many rows of x the calls of a tile have.
struct TileRows {
  int most;    ///< of one call
  int near;    ///< most for which it stays close: NearBytes
  bool equal;  ///< calls are cheaper if all of a product have as many rows, some of them computed twice
};

struct Routines {
  TileRows tile_rows[kDTypes];
  bool native[kDTypes];  ///< a tile's x is the stored dtype; else it is expanded to floats
  void (*tile[kDTypes])(const TileArgs&);
  TileRows dot_rows;  ///< of quantised weights; `near` is int8's
  void (*tile_int8)(const TileArgs&);
  void (*tile_int4)(const TileArgs&);
  void (*tile_int4_groups)(const TileArgs&);
  void (*tile_wint2)(const TileArgs&);
  void (*tile_wint2_windows)(const TileArgs&);  ///< the panel has been decoded by wint2_windows()
  /// Ends the calling thread's use of tile registers (TileUse); null: the set has none.
  void (*release_tiles)();
  /// Decodes `inputs` inputs of a panel of wint2, a multiple of 4: for each 4 inputs 32 pieces of 4 bytes,
  /// one for an output, with codes + kWint2Offset. `lines` as in TileArgs.
  void (*wint2_windows)(std::uint8_t* to, const std::uint8_t* panel, const float* lines, int inputs);
  Wint2Lines (*wint2_lines)(const float* code_scales, const float* code_zps, int count);
  /// Of each of 16 quads of numbers, quads[j][q] being number j of quad q, the byte whose codes are nearest,
  /// the lowest among equals.
  void (*wint2_nearest)(std::uint8_t* bytes, const float (*quads)[16], const Wint2Book& book);
  void (*quantise[kDTypes])(const QuantiseArgs&);
  /// Of the weights that share a scale: the largest magnitude, a NaN if one is not finite. count % 32 == 0.
  float (*largest_magnitude)(const float* weights, std::size_t count);
  /// codes[i] = code_of(weights[i], scale, largest), see quantize.h; scale > 0, count % 32 == 0.
  void (*codes)(std::int8_t* codes, const float* weights, std::size_t count, float scale, float largest);
  void (*expand[kDTypes])(float* to, const void* from, std::size_t count);  ///< count % 16 == 0
  void (*narrow[kDTypes])(void* to, const float* from, std::size_t count);  ///< count % 16 == 0
  void (*add)(float* to, const float* from, std::size_t count);             ///< count % 16 == 0
  void (*norm[kDTypes])(const NormArgs&);
  /// a[i] = cast(silu(gate[i]) * up[i]); count % 16 == 0.
  void (*swiglu[kDTypes])(void* a, const float* gate, const float* up, std::size_t count);
  /// row[i] = e^(scale * (row[i] - largest)); count % 16 == 0.
  void (*exponentials)(float* row, std::size_t count, float largest, float scale);
  void (*attend[kDTypes])(const AttendArgs&);
  /// Partials of `spans` spans, `stride` floats apart, into one output row.
  void (*merge[kDTypes])(void* out, const float* partials, std::size_t stride, int spans, int head_dim);

  // Over one row of logits; any count.
  Peak (*peak)(const float* logits, int count);
  int (*find)(const float* logits, int count, float value);  ///< first index that equals value
  /// Sets the logits whose bit is 0 to -infinity; words: mask_words(count).
  void (*mask)(float* logits, const std::uint32_t* words, int count);
  double (*sum_exp)(const float* logits, int count, float largest);
  /// weights[i] = the sampling weight of logits[i]: sampling_weight.h, to the bit.
  void (*weigh)(std::uint32_t* weights, const float* logits, int count, float largest, float scale);
  /// How many weights are >= threshold, and their sum.
  void (*tally)(const std::uint32_t* weights, int count, std::uint32_t threshold, std::uint64_t* number,
                std::uint64_t* sum);
  /// The weights in [low, high), in order, to `to`, which has room for `count`; returns how many.
  int (*collect)(std::uint32_t* to, const std::uint32_t* weights, int count, std::uint32_t low,
                 std::uint32_t high);
  /// Index of the next logit > limit at or after `from`; count when there is none.
  int (*next_above)(const float* logits, int count, int from, float limit);
};

/// The routines of a set that the machine has: routines_x86.cpp or routines_generic.cpp.
const Routines& routines(Isa isa);

/// Around a thread's calls of tile[], tile_*() and attend[]: releases the tile registers at its end. It must
/// not outlive the piece of work, since registers in use make every switch to another thread slower.
class TileUse {
 public:
  explicit TileUse(const Routines& r) : release_(r.release_tiles) {}
  ~TileUse() {
    if (release_ != nullptr) release_();
  }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;

 private:
  void (*release_)();
};

/// The set amx: routines_amx.cpp. emulated_amx_routines() is the same on a test program's emulation, where
/// emulates_amx(); elsewhere it may not be called.
const Routines& amx_routines();
const Routines& emulated_amx_routines();

extern const Routines kRoutinesBaseline;
extern const Routines kRoutinesAvx2;
extern const Routines kRoutinesAvx512;
extern const Routines kRoutinesAvx512Vnni;
extern const Routines kRoutinesAvx512Bf16;

}  // namespace troupe::kernels
