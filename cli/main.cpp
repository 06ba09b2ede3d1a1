// One binary, a table of subcommands.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "actors/engine/engine_main.h"
#include "actors/remote/relay_main.h"
#include "actors/tokenizer/text_main.h"
#include "base/exhaustion.h"
#include "cli/commands.h"
#include "cli/serve.h"
#include "config/hide_secrets.h"
#include "config/nearest.h"
#include "fetch/fetch_main.h"
#include "media/media_main.h"

namespace {

using WordList = std::vector<std::string>;

struct Subcommand {
  std::string_view name;
  std::string_view help;  ///< empty: started by the supervisor, not by a person
  int (*run)(int argc, char** argv);
};

/// Adapts a main that takes words to the signature with argc and argv.
template <int (*Main)(const WordList&)>
int words(int argc, char** argv) {
  return Main(WordList(argv + 1, argv + argc));
}

template <int (*Main)(const WordList&)>
int child(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--help") continue;
    std::printf(
        "usage: troupe %s --options-fd=N …\n\nA child process of `troupe serve`, which hands it its "
        "descriptors: "
        "not to be started by hand.\nexample: troupe serve --port 8180; troupe status\n",
        argv[0]);
    return 0;
  }
  return words<Main>(argc, argv);
}

/// The supervisor's child of that name, or the command that people give.
int engine_or_child(int argc, char** argv) {
  const WordList given(argv + 1, argv + argc);
  const bool is_child = std::any_of(
      given.begin(), given.end(), [](const std::string& word) { return word.starts_with("--options-fd="); });
  return is_child ? troupe::engine_main(given) : troupe::serve_engine_main(given);
}

constexpr Subcommand kSubcommands[] = {
    {"serve", "serve a model over an OpenAI-style HTTP API", words<troupe::serve_main>},
    {"engine", "run a model for fronts on other machines (troupe serve --engines)", engine_or_child},
    {"cluster-keys", "make the keys by which fronts and engines know each other",
     troupe::cli::cluster_keys_main},
    {"chat", "talk to a running server", troupe::cli::chat_main},
    {"status", "show a running server's processes, queues and KV blocks", troupe::cli::status_main},
    {"restart", "replace a process of a running server while streams go on", troupe::cli::restart_main},
    {"logs", "read the actors' logs", troupe::cli::logs_main},
    {"pull", "fetch a model from a hub", troupe::cli::pull_main},
    {"fit", "say which models fit this machine or a card, and how fast they can be", troupe::cli::fit_main},
    {"check-gpu", "compare every kernel on a GPU with the CPU", troupe::cli::check_gpu_main},
    {"quantize", "write a quantised copy of a checkpoint", troupe::cli::quantize_main},
    {"tokenize", "encode and decode text with a model's tokenizer", troupe::cli::tokenize_main},
    {"bench", "measure: steps of a model offline, load on a server", troupe::cli::bench_main},
    {"run-batch", "run a file of requests (JSONL) and write their answers", troupe::cli::run_batch_main},
    {"collect-env", "print what a bug report needs to know of this machine", troupe::cli::collect_env_main},
    {"completion", "print a script for completion in bash, zsh or fish", troupe::cli::completion_main},
    {"version", "print the version", troupe::cli::version_main},
    {"front", "", child<troupe::front_main>},
    {"worker", "", child<troupe::worker_main>},
    {"text", "", child<troupe::text_main>},
    {"relay", "", child<troupe::remote::relay_main>},
    {"media", "", child<troupe::media::media_main>},
    {"fetch", "", child<troupe::fetch::fetch_main>},
};

/// Commands of other programs that serve models, and what they are called here.
const std::map<std::string_view, std::string_view> kNamesElsewhere = {
    {"ps", "status"}, {"top", "status"},      {"list", "status"},
    {"run", "chat"},  {"start", "serve"},     {"download", "pull"},
    {"log", "logs"},  {"benchmark", "bench"}, {"convert", "quantize"},
};

int usage(std::FILE* out) {
  std::fputs("usage: troupe COMMAND [OPTION …]\n\n", out);
  for (const Subcommand& command : kSubcommands) {
    if (!command.help.empty()) std::fprintf(out, "  %-12s %s\n", command.name.data(), command.help.data());
  }
  std::fputs("\ntroupe COMMAND --help says more. Example:\n  troupe serve --port 8180\n", out);
  return out == stdout ? 0 : 2;
}

/// For completion in shells: name and help, with a tab between.
int list_commands() {
  for (const Subcommand& command : kSubcommands) {
    if (!command.help.empty()) std::printf("%s\t%s\n", command.name.data(), command.help.data());
  }
  return 0;
}

/// troupe(1), for man; each command with flags has a page of its own, from COMMAND --help=man.
int man_page() {
  std::fputs(
      ".TH TROUPE 1\n.SH NAME\ntroupe \\- serves ERNIE-4.5 models over an OpenAI-style HTTP API\n"
      ".SH SYNOPSIS\n.B troupe\nCOMMAND [OPTION ...]\n.SH COMMANDS\n",
      stdout);
  for (const Subcommand& command : kSubcommands) {
    if (!command.help.empty()) std::printf(".TP\n.B %s\n%s\n", command.name.data(), command.help.data());
  }
  std::fputs(".SH SEE ALSO\n.BR troupe\\-serve (1)\n", stdout);
  return 0;
}

/// The exit code, or 1 when what was printed has not been written in full: to a full disk, for example.
int with_output_written(int code) {
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return code;
  std::fputs("troupe: what was printed could not be written in full: is the disk full?\n", stderr);
  return code == 0 ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  troupe::explain_exhaustion();
  std::vector<std::string> given(argv, argv + argc);
  troupe::config::hide_secrets(argc, argv);
  std::vector<char*> words;
  for (std::string& word : given) words.push_back(word.data());
  words.push_back(nullptr);
  argv = words.data();
  if (argc < 2) return usage(stderr);
  const std::string_view name = argv[1];
  if (name == "--help=commands") return list_commands();
  if (name == "--help=man") return man_page();
  if (name == "--help" || name == "-h" || name == "help") return usage(stdout);
  for (const Subcommand& command : kSubcommands) {
    if (command.name == name || (name == "--version" && command.name == "version")) {
      return with_output_written(command.run(argc - 1, argv + 1));
    }
  }
  std::vector<std::string_view> names;
  for (const Subcommand& command : kSubcommands) {
    if (!command.help.empty()) names.push_back(command.name);
  }
  const auto known = kNamesElsewhere.find(name);
  const std::string hint = known != kNamesElsewhere.end()
                               ? "; did you mean " + std::string(known->second) + "?"
                               : troupe::config::did_you_mean(name, names);
  std::fprintf(stderr, "troupe: there is no command \"%.*s\"%s\n\n", static_cast<int>(name.size()),
               name.data(), hint.c_str());
  return usage(stderr);
}
