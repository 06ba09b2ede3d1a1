// `troupe check-gpu`: every kernel on a GPU beside the CPU. Exit status: 0 every op is right, 1 one is not or
// the GPU cannot be used, 2 wrong arguments.
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/check_gpu.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "config/child_environment.h"
#include "config/parse.h"
#include "kernels/check/kernel_check.h"
#include "model/card_check/start_check.h"

namespace troupe::cli {
namespace {

/// The process that start_gpu_checks() starts: `--worker` and what checks_by() gives it.
int worker(int argc, char** argv, const Synopsis& synopsis) {
  model::CheckOrder order;
  bool is_worker = false;
  std::string avoided;
  const std::vector<config::Field> fields{{.name = "worker", .slot = &is_worker},
                                          {.name = "device", .slot = &order.ordinal, .min = 0},
                                          {.name = "first", .slot = &order.first, .min = 0},
                                          {.name = "avoid", .slot = &avoided}};
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words)) return *code;
  const Result<KernelWays> ways = read_kernel_ways(avoided);
  if (!ways.ok()) return fail(synopsis, invalid("--avoid: " + ways.status().message, "avoid"));
  order.avoided = *ways;
  return model::run_checks(order, kernels::check::kernel_checks(), stdout);
}

void print(const model::CheckedOp& op) {
  std::printf("%-5s %5ld ms  %s, %s: %s%s%s\n", op.right ? "right" : "WRONG", op.milliseconds, op.op.c_str(),
              op.what.c_str(), op.way.c_str(), op.reason.empty() ? "" : "; ", printable(op.reason).c_str());
  std::fflush(stdout);
}

nlohmann::json json_of(const model::CheckedOp& op) {
  return {{"op", op.op},
          {"what", op.what},
          {"way", op.way},
          {"right", op.right},
          {"ms", op.milliseconds},
          {"reason", op.reason},
          {"avoided", to_string(op.avoided)}};
}

/// TROUPE_DEVICE may name what `serve` runs on: the first GPU.
Result<int> number_of(const std::string& device) {
  if (device.empty() || device == "cuda" || device == "auto") return 0;
  int number = -1;
  const char* const end = device.data() + device.size();
  const auto read = std::from_chars(device.data(), end, number);
  if (read.ec == std::errc() && read.ptr == end && number >= 0) return number;
  return invalid(
      "--device: got \"" + device.substr(0, 80) + "\", expected the number of a GPU, 0 for the first",
      "device");
}

}  // namespace

model::StartChecks start_gpu_checks() {
  return model::checks_by(
      "/proc/self/exe", config::child_environment(config::ChildKind::worker, config::process_environment()));
}

int check_gpu_main(int argc, char** argv) {
  const Synopsis synopsis{
      "check-gpu", "compare every kernel on a GPU with the CPU", "troupe check-gpu [--device N] [--json]",
      "  troupe check-gpu\n"
      "  troupe check-gpu --device 1 --json\n\n"
      "Exit status: 0 every op is right, 1 one is not or the GPU cannot be used. The result is kept\n"
      "for later starts of `troupe serve` with this card, driver and build.\n"};
  if (argc > 1 && std::string_view(argv[1]) == "--worker") return worker(argc, argv, synopsis);
  std::string device;
  bool json = false;
  const std::vector<config::Field> fields{
      {.name = "device",
       .slot = &device,
       .help = "number of the GPU, among those that CUDA_VISIBLE_DEVICES leaves",
       .when_unset = "0"},
      {.name = "json", .slot = &json, .help = "one JSON object instead of text"}};
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, fields, words)) return *code;
  if (!words.empty())
    return fail(synopsis, invalid("unexpected \"" + words[0] + "\": there are only options"));
  const Result<int> number = number_of(device);
  if (!number.ok()) return fail(synopsis, number.status());
  const int ordinal = *number;
  const Result<CudaProbe> gpu = probe_cuda(ordinal);
  if (!gpu.ok()) return fail(synopsis, gpu.status());
  const model::CardKey key = model::key_of(*gpu);
  if (!json) std::printf("%s, driver %s\n", gpu->name.c_str(), key.driver.c_str());
  nlohmann::json ops = nlohmann::json::array();
  const auto made = model::check_card(ordinal, start_gpu_checks(), {}, [&](const model::CheckedOp& op) {
    if (json)
      ops.push_back(json_of(op));
    else
      print(op);
  });
  if (!made.ok()) return fail(synopsis, made.status());
  const Status kept = model::keep_check(config::default_cache_dir(config::process_environment()), key, *made);
  if (!kept.ok()) complain(synopsis, kept.message);
  if (json) {
    nlohmann::json all = nlohmann::json::parse(model::to_json(*made, key));
    all["ops"] = std::move(ops);
    std::printf("%s\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::printf("%s\n",
                made->usable ? model::check_line(*made, false).c_str() : model::refusal(*made, key).c_str());
  }
  return made->usable && made->failures.empty() ? 0 : 1;
}

}  // namespace troupe::cli
