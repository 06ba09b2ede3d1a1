#include "config/fields.h"

#include "config/overloaded.h"

namespace troupe::config {
namespace {

using FieldList = std::vector<Field>;

void add(FieldList& all, std::string_view group, FieldList part) {
  for (Field& field : part) {
    if (field.group.empty()) field.group = group;
    all.push_back(std::move(field));
  }
}

FieldList model_fields(ModelOptions& o) {
  return {
      {.name = "model",
       .slot = &o.model,
       .help = "checkpoint directory, or a name under $FD_MODEL_CACHE; NAME=DIRECTORY, given several times, "
               "serves "
               "several models, each with an engine of its own",
       .when_unset = "the demo model"},
      {.name = "model-directory", .slot = &o.directory, .help = "what --model resolved to", .hidden = true},
      {.name = "served-model-name",
       .slot = &o.served_model_names,
       .help =
           "names of the model for clients, of which answers use the first; requests may also use --model, "
           "its last part or \"default\"",
       .when_unset = "last part of --model"},
      {.name = "any-model-name",
       .slot = &o.any_model_name,
       .help =
           "requests may name any model, for clients that insist on names of their own; answers repeat the "
           "name"},
      {.name = "tokenizer",
       .slot = &o.tokenizer,
       .help = "directory with the tokenizer's files, and the chat template if the model has none",
       .when_unset = "--model"},
      {.name = "dtype",
       .slot = choice(o.dtype, {"auto", "bfloat16", "float16", "float32"}),
       .help = "type of weights and activations; sums are always fp32. auto: the checkpoint's"},
      {.name = "load-choices",
       .slot =
           EnumMember{{"default_v1", "dummy", "default"},
                      [&o] { return static_cast<int>(o.load_choices); },
                      [&o](int i) { o.load_choices = i == 1 ? LoadChoice::dummy : LoadChoice::checkpoint; }},
       .help =
           "default_v1 (also: default) reads the checkpoint; dummy fills random weights from config.json"},
      {.name = "chat-template",
       .slot = &o.chat_template,
       .help = "Jinja template for chats, as text or as a file",
       .when_unset = "the checkpoint's own"},
      {.name = "model-config-name", .slot = &o.model_config_name, .help = "file that describes the model"},
      {.name = "model-cache",
       .slot = &o.model_cache,
       .help = "directory in which names given to --model are looked up",
       .env = "FD_MODEL_CACHE"},
      {.name = "revision",
       .slot = &o.revision,
       .help = "branch, tag or commit that --download fetches; master is also Hugging Face's main"},
      {.name = "download",
       .slot = &o.download,
       .help = "fetch --model ORG/NAME into $FD_MODEL_CACHE before the start if it is not there"},
      {.name = "model-source",
       .slot = choice(o.source, {"huggingface", "modelscope", "aistudio"}),
       .help = "hub that --download fetches from",
       .env = "FD_MODEL_SOURCE"},
      {.name = "seed",
       .slot = &o.seed,
       .help = "seed of requests that name none (0: each draws its own), and of dummy weights"},
  };
}

FieldList chat_fields(AnswerOptions& o) {
  return {
      {.name = "reasoning-parser",
       .slot = &o.reasoning_parser,
       .help = "tells the thoughts in a chat's answer apart from the answer",
       .allowed = {"none", "ernie-45-vl", "ernie-x1", "ernie-45-vl-thinking"}},
      {.name = "tool-call-parser",
       .slot = &o.tool_call_parser,
       .help = "finds tool calls in a chat's answer",
       .allowed = {"none", "ernie-x1", "ernie-45-vl-thinking", "hermes"},
       .when_unset =
           "hermes if the chat template writes <tool_call> and the vocabulary has no such token, else none"},
      {.name = "thinking-end-text",
       .slot = &o.thinking_end_text,
       .help = "what ends thoughts at their limit: a text with </think>, behind which it is cut",
       .env = "FD_LIMIT_THINKING_CONTENT_TRUNCATE_STR",
       .when_unset = "</think>, for ernie-x1 after a newline"},
      {.name = "found-thinking-end",
       .slot = &o.found_thinking_end,
       .help = "token ids of what ends thoughts at their limit, without the tag",
       .hidden = true},
  };
}

FieldList device_fields(DeviceOptions& o) {
  return {
      {.name = "device",
       .slot = choice(o.device, {"auto", "cpu", "cuda", "echo"}),
       .help =
           "where the model runs; auto: cuda where there is a usable GPU, else cpu. echo gives the prompt's "
           "tokens back without a model, for tests"},
      {.name = "cpu-threads",
       .slot = &o.cpu_threads,
       .help = "threads of the CPU worker, each pinned to a core",
       .min = 0,
       .max = 1024,
       .when_unset = "the physical cores, or what a CPU quota allows"},
      {.name = "cpu-kv-bytes",
       .slot = ByteCount{&o.cpu_kv_bytes},
       .help = "KV memory of the CPU device, of all ranks together",
       .unit = "bytes",
       .min = 0,
       .when_unset = "a quarter of what memory or its limit leaves; 1,024 tokens to 4GiB for each rank"},
      {.name = "gpu-memory-utilization",
       .slot = &o.gpu_memory_utilization,
       .help = "share of GPU memory for weights, activations and KV blocks; on the CPU use --cpu-kv-bytes",
       .min = 0.01,
       .max = 1},
      {.name = "num-gpu-blocks-override",
       .slot = &o.num_gpu_blocks_override,
       .help = "number of KV blocks, instead of what memory allows",
       .unit = "blocks",
       .min = 0,
       .max = 1 << 26,
       .when_unset = "measured"},
      {.name = "batch-invariant",
       .slot = &o.batch_invariant,
       .help =
           "a token depends on its own sequence alone, whatever else runs beside it; slower on cuda, the cpu "
           "always does so"},
      {.name = "overlap-kernels",
       .slot = &o.overlap_kernels,
       .help =
           "a cuda kernel may start while the one before it ends; off, to tell whether a fault comes from "
           "that: slower, the same answers"},
      {.name = "check-gpu",
       .slot = choice(o.check_gpu, {"auto", "always", "never"}),
       .help =
           "before the start, compare every kernel with the CPU (troupe check-gpu); auto: on a card that is "
           "not verified, once for each driver and build"},
      {.name = "avoided-kernels",
       .slot = &o.avoided_kernels,
       .help = "kernels that this check has found to be wrong here",
       .hidden = true},
  };
}

FieldList cache_fields(CacheOptions& o) {
  return {
      {.name = "enable-prefix-caching",
       .slot = &o.enable_prefix_caching,
       .help = "reuse the KV blocks of equal prompt prefixes; answers are the same"},
      {.name = "enable-output-caching",
       .slot = &o.enable_output_caching,
       .help = "also reuse the KV blocks of generated tokens, for the next turn of a chat"},
      {.name = "swap-space",
       .slot = &o.swap_space_gib,
       .help =
           "host memory of all ranks for the contents of KV blocks that were evicted or preempted; 0: none",
       .unit = "GiB",
       .min = 0,
       .max = 1 << 20},
      {.name = "swap-path",
       .slot = &o.swap_path,
       .help = "with --device cpu: a file for --swap-space, instead of memory; it is made at start and "
               "removed at the "
               "end. Of several ranks each has its own: .0, .1 and so on are added to the name"},
  };
}

FieldList process_fields(Options& o) {
  ProcessOptions& p = o.process;
  return {
      {.name = "engine-worker-queue-port",
       .slot = &p.engine_worker_queue_ports,
       .help = "names the step rings between engine and workers, one for each rank; of one number the ranks "
               "behind the "
               "first take the next free ones; no TCP port is opened",
       .min = 1,
       .max = 65535,
       .when_unset = "chosen"},
      {.name = "cache-queue-port",
       .slot = &p.cache_queue_ports,
       .help = "names the cache-command rings, likewise",
       .min = 1,
       .max = 65535,
       .when_unset = "chosen"},
      {.name = "runtime-dir",
       .slot = &p.runtime_dir,
       .help = "unix sockets and lock files of running servers",
       .when_unset = "${XDG_RUNTIME_DIR:-/tmp/troupe-$UID}/troupe"},
      {.name = "max-restarts",
       .slot = Rate{&p.max_restarts, &p.restart_window_s},
       .help = "deaths of child processes, all together, within that many seconds; one more ends the server",
       .unit = "count/seconds",
       .min = 0,
       .max = 1 << 20},
      {.name = "drain-timeout",
       .slot = &p.drain_timeout_s,
       .help = "time that running requests have to finish after SIGTERM",
       .unit = "seconds",
       .min = 0,
       .max = 86400},
      {.name = "engine-timeout",
       .slot = &p.engine_timeout_s,
       .help = "an engine of which a part gives no sign of life for this long is restarted",
       .unit = "seconds",
       .min = 1,
       .max = 86400},
      {.name = "worker-timeout",
       .slot = &p.worker_timeout_s,
       .help = "a worker without a sign of progress for this long is restarted; a long step gives signs",
       .unit = "seconds",
       .min = 1,
       .max = 86400,
       .env = "FD_WORKER_ALIVE_TIMEOUT"},
      {.name = "start-timeout",
       .slot = &p.start_timeout_s,
       .help = "a child process that is not ready after this long is killed",
       .unit = "seconds",
       .min = 1,
       .max = 86400},
      {.name = "tokenizer-threads",
       .slot = &o.tokenizer.threads,
       .help = "text processes, which apply chat templates and encode",
       .min = 0,
       .max = 256,
       .when_unset = "half the usable cores, 1 to 4"},
      {.name = "config", .slot = &o.config_file, .help = "YAML or JSON file with any of these options"},
      {.name = "dry-run",
       .slot = &o.dry_run,
       .help = "check all that a start checks, ports and directories too, print what fits, and exit"},
      {.name = "dump-config",
       .slot = &o.dump_config,
       .help = "print the values in effect as JSON, which --config reads, and exit"},
  };
}

FieldList log_fields(Options& options) {
  LogOptions& o = options.log;
  return {
      {.name = "log-dir",
       .slot = &o.dir,
       .help =
           "holds one directory per actor: LOG_DIR/scheduler/scheduler.log; a second server beside the first "
           "writes to LOG_DIR/port-N",
       .env = "FD_LOG_DIR"},
      {.name = "actor-log-dir",
       .slot = &o.actor_dirs,
       .help = "ACTOR=DIRECTORY: the logs of this actor go there, also of scheduler-1 beside scheduler; "
               "repeat it for several"},
      {.name = "log-level",
       .slot = choice(o.level, {"debug", "info", "warning", "error", "off"}),
       .help = "debug adds a line per step",
       .env = "FD_LOG_LEVEL"},
      {.name = "log-rotate-bytes",
       .slot = ByteCount{&o.rotate_bytes},
       .help = "size at which a log file is rotated",
       .unit = "bytes",
       .min = 4096},
      {.name = "log-rotate-files",
       .slot = &o.rotate_files,
       .help = "rotated files kept per actor",
       .min = 0,
       .max = 1000,
       .env = "FD_LOG_BACKUP_COUNT"},
      {.name = "log-requests-level",
       .slot = &o.request_level,
       .help = "what requests leave in the logs, if --log-level is info or debug: 0 their life cycle, 1 also "
               "their stages, "
               "2 also their parameters, 3 also the text of prompts and answers",
       .min = 0,
       .max = 3,
       .env = "FD_LOG_REQUESTS_LEVEL"},
      {.name = "log-max-len",
       .slot = &o.max_value_bytes,
       .help = "longer values are cut",
       .unit = "bytes",
       .min = 16,
       .max = 1 << 20,
       .env = "FD_LOG_MAX_LEN"},
      {.name = "quiet",
       .slot = &options.quiet,
       .help = "print only warnings, errors, and deaths and restarts of processes"},
      {.name = "log-console",
       .slot = &o.console,
       .help = "also write events to standard error; the line with the load at the terminal's bottom is left "
               "out"},
  };
}

FieldList parallel_fields(ParallelOptions& o) {
  return {
      {.name = "data-parallel-size",
       .slot = &o.data_parallel_size,
       .help = "engines: copies of the model, each with ranks of its own, behind one HTTP port; see "
               "docs/parallel.md",
       .min = 1,
       .max = kMostEngines,
       .aliases = {"dp"}},
      {.name = "routing-policy",
       .slot = choice(o.routing, {"cache", "round-robin"}),
       .help = "which of several engines gets a request. cache: one that has much of the prompt in its "
               "prefix cache, unless "
               "it has too much more to do than another; round-robin: the next"},
      {.name = "tensor-parallel-size",
       .slot = &o.tensor_parallel_size,
       .help = "ranks: worker processes that share each layer, on a GPU each; see docs/parallel.md",
       .min = 1,
       .max = kMostRanks,
       .aliases = {"tp"}},
      {.name = "enable-expert-parallel",
       .slot = &o.enable_expert_parallel,
       .help = "spread whole experts over the ranks, instead of cutting each"},
      {.name = "ranks-per-gpu",
       .slot = &o.ranks_per_gpu,
       .help = "so many ranks share a GPU and take turns: slower, to try several where there are fewer GPUs; "
               "above 1 it needs --num-gpu-blocks-override",
       .min = 1,
       .max = 8},
      {.name = "disable-custom-all-reduce",
       .slot = &o.disable_custom_all_reduce,
       .help = "ranks on GPUs exchange over NCCL, even where they reach each other's memory"},
      {.name = "found-bytes",
       .slot = ByteCount{&o.found_bytes},
       .help = "host memory that each rank was found to have",
       .unit = "bytes",
       .hidden = true},
  };
}

std::string unavailable_backend(std::string_view value) {
  return value == "guidance" ? "grammars are compiled by xgrammar; auto, xgrammar and off are available" : "";
}

FieldList guided_fields(GuidedOptions& o) {
  return {
      {.name = "guided-decoding-backend",
       .slot = &o.backend,
       .help = "grammar engine for answers that are held to a form; off: requests for one get 400",
       .allowed = {"auto", "xgrammar", "off"},
       .unlisted = {"guidance"},
       .refusal = unavailable_backend},
      {.name = "guided-decoding-disable-any-whitespace",
       .slot = &o.disable_any_whitespace,
       .help = "JSON answers have one blank after commas and colons and no other white space"},
  };
}

Slot slot_of(UnreadValue& value) {
  return std::visit(
      Overloaded{[](std::monostate&) { return Slot(); }, [](UnsetSwitch& v) { return Slot(&v.value); },
                 [](UnreadBytes& v) { return Slot(ByteCount{&v.value}); },
                 [](JsonObject& v) { return Slot(JsonText{&v.text}); }, [](auto& v) { return Slot(&v); }},
      value);
}

/// Points the fields at their values, which are their defaults unless `values` has them.
FieldList with_slots(FieldList unread, UnreadValues& values) {
  for (Field& field : unread) {
    field.slot = slot_of(values.try_emplace(std::string(field.name), field.unread_default).first->second);
  }
  return unread;
}

}  // namespace

std::vector<Field> fields(Options& options) {
  FieldList all;
  all.reserve(256);
  add(all, "Model", model_fields(options.model));
  add(all, "Chat answers", chat_fields(options.answers));
  add(all, "HTTP", http_fields(options.http));
  add(all, "Device and memory", device_fields(options.device));
  add(all, "Several ranks", parallel_fields(options.parallel));
  add(all, "Prefill and decode apart", split_fields(options.split));
  add(all, "Several machines", remote_fields(options.remote));
  add(all, "Quantisation", quantization_fields(options.quantization));
  add(all, "Scheduling", scheduler_fields(options.scheduler));
  add(all, "Speculation", speculation_fields(options.speculation));
  add(all, "KV cache", cache_fields(options.cache));
  add(all, "Images and videos", media_fields(options.media));
  add(all, "Answers in a form", guided_fields(options.guided));
  add(all, "Processes and ports", process_fields(options));
  add(all, "Logs", log_fields(options));
  add(all, "Limits on requests", limit_fields(options.limits));
  add(all, "Files and batches", batch_fields(options.batch));
  add(all, {}, with_slots(unread_fields(), options.unread));
  add(all, {}, with_slots(cluster_fields(), options.unread));
  return all;
}

}  // namespace troupe::config
