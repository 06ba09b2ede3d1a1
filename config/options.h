#pragma once
// Every setting of a server, as plain data: one struct per consumer, the default beside the member, the
// unit in the name. A module's constructor takes its own struct by value, never Options.
//
// The flags that fill these are listed once, in config/fields.cpp. Zero or an empty value means "chosen
// at start from the model and the machine" where the comment says so; the supervisor's preflight or the
// worker chooses, and the start summary shows it.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log_options.h"
#include "config/unread.h"

namespace troupe::config {

using troupe::LogLevel;
using troupe::LogOptions;

/// Where the model runs. `echo` is the built-in executor that gives the prompt's tokens back, without
/// any model, for tests and for measuring everything except the model.
enum class Device { automatic, cpu, cuda, echo };

/// Storage and activations; sums are always fp32. `automatic` takes the checkpoint's own type, or
/// what the device computes fastest when that one is not supported there.
enum class DTypeOption { automatic, bfloat16, float16, float32 };

/// Where the weights come from: the checkpoint, or random numbers of the shapes in its config.json.
enum class LoadChoice { checkpoint, dummy };

/// The hubs that a model can be fetched from.
enum class ModelSource { huggingface, modelscope, aistudio };

/// Storage of the LM head, and of keys and values. `automatic`: as without quantisation.
enum class LmHeadDType { automatic, int8, int4 };
enum class KvCacheDType { automatic, int8, fp8 };

/// The HTTP server: addresses, ports, keys, admission.
struct HttpOptions {
  std::string host = "127.0.0.1";   ///< address to listen on; 0.0.0.0 opens it to the network
  int port = 8180;                  ///< 1…65535; also names this instance to `troupe status`
  std::optional<int> metrics_port;  ///< absent or equal to port: /metrics is on the HTTP port
  /// Bearer keys; empty: none is required. They guard every route except the health ones and a separate
  /// metrics port.
  std::vector<std::string> api_keys;
  std::string api_key_file;  ///< more keys, one a line; read again on SIGHUP
  /// Keys that open what client keys do not: the routes that control the server, and all others. Empty, but
  /// api_keys not: those routes are closed.
  std::vector<std::string> admin_api_keys;
  std::string admin_api_key_file;  ///< more of them, as api_key_file
  std::string ssl_certfile;        ///< PEM: the certificate, then its chain; empty: plain HTTP
  std::string ssl_keyfile;         ///< PEM: its private key; empty: the key is in ssl_certfile too
  /// Networks of proxies in front of the server, in CIDR form. X-Forwarded-For is taken from them alone.
  std::vector<std::string> trusted_proxies;
  // What the files held. Not flags: filled by read_credentials(), so that children need not read the files.
  std::vector<std::string> file_api_keys;
  std::vector<std::string> file_admin_api_keys;
  std::string certificate_pem;
  std::string private_key_pem;
  /// Origins of web pages that may read answers (CORS): "https://name:port", or "*" for all; empty: none.
  std::vector<std::string> allowed_origins;
  /// Names under which the server may be asked, without ports, or "*" for all. Empty: its own, which are
  /// checked only without a key on a loopback address.
  std::vector<std::string> allowed_hosts;
  /// Threads that read and write sockets, each with one session host; 0: half the cores, 1…4. More
  /// help only with thousands of streams.
  int io_threads = 0;
  /// Requests open at once, waiting and running; one more gets 429. Bounds memory.
  int max_concurrency = 512;
};

/// Limits on what one client may send. Each is a flag; each refusal names the limit.
struct LimitOptions {
  int max_connections = 4096;  ///< open sockets; one more gets 429
  /// Of one peer address; one more gets 429. 0: 256, but max_connections for this machine's own addresses. A
  /// trusted proxy has no such limit: its clients' requests are counted instead.
  int max_connections_per_address = 0;
  int max_header_bytes = 16 << 10;  ///< all header lines together; 431
  int max_header_count = 100;       ///< header lines; 431
  int max_uri_bytes = 8 << 10;      ///< request target; 414
  int header_timeout_s = 10;        ///< from the first byte to the end of the headers; 408
  int body_timeout_s = 30;          ///< for a body that arrives slower than min_body_rate; 408
  int min_body_rate = 1 << 10;      ///< bytes a second that keep a long upload alive
  int idle_timeout_s = 75;          ///< keep-alive without a request
  int write_timeout_s = 30;         ///< a client that reads nothing for this long is dropped
  int request_timeout_s = 3600;     ///< of a request from its arrival; it may name a shorter time; 504
  int max_stream_buffer_bytes =
      1 << 20;  ///< unread output of one answer; above it a client must read as much in time
  std::int64_t max_unsent_bytes = 512 << 20;  ///< unread output of all answers; above it the largest are cut
  std::int64_t max_buffered_bytes = 256 << 20;  ///< bodies of all requests that are read; 503
  std::int64_t max_answer_bytes =
      64 << 20;  ///< an answer that is not streamed, and what a stream repeats; 400
  std::int64_t max_answer_scores = 1'000'000;  ///< log-probabilities in one answer; 400
  std::int64_t max_body_bytes = 0;      ///< request body; 413. 0: 8 MiB, or 64 MiB for a model that sees
  bool strict_requests = false;         ///< unknown top-level fields of a request get 400
  int max_json_depth = 64;              ///< nesting of a request body
  int max_json_elements = 1'000'000;    ///< values in a request body, all together
  int max_prompts = 256;                ///< prompts in one /v1/completions request
  int max_n = 128;                      ///< choices per prompt
  int max_best_of = 20;                 ///< candidates per prompt
  int max_stop_strings = 16;            ///< stop strings per request
  int max_stop_bytes = 1 << 10;         ///< bytes of one stop string
  int max_logprobs = 20;                ///< top_logprobs and prompt_logprobs; -1: the vocabulary
  int max_completion_logprobs = 20;     ///< logprobs of /v1/completions; -1: the vocabulary
  int max_logit_bias = 1024;            ///< entries of logit_bias
  int max_messages = 4096;              ///< messages of one chat request
  int max_tools = 128;                  ///< tools of one chat request
  int max_schema_depth = 64;            ///< nesting of a JSON schema; 64 at most
  int max_schema_properties = 5000;     ///< properties of a JSON schema, all together
  int max_schema_enum_values = 1000;    ///< enum values of a JSON schema, all together
  int max_schema_name_chars = 120'000;  ///< characters of names and values in a JSON schema
  int max_grammar_bytes = 64 << 10;     ///< a grammar or a regular expression
  int max_grammar_depth = 500;          ///< nesting of a grammar
  int grammar_timeout_ms = 10000;       ///< compilation of one grammar
  std::int64_t grammar_cache_bytes = 512ll << 20;  ///< compiled grammars kept

