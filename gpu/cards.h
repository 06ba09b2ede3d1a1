#pragma once
// GPUs by the name they are sold under: enough to plan for a machine that is not here.
//
// The figures are those of public data sheets; the memory is what the driver reports, which is less than the
// name says. Where a GPU is at hand, what its driver says counts instead.
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace troupe {

struct Card {
  std::string_view name;       ///< "A100-80G"
  std::string_view also;       ///< other names, separated by commas
  int capability = 0;          ///< 80 for compute capability 8.0
  double memory_gib = 0;       ///< that the driver reports as all of it
  double memory_tb_per_s = 0;  ///< bandwidth
  int multiprocessors = 0;
  double bf16_tflops = 0;      ///< of the tensor cores, without sparsity
  double fp8_tflops = 0;       ///< likewise; 0: none
  int block_shared_kib = 0;    ///< shared memory that one block may have
  bool reaches_peers = false;  ///< usually sold with links by which GPUs use each other's memory
  std::string_view note = {};  ///< one sentence that its users should know

  std::uint64_t memory_bytes() const {
    return static_cast<std::uint64_t>(memory_gib * static_cast<double>(std::uint64_t{1} << 30));
  }
};

/// All of them, those of one family from the smallest memory on.
std::span<const Card> cards();

/// The card of that name. Case, blanks, dashes, "NVIDIA", "GeForce" and the B of "GB" do not matter: "A800",
/// "a800 80GB" and "NVIDIA A800 80GB PCIe" are one. A name without a size is the smallest of its family.
/// invalid_argument names the cards that are known.
Result<Card> find_card(std::string_view name);

/// The card behind a name that a driver gives, by family and then the nearest memory; null if it is unknown.
const Card* card_of_driver(std::string_view name, std::uint64_t memory_bytes);

}  // namespace troupe
