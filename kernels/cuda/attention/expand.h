#pragma once
// 8-bit keys and values of the sequences that prefill, as plain pages for the flash kernel.
//
// Each number becomes bf16(code * scale). The copy is made once a layer and read by every tile of queries, so
// it costs little beside the products; decode reads codes as they are. It has room for kExpandedPages.
// Sequences that do not fit are left to a kernel that reads codes.
#include "gpu/cuda.h"
#include "kernels/attention.h"

namespace troupe::kernels::cuda {

/// Of 64 tokens: a sequence of 131,072 tokens fits.
inline constexpr int kExpandedPages = 2048;

struct Expanded {
  KvCache kv{};  ///< plain, one layer
  SequenceRows* fitting =
      nullptr;  ///< (batch.count) those with several tokens that fit; others have tokens 0
  SequenceRows* remaining = nullptr;  ///< (batch.count) those with several tokens that do not fit
  int* remaining_count = nullptr;     ///< 0: `remaining` has only sequences with tokens 0
  BlockId* blocks = nullptr;          ///< 0 … kExpandedPages - 1
  int* first_page = nullptr;          ///< (batch.count + 1) of a sequence in `kv`

  std::size_t bytes = 0;  ///< of all memory
};

/// Lays out the copy for op's layer and batch in `memory`; null: only `bytes` means something.
Expanded lay_out_expanded(const Attention& op, std::byte* memory);
/// Fills it.
void expand(Cuda& device, const Attention& op, const Expanded& into);

}  // namespace troupe::kernels::cuda
