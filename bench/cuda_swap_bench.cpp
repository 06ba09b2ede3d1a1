// The swap space of a GPU through the executor: the rate of blocks copied out and back beside that of the
// bare link, and decode steps of 21B with and without copies in both directions beside them. Dummy weights.
//
//   cuda_swap_bench [--json] [--model NAME] [--batch N] [--context N] [--steps N]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/gpu_bench.h"
#include "bench/report.h"
#include "cli/bench/step_feed.h"
#include "gpu/cuda.h"
#include "gpu/cuda_copy_stream.h"
#include "gpu/pinned.h"
#include "http/client/load_client.h"
#include "model/checkpoint/model_files.h"
#include "model/cuda/executor.h"

namespace troupe::bench {
namespace {

constexpr std::int32_t kOfACommand = 64;
constexpr std::int32_t kBlocks = 1024;  // of one turn
constexpr std::size_t kLinkBytes = std::size_t{1} << 30;
constexpr int kTurns = 4;

struct Arguments {
  std::string model = "ERNIE-4.5-21B-A3B";
  int batch = 64, context = 1024, steps = 256;
};

Arguments parse(int argc, char** argv) {
  Arguments got;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--json") continue;
    const char* value = argv[++i];
    if (flag == "--model") got.model = value;
    if (flag == "--batch") got.batch = std::atoi(value);
    if (flag == "--context") got.context = std::atoi(value);
    if (flag == "--steps") got.steps = std::atoi(value);
  }
  return got;
}

double gb_per_s(std::size_t bytes, std::int64_t since_ns) {
  return static_cast<double>(bytes) / static_cast<double>(now_ns() - since_ns);
}

/// GB/s of one large copy each way: out of the GPU, into it.
std::pair<double, double> link() {
  Cuda device;
  PinnedMemory host(kLinkBytes);
  CudaCopyStream stream(device);
  void* memory = device.alloc(kLinkBytes);
  if (memory == nullptr) throw CudaError("no memory for the link's measurement");
  device.sync();
  double out = 0, in = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::int64_t begin = now_ns();
    stream.copy(host.data(), memory, kLinkBytes);
    stream.sync();
    out = std::max(out, gb_per_s(kLinkBytes, begin));
    begin = now_ns();
    stream.copy(memory, host.data(), kLinkBytes);
    stream.sync();
    in = std::max(in, gb_per_s(kLinkBytes, begin));
  }
  device.free(memory);
  return {out, in};
}

/// Bytes of all blocks in one direction, commands in flight, until the last has ended: GB/s. `scattered`: no
/// two blocks of a command are neighbours, as after hours of serving.
Result<double> swap(Executor& executor, wire::CacheOp op, std::size_t block_bytes, bool scattered,
                    std::uint64_t& id) {
  const std::int64_t begin = now_ns();
  int open = 0;
  for (std::int32_t at = 0; at < kBlocks; at += kOfACommand, ++open) {
    std::vector<wire::BlockCopy> copies;
    for (std::int32_t b = at; b < at + kOfACommand; ++b) {
      const BlockId kv = scattered ? b * 7 % kBlocks : b;  // 7 and kBlocks have no common factor
      copies.push_back(op == wire::CacheOp::swap_out ? wire::BlockCopy{kv, b} : wire::BlockCopy{b, kv});
    }
    wire::RecordWriter<wire::CacheCommand> command;
    command.begin(1);
    const auto span = command.array(copies);
    command.record().id = ++id;
    command.record().op = op;
    command.record().copies = span;
    wire::RecordView view;
    if (!wire::RecordView::open(command.finish(), view)) return failure(Code::internal, "a bad record");
    if (Status s = executor.submit(view); !s.ok()) return s;
  }
  std::vector<std::byte> out;
  while (open > 0) {
    const auto got = executor.poll(out, Clock::now() + std::chrono::seconds(10));
    if (!got.ok()) return got.status();
    if (!*got) return failure(Code::timeout, "copies have not ended after 10 s");
    --open;
  }
  return gb_per_s(static_cast<std::size_t>(kBlocks) * block_bytes, begin);
}

