// Flags of a front and engines on different machines.
#include "config/address.h"
#include "config/fields.h"

namespace troupe::config {

std::vector<Field> remote_fields(RemoteOptions& o) {
  return {
      {.name = "engines",
       .slot = &o.engines,
       .help =
           "engines on other machines, each HOST:PORT as its `troupe engine --listen` names it; this server "
           "then has none of its own, unless --own-engine is given. They may come, end and come back at any "
           "time; see docs/cluster.md"},
      {.name = "prefill-engines",
       .slot = &o.prefill_engines,
       .help =
           "with --splitwise-role decode: prefill engines on other machines, each HOST:PORT as its `troupe "
           "engine --splitwise-role prefill --listen` names it; up to 4. The KV blocks come over TCP and "
           "TLS. Needs --cluster-keys; see docs/split.md"},
      {.name = "own-engine",
       .slot = &o.own_engine,
       .help =
           "beside --engines this server has engines of its own too, as many as --data-parallel-size says"},
      {.name = "listen",
       .slot = &o.listen,
       .help = "of `troupe engine`: the HOST:PORT at which it takes fronts. Nothing else is listened on",
       .check = [](std::string_view value) { return read_address(value).status(); }},
      {.name = "cluster-keys",
       .slot = &o.cluster_keys,
       .help = "directory of this node's keys, as `troupe cluster-keys` has made it; --engines, "
               "--prefill-engines and --listen need it"},
  };
}

}  // namespace troupe::config
