#pragma once
// Groups of kernels that a GPU can be kept from running, because another group computes the same.
//
// `troupe check-gpu` finds a group that computes wrongly on a card. The choosers (kernels/cuda/*/choose.h)
// leave out what is named here and take the next best way, down to the generic kernel, which has no name here
// because nothing replaces it.
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace troupe {

enum class KernelWay : std::uint8_t {
  product_stream,      ///< LinearWay::stream; without it generic
  product_strips,      ///< LinearWay::strips; without it the ops one by one
  product_slabs,       ///< LinearWay::slabs; the same
  product_wgmma,       ///< LinearWay::wgmma; without it streams
  product_unpacked,    ///< LinearWay::unpacked; without it expanded
  product_expanded,    ///< LinearWay::expanded; without it streams
  attention_decode,    ///< AttentionWay::decode; without it generic
  attention_few,       ///< AttentionWay::few; without it flash and decode
  attention_flash,     ///< AttentionWay::flash; without it decode for each row
  frame_packed,        ///< frame attention by tensor cores; without it a plain kernel
  moe_few,             ///< experts of a few rows; without it streams
  routing_wide_tiles,  ///< RoutingWay::tiles_32 and tiles_32_wide; without it tiles_16
  routing_clusters,    ///< RoutingWay::clusters_16; without it tiles_16
  routing_tiles,       ///< RoutingWay::tiles_16; without it generic
  sample_resident,     ///< a row's logits in the shared memory of a cluster; without it in memory
};
inline constexpr int kKernelWays = 15;

/// "product.stream".
constexpr std::string_view to_string(KernelWay way) {
  constexpr std::string_view kNames[kKernelWays] = {
      "product.stream",   "product.strips",   "product.slabs",    "product.wgmma",   "product.unpacked",
      "product.expanded", "attention.decode", "attention.few",    "attention.flash", "frame.packed",
      "moe.few",          "routing.wide",     "routing.clusters", "routing.tiles",   "sample.resident"};
  return kNames[static_cast<int>(way)];
}

/// The inverse; absent for a word that is no way.
constexpr std::optional<KernelWay> read_kernel_way(std::string_view name) {
  for (int i = 0; i < kKernelWays; ++i) {
    if (to_string(static_cast<KernelWay>(i)) == name) return static_cast<KernelWay>(i);
  }
  return std::nullopt;
}

/// A set of them.
class KernelWays {
 public:
  constexpr KernelWays() = default;
  constexpr KernelWays(std::initializer_list<KernelWay> ways) {
    for (const KernelWay way : ways) add(way);
  }
  constexpr bool contains(KernelWay way) const { return (bits_ >> static_cast<int>(way) & 1) != 0; }
  constexpr void add(KernelWay way) { bits_ |= std::uint32_t{1} << static_cast<int>(way); }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const KernelWays&) const = default;

 private:
  std::uint32_t bits_ = 0;
};

/// Names separated by commas; empty for an empty set.
inline std::string to_string(const KernelWays& ways) {
  std::string text;
  for (int i = 0; i < kKernelWays; ++i) {
    const auto way = static_cast<KernelWay>(i);
    if (ways.contains(way)) text += (text.empty() ? "" : ",") + std::string(to_string(way));
  }
  return text;
}

/// The inverse. invalid_argument names a word that is no way.
inline Result<KernelWays> read_kernel_ways(std::string_view text) {
  KernelWays ways;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::optional<KernelWay> way = read_kernel_way(word);
    if (!way) {
      std::string known;
      for (int k = 0; k < kKernelWays; ++k)
        known += (k == 0 ? "" : ", ") + std::string(to_string(static_cast<KernelWay>(k)));
      return invalid("got \"" + std::string(word.substr(0, 80)) + "\", expected names of " + known);
    }
    ways.add(*way);
  }
  return ways;
}

}  // namespace troupe
