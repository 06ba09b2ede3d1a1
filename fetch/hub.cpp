#include "fetch/hub.h"

#include <utility>

#include "fetch/listing.h"

namespace troupe::fetch {
namespace {

constexpr std::size_t kMaxListingBytes = 32 << 20;
constexpr std::size_t kMaxPointerBytes = 1 << 10;
constexpr int kMaxPages = 100;

struct HubFacts {
  const char* title;
  const char* endpoint;
  const char* endpoint_name;
  const char* token_name;
  const char* scheme;  ///< of the Authorization header
};

/// In the order of ModelSource.
constexpr HubFacts kHubs[] = {
    {"Hugging Face", "https://huggingface.co", "HF_ENDPOINT", "HF_TOKEN", "Bearer "},
    {"ModelScope", "https://www.modelscope.cn", "MODELSCOPE_DOMAIN", "MODELSCOPE_API_TOKEN", "Bearer "},
    {"AI Studio", "https://git.aistudio.baidu.com", "AISTUDIO_ENDPOINT", "AISTUDIO_ACCESS_TOKEN", "token "},
};

const HubFacts& facts(ModelSource source) { return kHubs[static_cast<int>(source)]; }

/// Percent-encodes all but letters, digits and "-._~", and slashes where they separate.
std::string encoded(std::string_view text, bool keep_slashes) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes);
    if (plain) {
      out += c;
    } else {
      out += '%';
      out += kDigits[static_cast<unsigned char>(c) >> 4];
      out += kDigits[static_cast<unsigned char>(c) & 15];
    }
  }
  return out;
}

bool is_this_machine(std::string_view url) {
  for (const std::string_view host : {"http://127.0.0.1", "http://localhost", "http://[::1]"}) {
    if (!url.starts_with(host)) continue;
    const std::string_view rest = url.substr(host.size());
    if (rest.empty() || rest.starts_with(':') || rest.starts_with('/')) return true;
  }
  return false;
}

GetRequest request(const Repository& repository, const std::string& path) {
  const Hub& hub = repository.hub;
  return {hub.endpoint + path, hub.token.empty() ? "" : facts(hub.source).scheme + hub.token, {}};
}

Status not_a_hub(const Hub& hub, const GetRequest& asked, const AnswerHead& head) {
  return invalid(asked.url + " answered with " +
                 (head.content_type.empty() ? "something" : head.content_type) +
                 " that is not a list of files. Is " + hub.endpoint + " the address of the hub (" +
                 hub.endpoint_name + "), or does a proxy or a login page stand in between?");
}

/// Reads one listing page by `parse`; a page of HTML gets a sentence of its own.
template <class Parse>
auto read_page(const Repository& repository, const GetRequest& asked, const std::atomic<bool>& stop,
               Parse&& parse, AnswerHead& head) -> decltype(parse(std::string_view{})) {
  const Result<std::string> page = get_page(asked, kMaxListingBytes, stop, &head);
  if (!page.ok()) return explain(repository, page.status());
  if (head.content_type == "text/html") return not_a_hub(repository.hub, asked, head);
  return parse(std::string_view(*page));
}

Status too_long() {
  return invalid("the hub's list of files has more than " + std::to_string(kMaxPages) + " pages");
}

Result<std::vector<RemoteFile>> list_huggingface(const Repository& repository,
                                                 const std::atomic<bool>& stop) {
  GetRequest ask = request(repository, "/api/models/" + repository.name + "/tree/" +
                                           encoded(repository.revision, false) + "?recursive=true");
  std::vector<RemoteFile> out;
  for (int page = 0; page < kMaxPages; ++page) {
    AnswerHead head;
    auto files = read_page(repository, ask, stop, parse_huggingface_tree, head);
    if (!files.ok()) return files.status();
    out.insert(out.end(), files->begin(), files->end());
    if (head.next.empty()) return out;
    if (!head.next.starts_with(repository.hub.endpoint + "/")) {  // the token stays with this host
      return invalid("the hub's list of files continues at another host: " + head.next.substr(0, 200));
    }
    ask.url = head.next;
  }
  return too_long();
}

Result<std::vector<RemoteFile>> list_modelscope(const Repository& repository, const std::atomic<bool>& stop) {
  AnswerHead head;
  return read_page(repository,
                   request(repository, "/api/v1/models/" + repository.name + "/repo/files?Revision=" +
                                           encoded(repository.revision, false) + "&Recursive=true"),
                   stop, parse_modelscope_files, head);
}

/// git knows large files by their pointers only: the size and sum in its tree are those of the pointer.
Status resolve_pointers(const Repository& repository, std::vector<RemoteFile>& files,
                        const std::atomic<bool>& stop) {
  for (RemoteFile& file : files) {
    if (file.size > kMaxPointerBytes) continue;
    const auto text = get_page(
        request(repository, "/api/v1/repos/" + repository.name + "/raw/" + encoded(file.path, false) +
                                "?ref=" + encoded(repository.revision, false)),
        kMaxPointerBytes, stop);
    if (!text.ok()) return explain(repository, text.status());
    read_lfs_pointer(*text, file);
  }
  return {};
}