Status run(const Arguments& arguments, Report& report) {
  const auto [link_out, link_in] = link();
  report.row({"link.out", link_out, "GB/s"});
  report.row({"link.in", link_in, "GB/s"});

  config::Options options;
  options.model.directory = std::string(TROUPE_BENCH_MODELS) + "/" + arguments.model;
  options.model.load_choices = config::LoadChoice::dummy;
  options.cache.swap_space_gib = 8;
  auto files = model::open_model(options.model);
  if (!files.ok()) return files.status();
  auto executor = model::make_cuda_executor(*files, options);
  if (!executor.ok()) return executor.status();
  const wire::Capacity capacity = (*executor)->capacity();
  const std::size_t block_bytes = capacity.kv_bytes / static_cast<std::size_t>(capacity.kv_blocks);
  if (capacity.swap_blocks < kBlocks || capacity.kv_blocks < kBlocks) {
    return failure(Code::unavailable, "too few blocks for the measurement");
  }
  std::uint64_t id = 0;
  for (const bool scattered : {false, true}) {
    double out = 0, in = 0;
    for (int turn = 0; turn < kTurns; ++turn) {
      const auto one = swap(**executor, wire::CacheOp::swap_out, block_bytes, scattered, id);
      if (!one.ok()) return one.status();
      const auto back = swap(**executor, wire::CacheOp::swap_in, block_bytes, scattered, id);
      if (!back.ok()) return back.status();
      out = std::max(out, *one);
      in = std::max(in, *back);
    }
    const std::string name = arguments.model + (scattered ? ".swap.scattered" : ".swap");
    report.row({name + ".out", out, "GB/s", link_out, 0.8 * link_out});
    report.row({name + ".in", in, "GB/s", link_in, 0.8 * link_in});
  }

  StepFeed feed(**executor);
  constexpr int kWarmUp = 16;
  const int steps = arguments.steps;
  if (Status s = feed.place(arguments.batch, arguments.context, 2 * kTurns * steps + kWarmUp); !s.ok())
    return s;
  if (auto warm = feed.decode(kWarmUp); !warm.ok()) return warm.status();
  // In turns, because the context grows and the clock drifts: each with copies, then each without.
  std::vector<double> alone, beside;
  double copied = 0, seconds = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const bool swapping : {false, true}) {
      if (Status s = feed.swap_beside(swapping ? kOfACommand : 0); !s.ok()) return s;
      const std::int64_t before = feed.swapped();
      const std::int64_t begin = now_ns();
      const auto times = feed.decode(steps);
      if (!times.ok()) return times.status();
      (swapping ? beside : alone).insert((swapping ? beside : alone).end(), times->begin(), times->end());
      if (!swapping) continue;
      copied += static_cast<double>(feed.swapped() - before) * static_cast<double>(block_bytes);
      seconds += 1e-9 * static_cast<double>(now_ns() - begin);
    }
  }
  if (Status s = feed.swap_beside(0); !s.ok()) return s;
  const std::string at = arguments.model + ".decode.b" + std::to_string(arguments.batch);
  const double plain = 1e3 * http::percentile(alone, 50);
  report.row({at + ".step_p50", plain, "ms", 0, 0, Better::lower});
  report.row({at + ".beside_copies.step_p50", 1e3 * http::percentile(beside, 50), "ms", plain, 1.05 * plain,
              Better::lower});
  report.row({at + ".beside_copies.step_p99", 1e3 * http::percentile(beside, 99), "ms",
              1e3 * http::percentile(alone, 99), 0, Better::lower});
  report.row({at + ".beside_copies.rate", 1e-9 * copied / seconds, "GB/s", link_out + link_in});
  return {};
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  using namespace troupe;
  if (!bench::gpu_is_there("cuda_swap")) return 0;
  bench::Report report(argc, argv);
  Status status;
  try {
    status = bench::run(bench::parse(argc, argv), report);
  } catch (const CudaError& error) {
    status = failure(Code::internal, error.what());
  }
  if (status.ok()) return report.all_met() ? 0 : 1;
  std::fprintf(stderr, "cuda_swap_bench: %s\n", status.message.c_str());
  return 1;
}