  /// max_body_bytes, or what stands for 0.
  std::int64_t body_bytes(bool sees = false) const {
    return max_body_bytes > 0 ? max_body_bytes : std::int64_t{sees ? 64 : 8} << 20;
  }
};

/// Files and batches: /v1/files, /v1/batches.
struct BatchOptions {
  std::string dir;                        ///< where they are kept; empty: the routes answer 400
  std::int64_t file_bytes = 200ll << 20;  ///< of one file that a client sends; 413
  std::int64_t dir_bytes = 16ll << 30;    ///< of all files together; 413
  int concurrency = 0;  ///< sequences of batches in the engines at once; 0: as many as run there
};

/// Which model, and how its files are read.
struct ModelOptions {
  /// As the user gave it: a directory, or a name under model_cache. Empty: the built-in demo model.
  /// Requests may name the model so.
  std::string model;
  /// Absolute directory that `model` stands for. Not a flag: filled by resolve_model().
  std::string directory;
  /// Names of the model for clients; answers use the first. Empty: the last part of `directory`.
  std::vector<std::string> served_model_names;
  bool any_model_name = false;  ///< requests may name any model: the one that is served answers
  std::string tokenizer;        ///< directory with the tokenizer's files; empty: `directory`
  std::string model_config_name = "config.json";  ///< file in `directory` that describes the model
  std::string revision = "master";                ///< to download; "master" is Hugging Face's main branch too
  bool download = false;  ///< fetch `model` into model_cache before the start if it is not there
  ModelSource source = ModelSource::aistudio;  ///< where from; FastDeploy's default
  std::string model_cache;  ///< where model names are looked up (FD_MODEL_CACHE); empty: nowhere
  /// Storage and activations. float32 is exact and twice as large and slow as bfloat16.
  DTypeOption dtype = DTypeOption::automatic;
  LoadChoice load_choices = LoadChoice::checkpoint;
  /// Template text or a file with it; empty: the checkpoint's own. A wrong template lowers answer quality.
  std::string chat_template;
  std::int64_t seed = 0;  ///< for requests without a seed, and for dummy weights
};

/// How a chat's answer is taken apart; docs/thinking_and_tools.md.
struct AnswerOptions {
  std::string reasoning_parser;  ///< empty: thoughts stay in the answer
  std::string tool_call_parser;  ///< "none": calls stay text; empty: what the chat template shows
  std::string
      thinking_end_text;  ///< ends thoughts at their limit; contains </think>; empty: the parser's own
  std::vector<int> found_thinking_end;  ///< tokens of the text before that tag, found at start
};

/// When the kernels are checked on the GPU before a start.
enum class CheckGpu {
  automatic,  ///< once for each card, driver and build, unless the card is verified
  always,
  never,
};

/// The instruction set of the CPU's kernels; those of gpu/isa.h.
enum class CpuIsa { automatic, baseline, avx2, avx512, avx512_vnni, avx512_bf16, amx };

/// What the model runs on, and how much memory it may take.
struct DeviceOptions {
  Device device = Device::automatic;
  CpuIsa cpu_isa = CpuIsa::automatic;  ///< automatic: the fastest here
  int cpu_threads =
      0;  ///< of the CPU worker, each pinned to a core; 0: the physical cores, or what a CPU quota allows
  /// KV memory of the CPU device in bytes, of all ranks together; 0: for each a quarter of its free memory,
  /// at most 4 GiB.
  std::int64_t cpu_kv_bytes = 0;
  /// Share of device memory for weights, activations and KV blocks together, 0 < x <= 1. The rest is
  /// left to other programs. Too high a value fails at start, not later.
  double gpu_memory_utilization = 0.9;
  int num_gpu_blocks_override = 0;  ///< KV blocks on the device, instead of measuring; 0: measure
  /// A sequence's tokens are the same to the bit whatever else runs in the step. Slower on CUDA; always so on
  /// the CPU.
  bool batch_invariant = false;
  /// A GPU kernel may start while the one before it ends. The results are the same without it, to the bit.
  bool overlap_kernels = true;
  CheckGpu check_gpu = CheckGpu::automatic;
  std::string avoided_kernels;  ///< names of KernelWays that the check found to be wrong here; found at start
};

inline constexpr int kMostRanks = 32;

inline constexpr int kMostEngines = 32;

/// By what a request's engine is chosen.
enum class RoutingPolicy { cache, round_robin };

/// How one model is spread over several worker processes.
struct ParallelOptions {
  int data_parallel_size = 1;                    ///< engines: each runs the model on ranks of its own
  RoutingPolicy routing = RoutingPolicy::cache;  ///< of requests to engines
  int tensor_parallel_size = 1;                  ///< ranks: workers that run one model as one
  bool enable_expert_parallel = false;           ///< whole experts are spread over the ranks, instead of cut
  int ranks_per_gpu = 1;          ///< without rank_devices: so many ranks, one after the other, share a GPU
  std::vector<int> rank_devices;  ///< the GPU of each rank of all engines; empty: see gpu_of()
  bool disable_custom_all_reduce =
      false;                     ///< GPUs exchange over NCCL, even if they reach each other's memory
  std::int64_t found_bytes = 0;  ///< host memory of each rank, found at start; 0: what is free now

