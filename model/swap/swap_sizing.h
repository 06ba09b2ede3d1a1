#pragma once
// How many blocks the swap space of --swap-space holds.
#include <cstdint>
#include <string>

#include "base/status.h"
#include "config/options.h"
#include "ipc/wire.h"
#include "model/ranks/shard.h"
#include "model/swap/swap_copier.h"

namespace troupe::model {

/// Bytes of --swap-space that one rank has: all have the same blocks, each its part of them.
std::uint64_t swap_bytes(const config::Options& options);

/// Sets capacity.swap_blocks. `left`: bytes of host memory that the rank finds free beside everything else; a
/// swap file needs none of them. invalid_argument, one sentence, when the space does not fit or holds not
/// even one block.
Status size_swap(wire::Capacity& capacity, const config::Options& options, std::uint64_t block_bytes,
                 std::uint64_t left);

/// Likewise for a GPU: page-locked memory beside what the host has free, and no file.
Status size_cuda_swap(wire::Capacity& capacity, const config::Options& options, std::uint64_t block_bytes);

/// Prefill engines on other machines come behind the prefill instances of this one.
RemotePeers remote_peers_of(const config::Options& options);

/// Opens and removes the files of --swap-path, if there are any, to find at start what is wrong with them.
Status check_swap_file(const config::Options& options, const wire::Capacity& capacity,
                       std::uint64_t block_bytes);

/// The file of a worker: --swap-path itself, and with its number where there are several workers.
std::string swap_path_of(const std::string& path, int worker, int workers);

}  // namespace troupe::model
