#include <cstdio>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/pull_model.h"

namespace troupe::cli {
namespace {

std::vector<config::Field> pull_fields(PullOrder& order, std::int64_t& part_bytes) {
  return {
      {.name = "source",
       .slot = config::choice(order.source, {"huggingface", "modelscope", "aistudio"}),
       .help = "hub to fetch from",
       .env = "FD_MODEL_SOURCE"},
      {.name = "revision",
       .slot = &order.revision,
       .help = "branch, tag or commit; master is also Hugging Face's main",
       .when_unset = "master"},
      {.name = "model-cache",
       .slot = &order.cache,
       .help = "directory that holds models: the model becomes MODEL-CACHE/ORG/NAME",
       .env = "FD_MODEL_CACHE"},
      {.name = "to",
       .slot = &order.folder,
       .help = "directory that becomes the model, instead of MODEL-CACHE/ORG/NAME"},
      {.name = "connections",
       .slot = &order.download.connections,
       .help = "parts that are fetched at the same time",
       .min = 1,
       .max = 64},
      {.name = "part-size",
       .slot = config::ByteCount{&part_bytes},
       .help = "of the parts of a large file",
       .unit = "bytes",
       .min = 4096},
      {.name = "all",
       .slot = &order.all,
       .help = "fetch every file; else weights in other formats than safetensors stay where they are"},
      {.name = "dry-run",
       .slot = &order.dry_run,
       .help = "say size, free disk and what troupe fit says of this machine, and fetch nothing"},
  };
}

}  // namespace

int pull_main(int argc, char** argv) {
  const Synopsis synopsis{
      "pull", "fetch a model from a hub", "troupe pull ORG/NAME [OPTION…]",
      "  FD_MODEL_CACHE=/models troupe pull baidu/ERNIE-4.5-0.3B-PT --source huggingface\n"
      "  troupe pull baidu/ERNIE-4.5-21B-A3B-Paddle --source modelscope --to /models/21b\n"
      "  troupe pull baidu/ERNIE-4.5-21B-A3B-PT --source huggingface --to /models/21b --dry-run\n\n"
      "A fetch that was cut off goes on with the same command. Tokens come from the environment only: "
      "HF_TOKEN,\n"
      "MODELSCOPE_API_TOKEN, AISTUDIO_ACCESS_TOKEN. So do mirrors (HF_ENDPOINT, MODELSCOPE_DOMAIN, "
      "AISTUDIO_ENDPOINT)\n"
      "and proxies (https_proxy, no_proxy).\n"};
  PullOrder order;
  order.revision = "master";
  auto part_bytes = static_cast<std::int64_t>(order.download.piece_bytes);
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, pull_fields(order, part_bytes), words))
    return *code;
  if (words.size() != 1)
    return fail(synopsis, invalid("expected one model, for example baidu/ERNIE-4.5-0.3B-PT"));
  order.name = words[0];
  order.download.piece_bytes = static_cast<std::uint64_t>(part_bytes);
  const Result<PullReport> report = pull_model(order, config::process_environment());
  if (!report.ok()) {
    const int code = fail(synopsis, report.status());
    return report.status().code == Code::cancelled ? 128 + stopping_signal() : code;
  }
  std::printf("%s\n", describe(*report).c_str());
  return 0;
}

}  // namespace troupe::cli