  /// Ranks of all engines.
  int workers() const { return data_parallel_size * tensor_parallel_size; }
  /// Number of the GPU that a rank is on, counted over all engines.
  int gpu_of(int worker) const {
    return rank_devices.empty() ? worker / ranks_per_gpu : rank_devices[static_cast<std::size_t>(worker)];
  }
};

/// Whether an instance computes prompts for others, or has others compute its prompts. `mixed`: neither.
enum class SplitRole { mixed, prefill, decode };

/// As the flag has it.
constexpr const char* to_string(SplitRole role) {
  return role == SplitRole::prefill ? "prefill" : role == SplitRole::decode ? "decode" : "mixed";
}

/// How KV blocks come from a GPU of another instance of this machine. `automatic`: its memory is read, and by
/// NCCL where it cannot be.
enum class KvTransfer { automatic, nccl };

/// Prompts and answers on different instances of this machine (--splitwise-role).
struct SplitOptions {
  SplitRole role = SplitRole::mixed;
  /// With decode: the engine-worker-queue ports of prefill instances, one of each.
  std::vector<int> prefill_ports;
  /// With decode: a prompt with fewer tokens that are not cached is computed here.
  int min_prompt_tokens = 512;
  KvTransfer kv_transfer = KvTransfer::automatic;  ///< with decode
};

/// A front and engines on different machines; docs/cluster.md.
struct RemoteOptions {
  std::vector<std::string> engines;  ///< HOST:PORT of each; empty: this server has engines of its own
  bool own_engine = false;           ///< beside `engines` it has some of its own too
  std::string listen;                ///< HOST:PORT at which an engine without a front of its own takes fronts
  std::string cluster_keys;          ///< directory of this node's keys
  /// HOST:PORT of prefill engines, with SplitRole::decode; they come behind SplitOptions::prefill_ports.
  std::vector<std::string> prefill_engines;
};

/// How weights, keys and values are stored while the model runs; docs/quantization.md. Activations keep
/// --dtype.
struct QuantizationOptions {
  /// A method's name or a JSON object (quantization.h); empty: as the checkpoint has the weights.
  std::string method;
  /// Inputs that share a scale of 4-bit weights: 32, 64 or 128; 0: all inputs in experts, 64 elsewhere.
  int group = 0;
  LmHeadDType lm_head = LmHeadDType::automatic;
  KvCacheDType kv_cache = KvCacheDType::automatic;
};

/// Milliseconds: max_prefill_step_ms of a device when none was asked for. 0: no limit.
constexpr int default_prefill_step_ms(Device device) {
  return device == Device::cuda ? 60 : device == Device::cpu ? 250 : 0;
}

/// How draft tokens are made: not at all, from what prompt and answer repeat, or by the checkpoint's layer
/// for multi-token prediction.
enum class DraftMethod { none, ngram, mtp };

/// Speculation (--speculative-config). It changes no answer.
struct SpeculationOptions {
  DraftMethod method = DraftMethod::none;
  int tokens = 0;  ///< most draft tokens of a row: 1…8 from n-grams, 1…5 by the layer; 0 without a method
  int mtp_steps = 0;         ///< of these, that the layer makes, 1…5; the rest are appended from n-grams
  bool with_ngram = false;   ///< with mtp: n-grams append to the layer's drafts
  std::string draft_model;   ///< with mtp: directory with the layer's tensors; empty: the model's own
  std::string quantization;  ///< of the layer, as --quantization; empty: as the model
  int min_ngram = 2;         ///< shortest n-gram that is looked up, in tokens
  int max_ngram = 5;         ///< longest
  /// Only for measuring (bench decode --draft-acceptance): a GPU accepts draft tokens by the toss of a coin
  /// with this probability, whatever they are. Below 0: it compares.
  double synthetic_acceptance = -1;
  std::string json;  ///< --speculative-config as given, of which the members above are read
};

/// How steps are composed. The first three bound the memory of a step.
struct SchedulerOptions {
  int max_model_len = 0;    ///< prompt and answer in tokens; 0: what the model allows and memory fits
  int found_model_len = 0;  ///< when max_model_len is 0: the value chosen at start

