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
       .help = "names for clients; answers use the first. Requests may also use --model, its last part or "
               "\"default\"",
       .when_unset = "last part of --model"},
      {.name = "any-model-name",
       .slot = &o.any_model_name,
       .help = "requests may name any model; answers repeat the name"},
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
       .help = "Jinja template for chats: text or a file",
       .when_unset = "the checkpoint's own"},
      {.name = "model-config-name", .slot = &o.model_config_name, .help = "file that describes the model"},
      {.name = "model-cache",
       .slot = &o.model_cache,
       .help = "directory of models that --model names",
       .env = "FD_MODEL_CACHE"},
      {.name = "revision",
       .slot = &o.revision,
       .help = "branch, tag or commit for --download; master is also Hugging Face's main"},
      {.name = "download",
       .slot = &o.download,
       .help = "fetch --model ORG/NAME into $FD_MODEL_CACHE unless it is there"},
      {.name = "model-source",
       .slot = choice(o.source, {"huggingface", "modelscope", "aistudio"}),
       .help = "hub for --download",
       .env = "FD_MODEL_SOURCE"},
      {.name = "seed",
       .slot = &o.seed,
       .help = "of requests without one (0: each draws its own) and of dummy weights"},
  };
}

FieldList chat_fields(AnswerOptions& o) {
  return {
      {.name = "reasoning-parser",
       .slot = &o.reasoning_parser,
       .help = "tells thoughts apart from a chat's answer",
       .allowed = {"none", "ernie-45-vl", "ernie-x1", "ernie-45-vl-thinking"}},
      {.name = "tool-call-parser",
       .slot = &o.tool_call_parser,
       .help = "finds tool calls in a chat's answer",
       .allowed = {"none", "ernie-x1", "ernie-45-vl-thinking", "hermes"},
       .when_unset =
           "hermes if the chat template writes <tool_call> and the vocabulary has no such token, else none"},
      {.name = "thinking-end-text",
       .slot = &o.thinking_end_text,
       .help = "ends thoughts at their limit; a text with </think>, behind which it is cut",
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
       .help = "where the model runs; auto: cuda with a usable GPU, else cpu; echo, for tests: no model, the "
               "prompt comes back"},
      {.name = "cpu-isa",
       .slot = choice(o.cpu_isa, {"auto", "baseline", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"}),
       .help = "instruction set of the CPU's kernels; auto: the fastest here"},
      {.name = "cpu-threads",
       .slot = &o.cpu_threads,
       .help = "threads of the CPU worker, each pinned to a core",
       .min = 0,
       .max = 1024,
       .when_unset = "the physical cores, or what a CPU quota allows"},
      {.name = "cpu-kv-bytes",
       .slot = ByteCount{&o.cpu_kv_bytes},
       .help = "KV memory on the CPU, of all ranks together",
       .unit = "bytes",
       .min = 0,
       .when_unset = "a quarter of what memory or its limit leaves; 1,024 tokens to 4GiB for each rank"},
      {.name = "gpu-memory-utilization",
       .slot = &o.gpu_memory_utilization,
       .help = "share of GPU memory that is used; on the CPU use --cpu-kv-bytes",
       .min = 0.01,
       .max = 1},
      {.name = "num-gpu-blocks-override",
       .slot = &o.num_gpu_blocks_override,
       .help = "KV blocks, instead of what memory allows",
       .unit = "blocks",
       .min = 0,
       .max = 1 << 26,
       .when_unset = "measured"},
      {.name = "batch-invariant",
       .slot = &o.batch_invariant,
       .help = "tokens do not depend on what runs beside them; slower on cuda, always so on cpu"},
      {.name = "overlap-kernels",
       .slot = &o.overlap_kernels,
       .help = "a cuda kernel may start while the one before it ends; off is slower, to find faults"},
      {.name = "check-gpu",
       .slot = choice(o.check_gpu, {"auto", "always", "never"}),
       .help = "compare every kernel with the CPU first (troupe check-gpu); auto: on cards that are not "
               "verified, once a driver and build"},
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
       .help = "reuse KV blocks of equal prompt prefixes; answers are the same"},
      {.name = "enable-output-caching",
       .slot = &o.enable_output_caching,
       .help = "also those of generated tokens, for a chat's next turn"},
      {.name = "swap-space",
       .slot = &o.swap_space_gib,
       .help = "host memory of all ranks for evicted and preempted KV blocks; 0: none",
       .unit = "GiB",
       .min = 0,
       .max = 1 << 20},
      {.name = "swap-path",
       .slot = &o.swap_path,
       .help = "with --device cpu: file for --swap-space instead of memory, removed at the end; several "
               "ranks add .0, .1, …"},
  };
}

FieldList process_fields(Options& o) {
  ProcessOptions& p = o.process;
  return {
      {.name = "engine-worker-queue-port",
       .slot = &p.engine_worker_queue_ports,
       .help = "names the step rings of engine and workers, a number for each rank, or the first one's; no "
               "TCP port is opened",
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
       .help = "deaths of all child processes within so many seconds; one more ends the server",
       .unit = "count/seconds",
       .min = 0,
       .max = 1 << 20},
      {.name = "drain-timeout",
       .slot = &p.drain_timeout_s,
       .help = "for running requests after SIGTERM",
       .unit = "seconds",
       .min = 0,
       .max = 86400},
      {.name = "engine-timeout",
       .slot = &p.engine_timeout_s,
       .help = "an engine without a sign of life for this long is restarted",
       .unit = "seconds",
       .min = 1,
       .max = 86400},
      {.name = "worker-timeout",
       .slot = &p.worker_timeout_s,
       .help = "a worker without a sign of progress for this long is restarted",
       .unit = "seconds",
       .min = 1,
       .max = 86400,
       .env = "FD_WORKER_ALIVE_TIMEOUT"},
      {.name = "start-timeout",
       .slot = &p.start_timeout_s,
       .help = "a child process not ready by then is killed",
       .unit = "seconds",
       .min = 1,
       .max = 86400},
      {.name = "tokenizer-threads",
       .slot = &o.tokenizer.threads,
       .help = "processes that apply chat templates and encode",
       .min = 0,
       .max = 256,
       .when_unset = "half the usable cores, 1 to 4"},
      {.name = "config", .slot = &o.config_file, .help = "YAML or JSON file with any of these options"},
      {.name = "dry-run", .slot = &o.dry_run, .help = "check what a start checks, print what fits, and exit"},
      {.name = "dump-config",
       .slot = &o.dump_config,
       .help = "print the values in effect as JSON for --config, and exit"},
  };
}

FieldList log_fields(Options& options) {
  LogOptions& o = options.log;
  return {
      {.name = "log-dir",
       .slot = &o.dir,
       .help =
           "a directory per actor: LOG_DIR/scheduler/scheduler.log; a second server writes to LOG_DIR/port-N",
       .env = "FD_LOG_DIR"},
      {.name = "actor-log-dir",
       .slot = &o.actor_dirs,
       .help = "ACTOR=DIRECTORY of an actor's logs, also of scheduler-1 beside scheduler; repeatable"},
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
       .help = "what requests log at level info or debug: 0 life cycle, 1 also stages, 2 also parameters, 3 "
               "also the text of prompts and answers",
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
      {.name = "quiet", .slot = &options.quiet, .help = "print only warnings, errors, deaths and restarts"},
      {.name = "log-console",
       .slot = &o.console,
       .help = "also write events to standard error, without the terminal's line with the load"},
  };
}

FieldList parallel_fields(ParallelOptions& o) {
  return {
      {.name = "data-parallel-size",
       .slot = &o.data_parallel_size,
       .help = "engines: copies of the model behind one HTTP port; see docs/parallel.md",
       .min = 1,
       .max = kMostEngines,
       .aliases = {"dp"}},
      {.name = "routing-policy",
       .slot = choice(o.routing, {"cache", "round-robin"}),
       .help = "which engine gets a request. cache: one whose prefix cache has much of the prompt, unless it "
               "has too much to do; round-robin: the next"},
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
               "2 is "
               "short for --rank-devices 0,0,1,1,…",
       .min = 1,
       .max = 8},
      {.name = "rank-devices",
       .slot = &o.rank_devices,
       .help =
           "experimental: the GPU of each rank, as CUDA_VISIBLE_DEVICES counts them, such as 0,0,1,1; ranks "
           "of one GPU have equal shares of its memory and take turns, which is for tests",
       .min = 0,
       .max = 63,
       .when_unset = "one for each rank"},
      {.name = "disable-custom-all-reduce",
       .slot = &o.disable_custom_all_reduce,
       .help = "GPUs exchange over NCCL even where they reach each other's memory"},
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
       .help = "grammar engine for answers in a form; off: 400",
       .allowed = {"auto", "xgrammar", "off"},
       .unlisted = {"guidance"},
       .refusal = unavailable_backend},
      {.name = "guided-decoding-disable-any-whitespace",
       .slot = &o.disable_any_whitespace,
       .help = "JSON answers have no white space but a blank after commas and colons"},
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
