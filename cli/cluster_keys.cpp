// troupe cluster-keys: the private authority of a cluster, and its nodes' keys.
#include <cstdio>

#include "actors/remote/cluster_keys.h"
#include "cli/command_line.h"
#include "cli/commands.h"

namespace troupe::cli {

int cluster_keys_main(int argc, char** argv) {
  const Synopsis synopsis{
      "cluster-keys", "keys by which fronts and engines know each other",
      "troupe cluster-keys DIRECTORY NODE…",
      "  troupe cluster-keys /etc/troupe/cluster front-a engine-a engine-b\n"
      "  troupe cluster-keys /etc/troupe/cluster engine-c\n"
      "\n"
      "Makes an authority in DIRECTORY, unless it has one, and in DIRECTORY/NODE what the node "
      "needs: copy that\nfolder to the node's machine and name it with --cluster-keys. "
      "DIRECTORY/authority.key makes further nodes:\nkeep it where no server runs.\n"};
  std::vector<std::string> words;
  if (const auto code = read_command_line(argc, argv, synopsis, {}, words)) return *code;
  if (words.size() < 2) return fail(synopsis, invalid("expected a directory and at least one node's name"));
  const std::vector<std::string> nodes(words.begin() + 1, words.end());
  if (const Status status = remote::make_cluster_keys(words[0], nodes); !status.ok())
    return fail(synopsis, status);
  for (const std::string& node : nodes) std::printf("--cluster-keys %s/%s\n", words[0].c_str(), node.c_str());
  return 0;
}

}  // namespace troupe::cli