  /// Tokens of prompt and answer together: what was asked for, else what was found, else `most`, the model's
  /// own limit.
  int model_len(int most) const {
    return max_model_len > 0 ? max_model_len : found_model_len > 0 ? found_model_len : most;
  }

  int max_num_seqs = 0;            ///< sequences in one step, 1…1024; 0: up to 512 on cuda, 32 on cpu
  int max_num_batched_tokens = 0;  ///< tokens in one step; 0: 8192 on cuda, 512 on cpu
  int block_size = 64;             ///< tokens of one KV block
  /// Share of a step that prompts may take at least while others decode; 0: a tenth, but 512 tokens. A long
  /// step delays every token of those.
  double min_prefill_share = 0;
  /// Most milliseconds that a step with prompt tokens is predicted to take; 0: default_prefill_step_ms(),
  /// which is set at start.
  int max_prefill_step_ms = 0;
  int max_num_partial_prefills =
      0;  ///< prompts that are computed at the same time; 0: as many as there are slots
  int max_long_partial_prefills = 1;  ///< of these, long ones
  int long_prefill_token_threshold =
      0;  ///< a prompt with more tokens left is long; 0: a share of the model length or of a step
  /// True: all KV blocks are shared, and a sequence that finds none preempts the last one. False: a sequence
  /// is admitted when the blocks of its prompt and of its longest answer can be reserved; none is preempted.
  bool preempts = true;
  double kv_cache_ratio = 0.75;    ///< share of the blocks that prompts may reserve when nothing preempts
  int max_queued_requests = 1024;  ///< sequences that wait for a slot; one more gets 429
  /// Slots that requests of batches leave free, so that others find one at once; -1: an eighth, at least one.
  int batch_reserved_seqs = -1;
  std::int64_t max_queued_tokens = 1 << 20;  ///< waiting prompt tokens in total; one more gets 429
};

/// What is kept of finished and preempted sequences. Caching never changes greedy text.
struct CacheOptions {
  bool enable_prefix_caching = true;  ///< reuse KV blocks of equal prompt beginnings
  bool enable_output_caching = true;  ///< reuse KV blocks of generated tokens too
  double swap_space_gib = 0;  ///< host memory of all ranks for blocks that left the KV memory; 0: none
  std::string swap_path;      ///< with the CPU device: a file instead of memory; empty: memory
};

/// Images and videos in requests, of a model that sees.
struct MediaOptions {
  std::string limit_per_prompt;  ///< a JSON object: most items of each kind in one request
  std::string processor_kwargs;  ///< a JSON object: sizes of images and videos
  bool sandbox = true;           ///< pictures are decoded under a filter of system calls, or not at all
  int processes = 0;             ///< that decode; 0: half the cores, 1…4
  std::int64_t memory_bytes = 1ll << 30;  ///< files, patches and encoder output of requests; more wait
  double processor_cache_gib = -1;        ///< patches kept for later requests; negative: chosen
  int encoder_cache_tokens = -1;          ///< encoder output that a worker keeps; negative: one step's tokens
  std::int64_t max_image_pixels = 33'177'600;  ///< of one picture or frame, before it is decoded
  std::int64_t max_file_bytes = 64ll << 20;    ///< of one image or video
  int timeout_ms = 15'000;                     ///< decoding of one picture
  std::vector<std::string> allowed_domains;    ///< hosts that URLs may name; empty: none
  std::string allowed_path;                    ///< directory of which files may be named; empty: none
};

/// Converting text to token ids.
struct TokenizerOptions {
  int threads = 0;  ///< pool size; 0: half the cores, 1…4
};

/// Answers that are held to a form.
struct GuidedOptions {
  std::string backend = "auto";         ///< auto, xgrammar, off; auto is xgrammar
  bool disable_any_whitespace = false;  ///< JSON with one blank after commas and colons and no other

