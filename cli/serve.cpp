#include "cli/serve.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <new>
#include <utility>

#include "actors/remote/cluster_keys.h"
#include "actors/supervisor/say.h"
#include "actors/supervisor/supervisor.h"
#include "base/exhaustion.h"
#include "base/log.h"
#include "base/log_directory.h"
#include "base/trial.h"
#include "base/usable_cores.h"
#include "cli/check_gpu.h"
#include "cli/pull_model.h"
#include "cli/terminal.h"
#include "config/address.h"
#include "config/credentials.h"
#include "config/dump.h"
#include "config/named_models.h"
#include "config/parse.h"
#include "config/validate.h"
#include "http/batch/batch_store.h"
#include "http/server/tls_server.h"
#include "ipc/memory_file.h"
#include "ipc/patch_region.h"
#include "model/card_check/start_check.h"
#include "model/checkpoint/spec.h"
#include "model/preflight.h"
#include "model/ranks/rank_memory.h"
#include "model/swap/swap_file.h"
#include "model/swap/swap_sizing.h"
#include "text/parsers/choose_syntax.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/vocabulary_image.h"

namespace troupe {
namespace {

/// The region for patches is so many times as long as what may be in use there, so that a free piece is long
/// enough for an image: pages without an item take no memory.
constexpr std::uint64_t kPatchSpace = 2;

/// One at a time decodes; what another's frames are is asked meanwhile.
constexpr int kVideoProcesses = 2;

/// As messages name this command: set once, at the start.
const char* subcommand = "serve";

int refuse(const Status& status) {
  const std::string text = "troupe " + std::string(subcommand) + ": " + status.message;
  std::fprintf(stderr, "%s\n", cli::wrapped_for(STDERR_FILENO, text).c_str());
  return config::exit_code(status);
}

void warn(const std::string& warning) {
  const std::string text = "troupe " + std::string(subcommand) + ": warning: " + warning;
  supervisor::say(STDERR_FILENO, cli::wrapped_for(STDERR_FILENO, text) + "\n");
}

/// Opens closed standard streams on /dev/null. Else files and sockets would get their numbers, and for
/// example a lock file would be written to as standard error, here and in the children.
void open_standard_streams() {
  int fd = STDIN_FILENO;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd >= 0) ::close(fd);
}

std::string executable() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "troupe" : path.string();
}

