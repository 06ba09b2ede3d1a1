#pragma once
// The subcommands that a person runs next to a server. Each is a main of its own: argv[0] is the
// subcommand's name, its arguments follow. The result is the process's exit code: 0 done, 1 failed (no
// server, no such file), 2 wrong arguments. Every one has --help with examples.

namespace troupe::cli {

int chat_main(int argc, char** argv);
int status_main(int argc, char** argv);
int restart_main(int argc, char** argv);
int logs_main(int argc, char** argv);
int pull_main(int argc, char** argv);
int fit_main(int argc, char** argv);
int check_gpu_main(int argc, char** argv);
int quantize_main(int argc, char** argv);
int tokenize_main(int argc, char** argv);
int cluster_keys_main(int argc, char** argv);
int collect_env_main(int argc, char** argv);
int completion_main(int argc, char** argv);
int run_batch_main(int argc, char** argv);
int bench_main(int argc, char** argv);
int version_main(int argc, char** argv);

}  // namespace troupe::cli
