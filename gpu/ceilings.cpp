#include "gpu/ceilings.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "gpu/buffer.h"
#include "gpu/ceiling_loops.h"
#include "gpu/cpu_caches.h"

namespace troupe {
namespace {

constexpr std::size_t kPiece = std::size_t{256} << 10;
constexpr int kPiecesTimed = 512;  // 128 MiB: a few milliseconds
constexpr int kPasses = 7;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // a container may have little more

template <class Pass>
double seconds_of(Pass&& pass) {
  const std::int64_t start = now_ns();
  pass();
  return static_cast<double>(now_ns() - start) * 1e-9;
}

}  // namespace

std::size_t bytes_beyond_caches(std::size_t least) {
  return std::max(least, std::min(kMostBytes, 2 * last_level_cache_bytes(processors_in_use())));
}

double read_bandwidth(Cpu& device) {
  const std::size_t bytes = bytes_beyond_caches(std::size_t{512} << 20) / kPiece * kPiece;
  auto buffer = Buffer<Cpu>::make(device, bytes, "the bandwidth measurement");
  if (!buffer) return 0;
  auto* memory = static_cast<std::byte*>(buffer->data());
  const int pieces = static_cast<int>(bytes / kPiece);
  device.pool().for_each(pieces, 8, [&](int begin, int end, int) {
    std::fill(memory + static_cast<std::size_t>(begin) * kPiece,
              memory + static_cast<std::size_t>(end) * kPiece, std::byte{1});
  });
  // Each group of pieces counts by its best pass: other work on the cores seldom disturbs all of them.
  // Between two passes over a group all others are read, which leaves none of it in a cache.
  const ReadLoop read = read_loop(device.isa());
  std::atomic<std::uint64_t> sink{0};
  std::vector<double> best(static_cast<std::size_t>((pieces + kPiecesTimed - 1) / kPiecesTimed), 1e9);
  for (int pass = 0; pass < kPasses; ++pass) {
    for (std::size_t group = 0; group < best.size(); ++group) {
      const int first = static_cast<int>(group) * kPiecesTimed;
      const std::byte* from = memory + static_cast<std::size_t>(first) * kPiece;
      const int count = std::min(kPiecesTimed, pieces - first);
      const double seconds = seconds_of([&] {
        device.pool().for_each(count, 4, [&](int begin, int end, int) {
          sink.fetch_xor(read(from + static_cast<std::size_t>(begin) * kPiece,
                              static_cast<std::size_t>(end - begin) * kPiece));
        });
      });
      best[group] = std::min(best[group], seconds);
    }
  }
  double seconds = 0;
  for (const double group : best) seconds += group;
  return static_cast<double>(bytes) / seconds;
}

namespace {

double peak(Cpu& device, const DotLoop& inner) {
  const int threads = device.pool().threads();
  double best = 1e9;
  for (int pass = 0; pass < kPasses; ++pass) {
    best = std::min(best, seconds_of([&] {
                      device.pool().for_each(8 * threads, 1, [&](int begin, int end, int) {
                        for (int i = begin; i < end; ++i) inner.run();
                      });
                    }));
  }
  return inner.operations * 8 * threads / best;
}

}  // namespace

double dot_peak(Cpu& device) { return peak(device, dot_loop(device.isa())); }
double int8_dot_peak(Cpu& device) { return peak(device, int8_dot_loop(device.isa())); }

}  // namespace troupe
