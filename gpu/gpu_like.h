#pragma once
// For tests: a GPU that choosers take for another card, so that kernels for cards that are not here run.
#include <optional>
#include <string_view>

#include "base/status.h"
#include "gpu/cards.h"

namespace troupe {

/// The card that `name` means (find_card()), or for a compute capability such as "8.0" one of that capability
/// with 0 multiprocessors: those of the GPU. invalid_argument: neither, or below 8.0.
Result<Card> card_like(std::string_view name);

/// Devices made from now on have no more features, shared memory of a block and multiprocessors than that
/// card, and reach each other's memory only if it reaches_peers; "": than the GPU. At first it is what the
/// build was made for (TROUPE_CUDA_LIKE of cmake). Not while another thread makes a device.
Status set_gpu_like(std::string_view name);
void set_gpu_like(std::optional<Card> card);

/// What set_gpu_like() said last.
std::optional<Card> gpu_like();
/// True if that card does not reach its peers' memory.
bool keeps_gpus_apart();

}  // namespace troupe
