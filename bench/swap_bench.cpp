// The CPU device's swap space: blocks of the demo model copied out and back by the copier's thread, in memory
// and in a file, beside a plain memcpy of as many bytes by one thread. More bytes than the CPU's caches hold;
// memory, and the file's pages, are touched before.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/report.h"
#include "model/swap/swap_copier.h"

namespace troupe {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{30} * 3 * 2 * 64 * 64 * 2;  // SmolLM2-135M in bf16: 1.4 MiB
constexpr std::int32_t kBlocks = 192;
constexpr std::int32_t kOfACommand = 64;
constexpr int kTurns =
    5;  // the best of each: a neighbour on the same cores spoils a turn, not the comparison

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "swap_bench: %s\n", what);
  std::exit(1);
}

double rate(std::int64_t since_ns) {
  return static_cast<double>(kBlocks * kBlockBytes) / static_cast<double>(now_ns() - since_ns);  // GB/s
}

class Bench {
 public:
  Bench(std::vector<std::byte>& kv, Result<std::unique_ptr<model::SwapStore>> store)
      : copier_((require(store.ok(), store.ok() ? "" : store.status().message.c_str()), std::move(*store))) {
    copier_.set_memory({{.data = kv.data(), .tail = kBlockBytes}, 1});
  }

  /// GB/s of all blocks in one direction.
  double turn(wire::CacheOp op) {
    const std::int64_t begin = now_ns();
    int open = 0;
    for (std::int32_t at = 0; at < kBlocks; at += kOfACommand, ++open) {
      std::vector<wire::BlockCopy> copies;
      for (std::int32_t b = at; b < std::min(at + kOfACommand, kBlocks); ++b) copies.push_back({b, b});
      wire::CacheCommand command;
      command.id = ++id_;
      command.op = op;
      copier_.submit(command, copies);
    }
    for (model::EndedCommand ended; open > 0; --open) {
      require(copier_.take_ended(ended, Clock::now() + std::chrono::seconds(60)) && !ended.failed,
              "a copy failed");
    }
    return rate(begin);
  }

 private:
  model::SwapCopier copier_;
  std::uint64_t id_ = 0;
};

void run(bench::Report& report) {
  std::vector<std::byte> kv(kBlocks * kBlockBytes, std::byte{1}), other(kv.size(), std::byte{2});
  Bench memory(kv, model::SwapStore::in_memory(kBlocks, kBlockBytes));
  const auto path = std::filesystem::temp_directory_path() / ("swap_bench." + std::to_string(::getpid()));
  Bench file(kv, model::SwapStore::in_file(path.string(), kBlocks, kBlockBytes));
  memory.turn(wire::CacheOp::swap_out);
  file.turn(wire::CacheOp::swap_out);

  double copy = 0, out = 0, in = 0, file_out = 0, file_in = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::int64_t begin = now_ns();
    for (std::size_t b = 0; b < kBlocks; ++b) {
      std::memcpy(other.data() + b * kBlockBytes, kv.data() + b * kBlockBytes, kBlockBytes);
    }
    asm volatile("" ::"r"(other.data()) : "memory");
    copy = std::max(copy, rate(begin));
    out = std::max(out, memory.turn(wire::CacheOp::swap_out));
    in = std::max(in, memory.turn(wire::CacheOp::swap_in));
    file_out = std::max(file_out, file.turn(wire::CacheOp::swap_out));
    file_in = std::max(file_in, file.turn(wire::CacheOp::swap_in));
  }
  report.row({"swap.memcpy", copy, "GB/s"});
  report.row({"swap.memory.out", out, "GB/s", copy, 0.6 * copy});
  report.row({"swap.memory.in", in, "GB/s", copy, 0.6 * copy});
  report.row({"swap.file.out", file_out, "GB/s", copy});
  report.row({"swap.file.in", file_in, "GB/s", copy});
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  troupe::bench::Report report(argc, argv);
  troupe::run(report);
  return report.all_met() ? 0 : 1;
}