/// Loads tokenizer and chat template and looks for the tags of the parsers, to check them. Adds a note for
/// each name that the template uses and that does not exist here. `vocabulary` becomes the tokenizer's
/// VocabularyImage, as bytes, and the front gets what else it would need a tokenizer for.
Status check_text_files(const config::ModelOptions& model, config::AnswerOptions& answers,
                        std::vector<std::string>& notes, std::string& vocabulary) {
  const auto tokenizer = Tokenizer::load(model.directory, model.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  vocabulary = VocabularyImage::bytes_of(**tokenizer);
  const auto chat = ChatTemplate::load(model.directory, model.chat_template, model.tokenizer);
  const bool without = chat.status().code == Code::not_found && model.chat_template.empty();
  if (!chat.ok() && !without) return chat.status();
  if (!without) {
    for (const std::string& name : (*chat)->missing()) {
      notes.push_back("the chat template uses " + name +
                      ", which does not exist here: a chat that needs it gets 400");
    }
  }
  auto thinking_end = encode_thinking_end(answers, **tokenizer);
  if (!thinking_end.ok()) return thinking_end.status();
  answers.found_thinking_end = *std::move(thinking_end);
  return choose_syntax(answers, **tokenizer, without ? nullptr : chat->get()).status();
}

/// Fetches the model of --download if it is neither a directory nor in the model cache.
Status fetch_model(const config::ModelOptions& model) {
  config::ModelOptions looked_up = model;
  const Status found = config::resolve_model(looked_up, config::Device::cpu, executable());
  if (found.code != Code::not_found || model.model.empty()) return {};
  cli::PullOrder order{
      .name = model.model, .cache = model.model_cache, .source = model.source, .revision = model.revision};
  const auto report = cli::pull_model(order, config::process_environment());
  if (!report.ok()) return report.status();
  std::fprintf(stderr, "%s\n", cli::describe(*report).c_str());
  return {};
}

/// Reads the files of keys and certificates and checks that TLS can use them; `http` stays as it is when not.
Status read_checked_credentials(config::HttpOptions& http) {
  config::HttpOptions fresh = http;
  if (Status status = config::read_credentials(fresh); !status.ok()) return status;
  if (const auto tls = http::make_server_tls(fresh); !tls.ok()) return tls.status();
  http = std::move(fresh);
  return {};
}

/// What children share, as it follows from the model and the cluster.
struct SharedMemory {
  ipc::Fd vocabulary;                  ///< what the model's tokens print
  ipc::Fd patches;                     ///< of images; invalid: the model does not see
  std::optional<ipc::NamesKey> names;  ///< the cluster's
  std::vector<supervisor::ServedModel>
      models;  ///< of several models, by engine; the first two members are unset
};

/// Where images of open requests lie, for workers to read: those of this server's front, or those that fronts
/// on other machines send. `fronts`: each has as much as --media-memory says.
Status make_patches(const config::Options& options, int fronts, SharedMemory& shared) {
  auto patches = ipc::PatchRegion::create(kPatchSpace * static_cast<std::uint64_t>(fronts) *
                                          static_cast<std::uint64_t>(options.media.memory_bytes));
  if (!patches.ok()) return patches.status();
  shared.patches = *std::move(patches);
  return {};
}

/// Of a front whose engines are all on other machines: what it needs of the model, and no memory for it.
Result<std::string> prepare_front(config::Options& options, SharedMemory& shared) {
  const auto spec = model::read_spec(options.model.directory, options.model.model_config_name);
  if (!spec.ok()) return spec.status();
  std::vector<std::string> notes;
  std::string image;
  const Status text_files = check_text_files(options.model, options.answers, notes, image);
  if (!text_files.ok()) return text_files;
  auto file = ipc::make_constant_file("troupe-vocabulary", std::exchange(image, {}));
  ::malloc_trim(0);  // what the check has loaded
  if (!file.ok()) return file.status();
  shared.vocabulary = *std::move(file);
  if (spec->vision) {
    if (Status status = make_patches(options, 1, shared); !status.ok()) return status;
  }
  std::string text = "model " + options.model.directory + "\n";
  for (const std::string& note : notes) text += "note      " + note + "\n";
  return text;
}

/// Has the kernels checked on the GPU, where that is due. A line of the summary.
Result<std::string> check_kernels(const CudaProbe& gpu, config::Options& options) {
  const auto check =
      model::check_at_start({.when = options.device.check_gpu,
                             .verified = model::is_verified(gpu),
                             .only_look = options.dry_run || options.dump_config,
                             .key = model::key_of(gpu),
                             .directory = config::default_cache_dir(config::process_environment()),
                             .start = cli::start_gpu_checks()});
  if (!check.ok()) return check.status();
  if (!check->warning.empty()) warn(check->warning);
  options.device.avoided_kernels = to_string(check->avoided);
  return check->line + "\n";
}

/// Checks what is about one model, and sets the options that were left open.
Result<std::string> prepare_model(config::Options& options, SharedMemory& shared) {
  // The echo device needs a tokenizer like any other, so it gets the demo model's when none is named.
  if (Status status = config::resolve_model(options.model, config::Device::cpu, executable()); !status.ok()) {
    return status;
  }
  if (!options.remote.engines.empty() && !options.remote.own_engine) return prepare_front(options, shared);
  auto found = model::preflight(options);
  if (!found.ok()) return found.status();
  std::string image;
  const Status text_files = check_text_files(options.model, options.answers, found->notes, image);
  if (!text_files.ok()) return text_files;
  auto file = ipc::make_constant_file("troupe-vocabulary", std::exchange(image, {}));
  ::malloc_trim(0);  // what the check has loaded
  if (!file.ok()) return file.status();
  shared.vocabulary = *std::move(file);
  if (found->spec && found->spec->vision) {
    const int fronts = options.takes_fronts() ? supervisor::kMostFronts : 1;
    if (Status status = make_patches(options, fronts, shared); !status.ok()) return status;
  }
  options.device.device = found->device;
  std::string kernels;
  if (found->gpu) {
    auto line = check_kernels(*found->gpu, options);
    if (!line.ok()) return line.status();
    kernels = *std::move(line);
  }
  if (found->device == config::Device::cpu && options.parallel.workers() > 1) {
    options.parallel.found_bytes = static_cast<std::int64_t>(found->available_bytes - found->reserved_bytes);
  }
  // Engine and worker get the limits that were found here, so that they agree on them. The length is not a
  // limit unless it was asked for: a worker that finds less memory free then uses a shorter one.
  const wire::Capacity& capacity = found->capacity;
  if (options.scheduler.max_model_len == 0) options.scheduler.found_model_len = capacity.max_model_len;
  options.scheduler.max_num_seqs = capacity.max_slots;
  options.scheduler.max_num_batched_tokens = capacity.max_tokens_per_step;
  if (options.scheduler.max_prefill_step_ms == 0) {
    options.scheduler.max_prefill_step_ms = config::default_prefill_step_ms(found->device);
  }
  return "model " + options.model.directory + "\n" + model::summary(*found) + kernels;
}

/// Of several models: each, with the options that are its engine's alone.
Result<std::string> prepare_models(config::Options& options, SharedMemory& shared) {
  std::string text;
  int most_sequences = 0;
  auto each = config::options_of_models(options);
  if (!each.ok()) return each.status();
  for (config::Options& own : *each) {
    const std::string name = own.model.served_model_names.front();
    SharedMemory one;
    auto summary = prepare_model(own, one);
    if (!summary.ok()) {
      Status status = summary.status();
      status.message = "the model \"" + name + "\": " + status.message;
      if (status.param == "data-parallel-size")
        status.message +=
            ". Each model needs a GPU of its own, or --rank-devices, which may name one for several";
      return status;
    }
    if (one.patches) {
      return failure(Code::unsupported, "the model \"" + name +
                                            "\" sees images, and such a model cannot be one of several yet: "
                                            "give it a server of its own");
    }
    most_sequences = std::max(most_sequences, own.scheduler.max_num_seqs);
    text += "name      " + name + "\n" + *summary + (summary->ends_with('\n') ? "" : "\n");
    shared.models.push_back({std::move(own), std::move(one.vocabulary)});
  }
  if (!options.dump_config) options.scheduler.max_num_seqs = most_sequences;  // by which rings are sized
  return text;
}

/// Checks everything before a port is opened, and sets the options that were left open.
Result<std::string> prepare(config::Options& options, SharedMemory& shared) {
  if (Status status = read_checked_credentials(options.http); !status.ok()) return status;
  if (const std::string warning = config::exposure_warning(options.http);
      !warning.empty() && !options.takes_fronts()) {
    warn(warning);
  }
  if (!options.batch.dir.empty() && !options.dry_run && !options.dump_config) {
    if (Status status = http::BatchStore::check(options.batch.dir); !status.ok()) return status;
  }
  if (!options.remote.cluster_keys.empty()) {
    const auto keys = remote::load_cluster_keys(options.remote.cluster_keys);
    if (!keys.ok()) return keys.status();
    shared.names = keys->names;
  }
  return config::named_models(options.model.model).empty() ? prepare_model(options, shared)
                                                           : prepare_models(options, shared);
}

Result<supervisor::RanksMemory> make_ranks_memory(int ranks) {
  auto fd = model::create_rank_memory(ranks);
  if (!fd.ok()) return fd.status();
  supervisor::RanksMemory made{ipc::Fd(*fd), {}};
  auto attached = model::RankMemory::attach(made.fd.get());
  if (!attached.ok()) return attached.status();
  const auto memory = std::make_shared<model::RankMemory>(*std::move(attached));
  made.set_epoch = [memory](std::uint32_t epoch) { memory->set_epoch(epoch); };
  return made;
}

Result<std::string> prepare_within_memory(config::Options& options, SharedMemory& shared) {
  try {
    return prepare(options, shared);
  } catch (const std::bad_alloc&) {
    return failure(Code::unavailable, exhaustion_message("memory"));
  }
}

/// Prints the values in effect; those that the model and the memory decide are found first.
int dump_config(config::Options options) {
  SharedMemory unused;
  const auto summary = prepare_within_memory(options, unused);
  if (!summary.ok()) return refuse(summary.status());
  if (options.scheduler.max_model_len == 0)
    options.scheduler.max_model_len = options.scheduler.found_model_len;
  std::fputs(config::to_config_file(options).c_str(), stdout);
  return 0;
}

supervisor::LogEvent events_of(Log log) {
  return
      [log = std::move(log)](LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
        switch (level) {
          case LogLevel::debug: log.debug(event, fields); break;
          case LogLevel::info: log.info(event, fields); break;
          case LogLevel::warning: log.warning(event, fields); break;
          case LogLevel::error:
          case LogLevel::off: log.error(event, fields); break;
        }
      };
}

/// What `troupe engine --help` says before the flags.
constexpr const char* kEngineHelp =
    "troupe engine: runs a model for servers on other machines (troupe serve --engines), without HTTP.\n"
    "\n"
    "usage: troupe engine --listen HOST:PORT --cluster-keys DIRECTORY [--model DIRECTORY] [OPTION…]\n"
    "\n"
    "Its options are those of troupe serve that are about the model, its memory and its logs:\n"
    "\n";

/// `options` are those of `troupe serve` or, with --listen, of `troupe engine`.
Status check_subcommand(config::Options& options, bool engine) {
  if (!engine && options.takes_fronts())
    return invalid("--listen: an engine without a front is started with `troupe engine`", "listen");
  if (!engine) return {};
  if (!options.takes_fronts())
    return invalid("--listen HOST:PORT is missing: where fronts on other machines find this engine",
                   "listen");
  const auto address = config::read_address(options.remote.listen);
  if (!address.ok()) return address.status();
  // The relay listens in the place of a front, and the port names the instance as an HTTP port does.
  options.http.host = address->host;
  options.http.port = address->port;
  return {};
}

int run_server(const std::vector<std::string>& arguments, bool engine) {
  open_standard_streams();
  auto parsed = config::parse(arguments, config::process_environment());
  if (!parsed.ok()) return refuse(parsed.status());
  if (!parsed->help.empty()) {
    const auto text =
        config::serve_help_in_form(parsed->help, cli::columns_of(STDOUT_FILENO, config::kHelpColumns));
    if (!text.ok()) return refuse(text.status());
    const bool written = parsed->help != "text" && parsed->help != "all";
    const std::string shown = (engine && !written ? kEngineHelp : "") + *text;
    if (parsed->help == "all") {
      cli::print_paged(shown);
    } else {
      std::fputs(shown.c_str(), stdout);
    }
    return 0;
  }
  for (const std::string& warning : parsed->warnings) warn(warning);

  config::Options& options = parsed->options;
  if (Status status = check_subcommand(options, engine); !status.ok()) return refuse(status);
  if (options.dump_config) return dump_config(options);

  supervisor::SupervisorSetup setup;
  SharedMemory shared;
  setup.preflight = [&](config::Options& prepared) { return prepare_within_memory(prepared, shared); };
  setup.take_vocabulary = [&] { return std::move(shared.vocabulary); };
  setup.take_models = [&] { return std::move(shared.models); };
  setup.take_patches = [&] { return std::move(shared.patches); };
  setup.names_key = [&] { return shared.names; };
  setup.make_ranks_memory = make_ranks_memory;
  const int texts =
      options.tokenizer.threads > 0 ? options.tokenizer.threads : static_cast<int>(half_the_cores());
  setup.counts = {options.own_engines(), options.parallel.tensor_parallel_size,
                  options.takes_fronts() ? 0 : texts};
  if (const auto models = static_cast<int>(config::named_models(options.model.model).size()); models > 1)
    setup.counts.texts = models * std::max(1, texts / models);
  setup.counts.pictures = options.media.processes > 0
                              ? options.media.processes
                              : static_cast<int>(std::clamp(usable_cores() / 2, 1u, 4u));
  setup.counts.videos = kVideoProcesses;
  if (options.dry_run) {
    options.log.dir = LogDirectoryLocks::look(options.log.dir, options.http.port);
    if (options.model.download && !options.model.model_cache.empty()) {
      if (Status status = try_directory(options.model.model_cache); !status.ok()) return refuse(status);
    }
    setup.options = options;
    const auto summary = supervisor::rehearse(setup);
    if (!summary.ok()) return refuse(summary.status());
    std::fputs(summary->c_str(), stdout);
    return 0;
  }

  if (options.model.download) {
    const Status fetched = fetch_model(options.model);
    if (fetched.code == Code::cancelled) return refuse(fetched), 128 + cli::stopping_signal();
    if (!fetched.ok()) return refuse(fetched);
  }

  const std::string log_dir = options.log.dir;
  const auto locks = LogDirectoryLocks::take(options.log, options.http.port);
  if (options.log.dir != log_dir) {
    warn("another server writes its logs to " + log_dir + "; those of this one go to " + options.log.dir);
  }
  setup.options = options;
  setup.console = {.live = cli::may_move_cursor(STDOUT_FILENO) && !options.log.console,
                   .output_colour = cli::may_style(STDOUT_FILENO),
                   .error_colour = cli::may_style(STDERR_FILENO),
                   .quiet = options.quiet};
  setup.installed = executable();
  setup.notify_socket = config::service_manager_socket(config::process_environment());
  setup.read_credentials = read_checked_credentials;
  auto log = Log::open("supervisor", options.log);
  if (!log.ok()) return refuse(log.status());
  setup.log = events_of(*log);
  setup.open_log = [options = options.log](const std::string& actor) {
    const auto opened = Log::open(actor, options);
    if (!opened.ok()) warn(opened.status().message + "; what " + actor + " says is not kept");
    return events_of(opened.ok() ? *opened : Log());
  };
  const std::string swap_path = options.cache.swap_path;
  const int workers = options.parallel.workers();
  const int code = supervisor::supervise(std::move(setup));
  for (int worker = 0; worker < workers && !swap_path.empty(); ++worker) {  // one that was killed could not
    model::SwapFile::remove_left(model::swap_path_of(swap_path, worker, workers));
  }
  Log::flush(1000);
  return code;
}

}  // namespace

int serve_main(const std::vector<std::string>& arguments) { return run_server(arguments, false); }

int serve_engine_main(const std::vector<std::string>& arguments) {
  subcommand = "engine";
  return run_server(arguments, true);
}

}  // namespace troupe
