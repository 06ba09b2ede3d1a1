#include "config/validate.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "config/address.h"
#include "config/fields.h"
#include "config/json_flags.h"
#include "config/model_directory.h"
#include "config/quantization.h"

namespace troupe::config {
namespace {

namespace fs = std::filesystem;

Status conflict(std::string message, std::string flag) {
  return invalid("--" + flag + ": " + std::move(message), flag, "conflict");
}

Status check_step(const SchedulerOptions& s) {
  const auto text = [](auto number) { return std::to_string(number); };
  if (s.max_model_len != 0 && s.max_model_len < 16) {
    return conflict("got " + text(s.max_model_len) + ", expected 0 (chosen) or at least 16 tokens",
                    "max-model-len");
  }
  const int budget = s.max_num_batched_tokens;
  if (budget == 0) return {};
  if (budget < s.max_num_seqs) {
    return conflict("got " + text(budget) + ", expected at least --max-num-seqs (" + text(s.max_num_seqs) +
                        "): every running sequence needs a token of each step",
                    "max-num-batched-tokens");
  }
  if (budget < s.block_size) {
    return conflict("got " + text(budget) + ", expected at least --block-size (" + text(s.block_size) + ")",
                    "max-num-batched-tokens");
  }
  const auto most = static_cast<std::int64_t>(s.max_model_len) * s.max_num_seqs;
  if (most != 0 && budget > most) {
    return conflict("got " + text(budget) + ", expected at most --max-model-len times --max-num-seqs (" +
                        text(most) + ")",
                    "max-num-batched-tokens");
  }
  return {};
}

Status check_blocks(const Options& o) {
  const std::int64_t blocks = o.device.num_gpu_blocks_override;
  if (blocks == 0 || blocks * o.scheduler.block_size >= o.scheduler.max_model_len) return {};
  return conflict("got " + std::to_string(blocks) + " blocks of " + std::to_string(o.scheduler.block_size) +
                      " tokens, which hold less than one sequence of --max-model-len (" +
                      std::to_string(o.scheduler.max_model_len) + ")",
                  "num-gpu-blocks-override");
}

Status check_rank_devices(const ParallelOptions& parallel) {
  const std::vector<int>& devices = parallel.rank_devices;
  if (devices.empty()) return {};
  std::string got;
  for (const int device : devices) got += (got.empty() ? "" : ",") + std::to_string(device);
  if (parallel.ranks_per_gpu > 1) {
    return conflict("got " + got + ", which cannot be used with --ranks-per-gpu " +
                        std::to_string(parallel.ranks_per_gpu) + ": that is a short form of it",
                    "rank-devices");
  }
  if (static_cast<int>(devices.size()) == parallel.workers()) return {};
  return conflict("got " + got + ", expected " + std::to_string(parallel.workers()) +
                      (parallel.workers() == 1 ? " device" : " devices separated by commas") +
                      ", one for each rank of --tensor-parallel-size" +
                      (parallel.data_parallel_size > 1 ? " of each engine" : ""),
                  "rank-devices");
}

Status check_engines(const ParallelOptions& parallel) {
  if (parallel.data_parallel_size == 1 || !parallel.enable_expert_parallel) return {};
  return conflict("cannot be used with --data-parallel-size " + std::to_string(parallel.data_parallel_size) +
                      ": experts spread over several engines would make them run the same steps, and each "
                      "engine here runs "
                      "its own",
                  "enable-expert-parallel");
}

Status check_swap(const CacheOptions& cache) {
  if (cache.swap_path.empty() || cache.swap_space_gib > 0) return {};
  return conflict("got " + cache.swap_path + ", which needs --swap-space above 0", "swap-path");
}

Status check_ratio(const SchedulerOptions& s) {
  if (s.preempts || s.kv_cache_ratio < 1) return {};
  return conflict("got 1, expected less with ENABLE_V1_KVCACHE_SCHEDULER=0: answers would have no blocks",
                  "kv-cache-ratio");
}

/// An origin is "*", or scheme and host as browsers write them: without a path.
Status check_origins(const HttpOptions& http) {
  for (const std::string& origin : http.allowed_origins) {
    const std::size_t scheme = origin.starts_with("https://") ? 8 : origin.starts_with("http://") ? 7 : 0;
    const std::string_view host = std::string_view(origin).substr(scheme);
    const bool plain = std::all_of(host.begin(), host.end(),
                                   [](char c) { return c > ' ' && c <= '~' && c != '/' && c != '"'; });
    if (origin == "*" || (scheme > 0 && !host.empty() && plain)) continue;
    return conflict(
        "got " + origin.substr(0, 64) + ", expected * or an origin like https://name:port, without a path",
        "allowed-origins");
  }
  return {};
}

Status check_ports(const Options& o) {
  std::map<int, std::string> used = {{o.http.port, "port"}};
  const auto take = [&](int port, const std::string& flag) -> Status {
    const auto [other, fresh] = used.emplace(port, flag);
    if (fresh) return {};
    return conflict("got " + std::to_string(port) + ", which --" + other->second + " has already", flag);
  };
  if (o.http.metrics_port && *o.http.metrics_port != o.http.port) {
    Status status = take(*o.http.metrics_port, "metrics-port");
    if (!status.ok()) return status;
  }
  const auto take_all = [&](const std::vector<int>& ports, const std::string& flag) -> Status {
    const auto engines = static_cast<std::size_t>(o.parallel.data_parallel_size);
    const auto workers = static_cast<std::size_t>(o.parallel.workers());
    if (ports.size() > 1 && ports.size() != workers && ports.size() != engines) {
      const bool both = engines > 1 && engines != workers;
      return conflict("got " + std::to_string(ports.size()) + " ports, expected " +
                          (workers > 1 ? "1 or " : "") + (both ? std::to_string(engines) + " or " : "") +
                          std::to_string(workers) + ": one for each " +
                          (both          ? "engine of --data-parallel-size, or one for each of their ranks"
                           : engines > 1 ? "engine of --data-parallel-size"
                                         : "rank of --tensor-parallel-size"),
                      flag);
    }
    for (int port : ports) {
      Status status = take(port, flag);
      if (!status.ok()) return status;
    }
    return {};
  };
  Status status = take_all(o.process.engine_worker_queue_ports, "engine-worker-queue-port");
  if (status.ok()) status = take_all(o.process.cache_queue_ports, "cache-queue-port");
  if (status.ok())
    status = take_all(unread_value<std::vector<int>>(o.unread, "pd-comm-port"), "pd-comm-port");
  return status;
}

constexpr std::size_t kMostPrefillPorts = 4;

Status check_prefill_ports(const Options& o) {
  const std::vector<int>& ports = o.split.prefill_ports;
  const auto refused = [](const std::string& what) { return conflict(what, "innode-prefill-ports"); };
  if (!ports.empty() && o.split.role != SplitRole::decode) {
    return refused("got " + std::to_string(ports.front()) +
                   ", which needs --splitwise-role decode, but that is " + to_string(o.split.role));
  }
  if (ports.size() > kMostPrefillPorts) {
    return refused("got " + std::to_string(ports.size()) + " ports, expected at most " +
                   std::to_string(kMostPrefillPorts));
  }
  std::map<int, std::string> own = {{o.http.port, "port"}};
  if (o.http.metrics_port) own.emplace(*o.http.metrics_port, "metrics-port");
  for (const int port : o.process.engine_worker_queue_ports) own.emplace(port, "engine-worker-queue-port");
  for (const int port : o.process.cache_queue_ports) own.emplace(port, "cache-queue-port");
  for (auto port = ports.begin(); port != ports.end(); ++port) {
    if (const auto it = own.find(*port); it != own.end()) {
      return refused("got " + std::to_string(*port) + ", which is this server's own --" + it->second +
                     "; expected the --engine-worker-queue-port of a prefill instance");
    }
    if (std::find(ports.begin(), port, *port) != port)
      return refused("got " + std::to_string(*port) + " twice, expected one port of each prefill instance");
  }
  return {};
}

Status check_split(const Options& o) {
  if (Status status = check_prefill_ports(o); !status.ok() || o.split.role == SplitRole::mixed) return status;
  const std::string role = to_string(o.split.role);
  if (o.parallel.data_parallel_size > 1) {
    return conflict("got " + role + ", which is not available with --data-parallel-size " +
                        std::to_string(o.parallel.data_parallel_size) +
                        " yet; start several prefill instances instead",
                    "splitwise-role");
  }
  if (!o.cache.enable_prefix_caching) {
    return conflict("got " + role +
                        ", which needs --enable-prefix-caching: what the other instance has computed is "
                        "found in its prefix cache",
                    "splitwise-role");
  }
  return {};
}

/// The addresses of engines on other machines.
Status check_addresses(const std::vector<std::string>& engines, std::size_t most, const char* flag) {
  if (engines.size() > most) {
    return conflict(
        "got " + std::to_string(engines.size()) + " engines, expected at most " + std::to_string(most), flag);
  }
  for (auto engine = engines.begin(); engine != engines.end(); ++engine) {
    if (const auto address = read_address(*engine); !address.ok())
      return conflict(address.status().message, flag);
    if (std::find(engines.begin(), engine, *engine) != engine)
      return conflict("got " + *engine + " twice", flag);
  }
  return {};
}

/// Why what is on several machines cannot be had beside the other options.
Status check_beside_remote(const Options& o, const std::string& flag) {
  const auto refused = [&](const std::string& with, const std::string& why) {
    return conflict("cannot be used with " + with + ": " + why, flag);
  };
  if (o.remote.cluster_keys.empty())
    return conflict("needs --cluster-keys: fronts and engines prove to each other who they are", flag);
  if (o.parallel.data_parallel_size > 1 && !o.remote.own_engine)
    return refused("--data-parallel-size " + std::to_string(o.parallel.data_parallel_size),
                   o.takes_fronts() ? "each engine is a `troupe engine --listen` of its own"
                   : o.remote.engines.empty()
                       ? "a decode instance has one engine"
                       : "a front with --engines has engines of its own with --own-engine only");
  return {};
}

Status check_prefill_engines(const Options& o) {
  constexpr const char* kFlag = "prefill-engines";
  const std::vector<std::string>& engines = o.remote.prefill_engines;
  if (o.split.role != SplitRole::decode) {
    return conflict("got " + engines.front() + ", which needs --splitwise-role decode, but that is " +
                        to_string(o.split.role),
                    kFlag);
  }
  if (!o.remote.engines.empty() || !o.remote.listen.empty())
    return conflict("cannot be used with --engines or --listen: a decode instance has a front and an engine",
                    kFlag);
  if (Status status = check_addresses(engines, kMostPrefillPorts, kFlag); !status.ok()) return status;
  return check_beside_remote(o, kFlag);
}

Status check_remote(const Options& o) {
  const RemoteOptions& remote = o.remote;
  if (remote.own_engine && remote.engines.empty())
    return conflict("needs --engines: without it this server has engines of its own", "own-engine");
  if (!o.remote.prefill_engines.empty()) return check_prefill_engines(o);
  if (!remote.listen.empty() && !remote.engines.empty())
    return conflict("cannot be used with --engines: an engine has no engines", "listen");
  if (!remote.listen.empty()) {
    if (o.http.metrics_port)
      return conflict(
          "cannot be used with --metrics-port: an engine answers no HTTP; its fronts have its counts",
          "listen");
    if (o.split.role == SplitRole::decode)
      return conflict(
          "cannot be used with --splitwise-role decode: a decode instance is a `troupe serve` "
          "with --prefill-engines",
          "listen");
    return check_beside_remote(o, "listen");
  }
  if (remote.engines.empty()) {
    if (remote.cluster_keys.empty()) return {};
    return conflict("got " + remote.cluster_keys + ", which needs --engines, --prefill-engines or --listen",
                    "cluster-keys");
  }
  if (Status status = check_addresses(remote.engines, kMostEngines, "engines"); !status.ok()) return status;
  if (o.split.role != SplitRole::mixed) {
    return conflict(std::string("cannot be used with --splitwise-role ") + to_string(o.split.role) +
                        ": a decode instance has an engine of its own and --prefill-engines",
                    "engines");
  }
  const std::size_t engines = remote.engines.size() + static_cast<std::size_t>(o.own_engines());
  if (engines > kMostEngines) {
    return conflict("got " + std::to_string(engines) + " engines" +
                        (remote.own_engine ? " with those of this server" : "") + ", expected at most " +
                        std::to_string(kMostEngines),
                    "engines");
  }
  return check_beside_remote(o, "engines");
}

Status check_guards(const HttpOptions& http) {
  for (const std::string& key : http.api_keys) {
    if (key.find_first_not_of(" \t\r\n") == key.npos)
      return conflict("an empty key, expected a text", "api-key");
  }
  for (const std::string& key : http.admin_api_keys) {
    if (key.find_first_not_of(" \t\r\n") == key.npos)
      return conflict("an empty key, expected a text", "admin-api-key");
  }
  if (http.ssl_certfile.empty() && !http.ssl_keyfile.empty()) {
    return conflict("got " + http.ssl_keyfile + ", which needs --ssl-certfile", "ssl-keyfile");
  }
  return {};
}

Status check_logs(const LogOptions& log) {
  if (log.dir.empty()) return conflict("an empty path, expected a directory", "log-dir");
  for (const auto& [actor, directory] : log.actor_dirs) {
    if (actor.find('/') == std::string::npos && actor != "." && actor != "..") continue;
    return conflict("got the actor name \"" + actor + "\", expected one such as scheduler", "actor-log-dir");
  }
  return {};
}

Status check_runtime_dir(const std::string& directory) {
  constexpr std::size_t kLongest = 80;  // a unix socket's path has 107 bytes, the file name's included
  if (directory.empty()) return {};
  if (!directory.starts_with('/'))
    return conflict("got \"" + directory + "\", expected an absolute path", "runtime-dir");
  if (directory.size() > kLongest) {
    return conflict("a path of " + std::to_string(directory.size()) + " bytes, expected at most " +
                        std::to_string(kLongest) + ": unix sockets are made in it",
                    "runtime-dir");
  }
  return {};
}

Status check_prefills(const Options& o) {
  const SchedulerOptions& s = o.scheduler;
  if (s.max_num_partial_prefills > 0 && s.max_long_partial_prefills > s.max_num_partial_prefills) {
    return conflict("got " + std::to_string(s.max_long_partial_prefills) +
                        ", expected at most --max-num-partial-prefills (" +
                        std::to_string(s.max_num_partial_prefills) + ")",
                    "max-long-partial-prefills");
  }
  if (s.max_num_partial_prefills > 1 && !unread_value<bool>(o.unread, "enable-chunked-prefill")) {
    return conflict("more than 1 needs --enable-chunked-prefill", "max-num-partial-prefills");
  }
  if (s.max_model_len != 0 && s.long_prefill_token_threshold >= s.max_model_len) {
    return conflict("got " + std::to_string(s.long_prefill_token_threshold) +
                        ", expected less than --max-model-len (" + std::to_string(s.max_model_len) + ")",
                    "long-prefill-token-threshold");
  }
  return {};
}

Status check_unread(const Options& o) {
  const auto text = [&](std::string_view name) { return unread_value<std::string>(o.unread, name); };
  const auto json = [&](std::string_view name) { return unread_value<JsonObject>(o.unread, name).text; };
  const auto number = [&](std::string_view name) { return unread_value<int>(o.unread, name); };
  const std::string early_stop = json("early-stop-config");
  if (unread_value<bool>(o.unread, "enable-early-stop") && json_has(early_stop, "enable_early_stop") &&
      !json_flag(early_stop, "enable_early_stop")) {
    return conflict("contradicts --early-stop-config, which says enable_early_stop is false",
                    "enable-early-stop");
  }
  const int copy = number("local-data-parallel-id"), copies = o.parallel.data_parallel_size;
  if (copy >= copies) {
    return conflict("got " + std::to_string(copy) + ", expected less than --data-parallel-size (" +
                        std::to_string(copies) + ")",
                    "local-data-parallel-id");
  }
  if (!text("kvcache-storage-backend").empty() && !o.cache.enable_prefix_caching) {
    return conflict("needs --enable-prefix-caching", "kvcache-storage-backend");
  }
  if (text("load-strategy") == "rsync" && json("rsync-config").empty()) {
    return conflict("rsync needs --rsync-config", "load-strategy");
  }
  return {};
}

}  // namespace

Status validate(const Options& given) {
  Options options = given;
  fields(options);  // enters the defaults of flags that nothing reads
  for (Status status :
       {check_step(options.scheduler), check_rank_devices(options.parallel), check_engines(options.parallel),
        check_blocks(options), check_ratio(options.scheduler), check_swap(options.cache),
        check_ports(options), check_split(options), check_remote(options), check_guards(options.http),
        check_origins(options.http), check_logs(options.log), check_runtime_dir(options.process.runtime_dir),
        check_prefills(options), check_unread(options), check_quantization_options(options.quantization)}) {
    if (!status.ok()) return status;
  }
  return {};
}

Status resolve_model(ModelOptions& model, Device device, const std::string& executable) {
  std::vector<fs::path> places;
  if (!model.model.empty()) {
    places.emplace_back(model.model);
    if (!model.model_cache.empty()) places.push_back(fs::path(model.model_cache) / model.model);
  } else {
    if (device == Device::echo) return {};
    const fs::path home = fs::path(executable).parent_path();
    places = {home / "models" / kDemoModel, home.parent_path() / "share/troupe/models" / kDemoModel};
  }
  std::error_code error;
  for (const fs::path& place : places) {
    if (!fs::is_directory(place, error)) continue;
    if (Status status = check_model_directory(place); !status.ok()) return status;
    if (!model.tokenizer.empty() && fs::is_directory(model.tokenizer, error)) {
      if (Status status = check_model_directory(model.tokenizer); !status.ok()) return status;
    }
    if (!fs::is_regular_file(place / model.model_config_name, error)) {
      return invalid("--model: the directory " + place.string() + " holds no " + model.model_config_name +
                         "; a checkpoint directory has it beside its *.safetensors files",
                     "model");
    }
    const fs::path absolute = fs::canonical(place, error);
    model.directory = (error ? fs::absolute(place) : absolute).string();
    return {};
  }
  if (model.model.empty()) {
    return {Code::not_found,
            "no demo model beside the executable (" + places.front().string() +
                "): tools/quickstart prepares it, or give --model DIRECTORY",
            "model"};
  }
  if (fs::is_regular_file(model.model, error)) {
    return invalid("--model: " + model.model + " is a file, expected the directory that holds " +
                       model.model_config_name,
                   "model");
  }
  std::string message = "--model: there is no directory " + model.model;
  if (model.model.starts_with('/') || model.model.starts_with('.'))
    return {Code::not_found, message, "model"};
  message +=
      model.model_cache.empty() ? ", and FD_MODEL_CACHE is not set" : ", nor " + places.back().string();
  message += ". `troupe pull " + model.model + "` fetches it";
  message += model.model_cache.empty() ? " with --to DIRECTORY; then give --model DIRECTORY"
                                       : ", and so does --download";
  return {Code::not_found, message, "model"};
}

}  // namespace troupe::config
