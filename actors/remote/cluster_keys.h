#pragma once
// The keys by which the nodes of a cluster know each other. `troupe cluster-keys DIR NODE…` makes them:
//
//   DIR/authority.key            the authority's private key; only `troupe cluster-keys` reads it
//   DIR/authority.pem            its certificate
//   DIR/names.key                with which all nodes name KV blocks
//   DIR/NODE/{authority.pem,names.key,node.pem,node.key}   what one node needs: --cluster-keys DIR/NODE
//
// The authority vouches for nodes of this cluster alone, so a certificate of it is all that a peer has to
// show; the place where a node runs is not part of it. Sessions are TLS 1.3, and each is verified anew.
#include <string>
#include <vector>

#include "base/status.h"
#include "http/server/tls_session.h"
#include "ipc/block_names.h"

namespace troupe::remote {

struct ClusterKeys {
  http::TlsContext tls;  ///< for both ends of a connection; the peer must show a certificate of the authority
  std::string node;      ///< the name in this node's certificate
  ipc::NamesKey names;
};

/// The errors name --cluster-keys.
Result<ClusterKeys> load_cluster_keys(const std::string& directory);

/// Makes what is missing of the authority, then the keys of each node. A node that has keys is an error, and
/// keeps them.
Status make_cluster_keys(const std::string& directory, const std::vector<std::string>& nodes);

}  // namespace troupe::remote