  bool on() const { return backend != "off"; }
};

/// Processes: ports, files, restarts and timeouts.
struct ProcessOptions {
  std::vector<int>
      engine_worker_queue_ports;       ///< name the step rings: none, the first rank's, or one per rank
  std::vector<int> cache_queue_ports;  ///< name the cache rings, likewise
  /// Unix sockets and lock files (0700); empty: ${XDG_RUNTIME_DIR:-/tmp/troupe-$UID}/troupe, filled in
  /// by parse.
  std::string runtime_dir;
  int max_restarts = 3;  ///< deaths within restart_window_s, of all children; one more ends the server
  int restart_window_s = 60;
  int drain_timeout_s = 30;    ///< how long running requests may go on after SIGTERM
  int engine_timeout_s = 10;   ///< an engine without a heartbeat for this long is killed and restarted
  int worker_timeout_s = 10;   ///< a worker without a sign of progress for this long is killed and restarted
  int start_timeout_s = 1800;  ///< a child that is not ready after this long is killed
};

struct Options {
  HttpOptions http;
  LimitOptions limits;
  ModelOptions model;
  AnswerOptions answers;
  DeviceOptions device;
  ParallelOptions parallel;
  SplitOptions split;
  QuantizationOptions quantization;
  SchedulerOptions scheduler;
  SpeculationOptions speculation;
  CacheOptions cache;
  MediaOptions media;
  TokenizerOptions tokenizer;
  GuidedOptions guided;
  ProcessOptions process;
  LogOptions log;
  UnreadValues unread;       ///< flags that nothing reads; validate() checks them beside the others
  std::string config_file;   ///< --config; command line and environment override it
  bool dry_run = false;      ///< check everything, print what fits, exit
  bool dump_config = false;  ///< print the values in effect as JSON, exit
  bool quiet = false;        ///< only warnings, errors, and deaths of child processes on the terminal
  RemoteOptions remote;
  BatchOptions batch;

  /// An engine without a front: fronts on other machines come to it.
  bool takes_fronts() const { return !remote.listen.empty(); }
  /// HOST:PORT of the engines on other machines, each of which has a relay here.
  const std::vector<std::string>& relayed_engines() const {
    return remote.engines.empty() ? remote.prefill_engines : remote.engines;
  }
  /// Engines that are processes of this server.
  int own_engines() const {
    return remote.engines.empty() || remote.own_engine ? parallel.data_parallel_size : 0;
  }
};

}  // namespace troupe::config
