#pragma once
// The hubs that models can be fetched from: addresses, requests, tokens. The only place that names their
// hosts.
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "config/options.h"
#include "fetch/http_get.h"
#include "fetch/remote_file.h"

namespace troupe::fetch {

using config::ModelSource;

struct Hub {
  ModelSource source = ModelSource::aistudio;
  std::string title;          ///< "Hugging Face"
  std::string endpoint;       ///< "https://HOST", no slash at the end
  std::string endpoint_name;  ///< the variable that sets it
  std::string token_name;     ///< the variable of the token
  std::string token;          ///< empty: none
};

/// A repository at a revision.
struct Repository {
  Hub hub;
  std::string name;      ///< ORG/NAME as the hub knows it
  std::string revision;  ///< branch, tag or commit
};

/// The hub with what `variables` say of it:
///   huggingface  HF_ENDPOINT, HF_TOKEN
///   modelscope   MODELSCOPE_DOMAIN (a host, or a URL), MODELSCOPE_API_TOKEN
///   aistudio     AISTUDIO_ENDPOINT, AISTUDIO_ACCESS_TOKEN
/// Errors: an endpoint that is no http(s) URL; a token that would travel unencrypted to another machine.
Result<Hub> find_hub(ModelSource source, const std::map<std::string, std::string>& variables);

/// `name` as the user wrote it. The revision "master", the default, is Hugging Face's "main"; the
/// organisation "baidu" is called PaddlePaddle at AI Studio.
Result<Repository> find_repository(Hub hub, const std::string& name, const std::string& revision);

/// Asks the hub for its files. Errors name the repository and what to do.
Result<std::vector<RemoteFile>> list_files(const Repository& repository, const std::atomic<bool>& stop);

/// The request for the whole of a file.
GetRequest file_request(const Repository& repository, const std::string& path);

/// A failed request of this repository as a sentence for the user.
Status explain(const Repository& repository, const Status& status);

}  // namespace troupe::fetch
