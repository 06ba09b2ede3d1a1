// Flags of a front and engines on different machines.
#include "config/address.h"
#include "config/fields.h"

namespace troupe::config {

std::vector<Field> remote_fields(RemoteOptions& o) {
  return {
      {.name = "engines",
       .slot = &o.engines,
       .help = "engines on other machines, each the HOST:PORT of its `troupe engine --listen`; this server "
               "then has none without --own-engine; see docs/cluster.md"},
      {.name = "prefill-engines",
       .slot = &o.prefill_engines,
       .help = "with --splitwise-role decode: prefill engines on other machines, each the HOST:PORT of its "
               "`troupe engine --splitwise-role prefill --listen`, up to 4; see docs/split.md"},
      {.name = "own-engine",
       .slot = &o.own_engine,
       .help = "beside --engines this server has --data-parallel-size of its own"},
      {.name = "listen",
       .slot = &o.listen,
       .help = "of `troupe engine`: the HOST:PORT at which it takes fronts",
       .check = [](std::string_view value) { return read_address(value).status(); }},
      {.name = "cluster-keys",
       .slot = &o.cluster_keys,
       .help = "this node's directory of `troupe cluster-keys`; --engines, --prefill-engines and --listen "
               "need it"},
  };
}

}  // namespace troupe::config
