#include "gpu/cards.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

namespace troupe {
namespace {

constexpr Card kCards[] = {
    {.name = "A100-80G",
     .also = "A100, A100-SXM4-80G, A100-80G-PCIe, A100-PCIe-80G",
     .capability = 80,
     .memory_gib = 79.1,
     .memory_tb_per_s = 1.94,
     .multiprocessors = 108,
     .bf16_tflops = 312,
     .block_shared_kib = 163,
     .reaches_peers = true},
    {.name = "A800-80G",
     .also = "A800, A800-SXM4-80G, A800-80G-PCIe, A800-PCIe-80G",
     .capability = 80,
     .memory_gib = 79.1,
     .memory_tb_per_s = 1.94,
     .multiprocessors = 108,
     .bf16_tflops = 312,
     .block_shared_kib = 163,
     .reaches_peers = true},
    {.name = "A30-24G",
     .also = "A30",
     .capability = 80,
     .memory_gib = 23.5,
     .memory_tb_per_s = 0.933,
     .multiprocessors = 56,
     .bf16_tflops = 165,
     .block_shared_kib = 163},
    {.name = "A30-40G",
     .capability = 80,
     .memory_gib = 39.4,
     .memory_tb_per_s = 0.933,
     .multiprocessors = 56,
     .bf16_tflops = 165,
     .block_shared_kib = 163,
     .note = "FastDeploy's pages name an A30 with 40 GB, but only one with 24 GB was sold: see A30-24G."},
    {.name = "A10-24G",
     .also = "A10",
     .capability = 86,
     .memory_gib = 22.0,
     .memory_tb_per_s = 0.6,
     .multiprocessors = 72,
     .bf16_tflops = 125,
     .block_shared_kib = 99},
    {.name = "L20-48G",
     .also = "L20",
     .capability = 89,
     .memory_gib = 44.3,
     .memory_tb_per_s = 0.864,
     .multiprocessors = 92,
     .bf16_tflops = 119.5,
     .fp8_tflops = 239,
     .block_shared_kib = 99},
    {.name = "RTX-4090-24G",
     .also = "RTX-4090, 4090, RTX4090",
     .capability = 89,
     .memory_gib = 23.5,
     .memory_tb_per_s = 1.008,
     .multiprocessors = 128,
     .bf16_tflops = 165,
     .fp8_tflops = 330,
     .block_shared_kib = 99},
    {.name = "H20-96G",
     .also = "H20",
     .capability = 90,
     .memory_gib = 95.0,
     .memory_tb_per_s = 4.0,
     .multiprocessors = 78,
     .bf16_tflops = 148,
     .fp8_tflops = 296,
     .block_shared_kib = 227,
     .reaches_peers = true},
    {.name = "H20-141G",
     .also = "H20-144G, H20-3e",
     .capability = 90,
     .memory_gib = 139.8,
     .memory_tb_per_s = 4.8,
     .multiprocessors = 78,
     .bf16_tflops = 148,
     .fp8_tflops = 296,
     .block_shared_kib = 227,
     .reaches_peers = true},
    {.name = "H800-80G",
     .also = "H800, H800-SXM5-80G",
     .capability = 90,
     .memory_gib = 79.1,
     .memory_tb_per_s = 3.35,
     .multiprocessors = 132,
     .bf16_tflops = 989,
     .fp8_tflops = 1979,
     .block_shared_kib = 227,
     .reaches_peers = true},
    {.name = "H100-80G",
     .also = "H100, H100-80G-HBM3, H100-SXM5-80G",
     .capability = 90,
     .memory_gib = 79.1,
     .memory_tb_per_s = 3.35,
     .multiprocessors = 132,
     .bf16_tflops = 989,
     .fp8_tflops = 1979,
     .block_shared_kib = 227,
     .reaches_peers = true},
    {.name = "H200-141G",
     .also = "H200",
     .capability = 90,
     .memory_gib = 139.8,
     .memory_tb_per_s = 4.8,
     .multiprocessors = 132,
     .bf16_tflops = 989,
     .fp8_tflops = 1979,
     .block_shared_kib = 227,
     .reaches_peers = true},
    // Too old to run anything: known so that they are refused for that reason.
    {.name = "V100-32G",
     .also = "V100, V100-16G, V100-SXM2-32G",
     .capability = 70,
     .memory_gib = 31.7,
     .memory_tb_per_s = 0.9,
     .multiprocessors = 80,
     .block_shared_kib = 96},
    {.name = "T4-16G",
     .also = "T4, Tesla-T4",
     .capability = 75,
     .memory_gib = 14.6,
     .memory_tb_per_s = 0.32,
     .multiprocessors = 40,
     .block_shared_kib = 64},
};

/// Letters and digits in lower case, without the maker's name and the B of "80GB".
std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const std::string_view word : {"nvidia", "geforce"}) {
    if (const std::size_t at = text.find(word); at != std::string::npos) text.erase(at, word.size());
  }
  for (std::size_t at = 1; at + 1 < text.size(); ++at) {
    if (text[at] == 'g' && text[at + 1] == 'b' && std::isdigit(static_cast<unsigned char>(text[at - 1])) != 0)
      text.erase(at + 1, 1);
  }
  return text;
}

bool is_called(const Card& card, std::string_view wanted) {
  if (plain(card.name) == wanted) return true;
  std::string_view rest = card.also;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    if (plain(rest.substr(0, comma)) == wanted) return true;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return false;
}

/// "A100" of "A100-80G": all before the size.
std::string family(const Card& card) { return plain(card.name.substr(0, card.name.rfind('-'))); }

/// True if `rest`, what follows a family in a plain name, says how large the memory is or how the card is
/// built. Anything else makes it another family: "A10G" is no "A10".
bool says_form(std::string_view rest) {
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits > 0) return rest.substr(digits).starts_with('g');
  return rest.empty() || rest.starts_with("sxm") || rest.starts_with("pcie") || rest.starts_with("hbm");
}

}  // namespace

std::span<const Card> cards() { return kCards; }

Result<Card> find_card(std::string_view name) {
  const std::string wanted = plain(name);
  for (const Card& card : kCards) {
    if (!wanted.empty() && is_called(card, wanted)) return card;
  }
  std::string known;
  for (const Card& card : kCards) known += (known.empty() ? "" : ", ") + std::string(card.name);
  return invalid("--card: got \"" + std::string(name.substr(0, 80)) + "\", expected one of " + known, "card");
}

const Card* card_of_driver(std::string_view name, std::uint64_t memory_bytes) {
  const std::string wanted = plain(name);
  const Card* nearest = nullptr;
  const auto distance = [&](const Card& card) {
    return std::abs(static_cast<double>(card.memory_bytes()) - static_cast<double>(memory_bytes));
  };
  for (const Card& card : kCards) {
    const std::string of = family(card);
    const bool of_family = wanted.starts_with(of) && says_form(std::string_view(wanted).substr(of.size()));
    if (!of_family && !is_called(card, wanted)) continue;
    if (nearest == nullptr || distance(card) < distance(*nearest)) nearest = &card;
  }
  // Another card of the family (an A100 with 40 GB) is not this one.
  return nearest != nullptr && distance(*nearest) < 0.1 * static_cast<double>(memory_bytes) ? nearest
                                                                                            : nullptr;
}

}  // namespace troupe
