#include "gpu/cpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/usable_cores.h"

namespace troupe {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Cpu::Cpu(const CpuOptions& options) : isa_(options.isa) {
  TROUPE_CHECK(usable(options.isa));
  const std::vector<int> cores = options.cores.empty() ? physical_cores() : options.cores;
  const auto count = static_cast<int>(cores.size()), usable = static_cast<int>(usable_cores());
  const int threads = options.threads > 0 ? options.threads : std::min(count, usable);
  // Under a quota other containers run on the same cores: all would pin their threads to the first ones.
  const bool pin = options.pin && threads <= count && count <= usable;
  pool_ = std::make_unique<ThreadPool>(threads, pin ? cores : std::vector<int>{}, pin);
  lanes_.resize(threads);
}

Cpu::~Cpu() {
  while (!regions_.empty()) free(regions_.back().memory);
}

void* Cpu::alloc(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  if (bytes > SIZE_MAX - 2 * kHugePage) return nullptr;
  const std::size_t mapped = round_up(std::max<std::size_t>(bytes, 1), alignment) + alignment - kPage;
  void* base =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  auto* memory = reinterpret_cast<void*>(round_up(reinterpret_cast<std::uintptr_t>(base), alignment));
  if (alignment == kHugePage) madvise(memory, round_up(bytes, kHugePage), MADV_HUGEPAGE);
  regions_.push_back({memory, base, mapped});
  return memory;
}

void Cpu::free(void* memory) {
  if (memory == nullptr) return;
  const auto at = std::find_if(regions_.begin(), regions_.end(),
                               [&](const Region& region) { return region.memory == memory; });
  TROUPE_CHECK(at != regions_.end());
  munmap(at->base, at->bytes);
  regions_.erase(at);
}

void Cpu::upload(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void Cpu::download(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

std::string Cpu::describe() const {
  return std::string(name) + ": " + to_string(isa_) + ", " + std::to_string(pool_->threads()) +
         (pool_->threads() == 1 ? " thread" : " threads");
}

void* Cpu::grow(Growing& piece, std::size_t bytes) {
  if (bytes > piece.bytes) {
    free(piece.memory);
    piece.bytes = round_up(bytes, kPage);
    piece.memory = alloc(piece.bytes);
    TROUPE_CHECK(piece.memory != nullptr);
  }
  return piece.memory;
}

void* Cpu::scratch(std::size_t bytes) { return grow(scratch_, bytes); }

void Cpu::reserve_lanes(std::size_t bytes) {
  for (Growing& lane : lanes_) grow(lane, bytes);
}

std::size_t Cpu::scratch_bytes() const {
  std::size_t sum = scratch_.bytes;
  for (const Growing& lane : lanes_) sum += lane.bytes;
  return sum;
}

}  // namespace troupe
