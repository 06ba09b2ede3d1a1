#pragma once
// How many blocks the swap space of --swap-space holds.
#include <cstdint>

#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"

namespace troupe::model {

/// Bytes that --swap-space asks for.
std::uint64_t swap_bytes(const config::CacheOptions& options);

/// Sets capacity.swap_blocks. `left`: bytes of host memory that are free beside everything else; a swap file
/// needs none of them. invalid_argument, one sentence, when the space does not fit or holds not even one
/// block.
Status size_swap(wire::Capacity& capacity, const config::Options& options, std::uint64_t block_bytes,
                 std::uint64_t left);

/// Likewise for a GPU: page-locked memory beside what the host has free, and no file.
Status size_cuda_swap(wire::Capacity& capacity, const config::Options& options, std::uint64_t block_bytes);

/// Opens and removes the file of --swap-path, if there is one, to find at start what is wrong with it.
Status check_swap_file(const config::Options& options, const wire::Capacity& capacity,
                       std::uint64_t block_bytes);

}  // namespace troupe::model