Result<std::vector<RemoteFile>> list_aistudio(const Repository& repository, const std::atomic<bool>& stop) {
  std::vector<RemoteFile> out;
  for (int page = 1; page <= kMaxPages; ++page) {
    AnswerHead head;
    auto tree =
        read_page(repository,
                  request(repository, "/api/v1/repos/" + repository.name + "/git/trees/" +
                                          encoded(repository.revision, false) +
                                          "?recursive=true&per_page=1000&page=" + std::to_string(page)),
                  stop, parse_git_tree, head);
    if (!tree.ok()) return tree.status();
    out.insert(out.end(), tree->files.begin(), tree->files.end());
    if (tree->truncated) continue;
    if (Status s = resolve_pointers(repository, out, stop); !s.ok()) return s;
    return out;
  }
  return too_long();
}

}  // namespace

Result<Hub> find_hub(ModelSource source, const std::map<std::string, std::string>& variables) {
  const auto variable = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  const HubFacts& known = facts(source);
  Hub hub{source,
          known.title,
          variable(known.endpoint_name),
          known.endpoint_name,
          known.token_name,
          variable(known.token_name)};
  if (hub.endpoint.empty()) hub.endpoint = known.endpoint;
  if (source == ModelSource::modelscope && hub.endpoint.find("://") == std::string::npos)
    hub.endpoint.insert(0, "https://");
  while (hub.endpoint.ends_with('/')) hub.endpoint.pop_back();
  const bool plain = hub.endpoint.starts_with("http://");
  if (!plain && !hub.endpoint.starts_with("https://")) {
    return invalid(hub.endpoint_name + ": got \"" + hub.endpoint +
                       "\", expected a URL that begins with https:// or http://",
                   hub.endpoint_name);
  }
  for (const char c : hub.token) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f) {
      return invalid(hub.token_name + ": a token has no spaces and no control characters", hub.token_name);
    }
  }
  if (plain && !hub.token.empty() && !is_this_machine(hub.endpoint)) {
    return invalid(hub.token_name + " would be sent unencrypted to " + hub.endpoint +
                       ": unset it, or use https in " + hub.endpoint_name,
                   hub.token_name);
  }
  return hub;
}

Result<Repository> find_repository(Hub hub, const std::string& name, const std::string& revision) {
  if (Status s = check_model_name(name); !s.ok()) return s;
  Repository out{std::move(hub), name, revision};
  if (out.revision.empty() || out.revision.size() > 256) {
    return invalid(
        "--revision: got " + std::to_string(revision.size()) + " bytes, expected a branch, tag or commit",
        "revision");
  }
  if (out.hub.source == ModelSource::huggingface && revision == "master") out.revision = "main";
  if (out.hub.source == ModelSource::aistudio && name.starts_with("baidu/"))
    out.name.replace(0, 5, "PaddlePaddle");
  return out;
}

Result<std::vector<RemoteFile>> list_files(const Repository& repository, const std::atomic<bool>& stop) {
  switch (repository.hub.source) {
    case ModelSource::huggingface: return list_huggingface(repository, stop);
    case ModelSource::modelscope: return list_modelscope(repository, stop);
    case ModelSource::aistudio: break;
  }
  return list_aistudio(repository, stop);
}

GetRequest file_request(const Repository& repository, const std::string& path) {
  const std::string revision = encoded(repository.revision, false);
  switch (repository.hub.source) {
    case ModelSource::huggingface:
      return request(repository, "/" + repository.name + "/resolve/" + revision + "/" + encoded(path, true));
    case ModelSource::modelscope:
      return request(repository, "/api/v1/models/" + repository.name + "/repo?Revision=" + revision +
                                     "&FilePath=" + encoded(path, false));
    case ModelSource::aistudio: break;
  }
  return request(repository,
                 "/api/v1/repos/" + repository.name + "/media/" + encoded(path, false) + "?ref=" + revision);
}

Status explain(const Repository& repository, const Status& status) {
  const Hub& hub = repository.hub;
  Status out = status;
  if (status.code == Code::unauthorized) {
    out.message += hub.token.empty()
                       ? ": " + repository.name + " needs a token, or " + hub.title +
                             " has no such model; a token goes into the variable " + hub.token_name
                       : ": the token in " + hub.token_name + " does not open " + repository.name;
  } else if (status.code == Code::not_found) {
    out.message += ": " + hub.title + " has no " + repository.name + " at the revision " +
                   repository.revision + "; --source and --revision choose others";
  }
  return out;
}

}  // namespace troupe::fetch
