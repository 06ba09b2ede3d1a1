#include "actors/remote/cluster_keys.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/file_writes.h"
#include "base/hex.h"
#include "base/owned_fd.h"

namespace troupe::remote {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAuthority = "authority.pem";
constexpr const char* kAuthorityKey = "authority.key";
constexpr const char* kNode = "node.pem";
constexpr const char* kNodeKey = "node.key";
constexpr const char* kNames = "names.key";
constexpr long kDay = 24 * 3600;
constexpr long kLife = 3650 * kDay;
/// Certificates count from a day before they are made: clocks of other machines may be behind.
constexpr long kClocksDiffer = kDay;

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* it) const {
    Free(it);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;

Status bad_keys(const fs::path& path, const std::string& why) {
  return invalid("--cluster-keys: " + path.string() + " " + why, "cluster-keys", "invalid_value");
}

Result<std::string> read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) {
    return bad_keys(path, std::string("cannot be read (") + std::strerror(errno) +
                              "); `troupe cluster-keys` makes the directory of a node");
  }
  return text.str();
}

/// A new file that its owner alone can read, if it is secret.
Status write_file(const fs::path& path, const std::string& text, bool secret) {
  const OwnedFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, secret ? 0600 : 0644));
  if (!fd || write_all(fd.get(), text) != text.size() || ::fsync(fd.get()) != 0) {
    return failure(Code::unavailable, path.string() + " cannot be written: " + std::strerror(errno));
  }
  return {};
}

std::string text_of(BIO* bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio, &bytes);
  return {bytes, static_cast<std::size_t>(size)};
}

std::string pem_of(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), certificate);
  return text_of(bio.get());
}

std::string pem_of(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return text_of(bio.get());
}

Bio reader_of(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

bool add_extension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* made = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  const bool added = made != nullptr && X509_add_ext(certificate, made, -1) == 1;
  X509_EXTENSION_free(made);
  return added;
}

struct Issuer {
  X509* certificate;
  EVP_PKEY* key;
};

/// A certificate of `key`, signed by `issuer`; without one, by itself: an authority's.
Certificate make_certificate(const std::string& name, EVP_PKEY* key, const Issuer* issuer) {
  Certificate made(X509_new());
  std::array<unsigned char, 16> serial{};
  if (made == nullptr || RAND_bytes(serial.data(), serial.size()) != 1) return nullptr;
  serial[0] &= 0x7f;  // a serial number is positive
  X509* const raw = made.get();
  X509_set_version(raw, X509_VERSION_3);
  BIGNUM* const number = BN_bin2bn(serial.data(), serial.size(), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(raw));
  BN_free(number);
  X509_gmtime_adj(X509_getm_notBefore(raw), -kClocksDiffer);
  X509_gmtime_adj(X509_getm_notAfter(raw), kLife);
  X509_set_pubkey(raw, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(raw), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509* const by = issuer == nullptr ? raw : issuer->certificate;
  X509_set_issuer_name(raw, X509_get_subject_name(by));
  const bool extended =
      add_extension(raw, by, NID_subject_key_identifier, "hash") &&
      (issuer == nullptr ? add_extension(raw, by, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                               add_extension(raw, by, NID_key_usage, "critical,keyCertSign,cRLSign")
                         : add_extension(raw, by, NID_basic_constraints, "critical,CA:FALSE") &&
                               add_extension(raw, by, NID_key_usage, "critical,digitalSignature") &&
                               add_extension(raw, by, NID_ext_key_usage, "serverAuth,clientAuth") &&
                               add_extension(raw, by, NID_authority_key_identifier, "keyid"));
  if (!extended || X509_sign(raw, issuer == nullptr ? key : issuer->key, EVP_sha256()) == 0) return nullptr;
  return made;
}

struct Authority {
  Certificate certificate;
  Key key;
  std::string names;
};

/// That in the directory, or a new one.
Result<Authority> open_authority(const fs::path& directory) {
  const Status unusable = failure(Code::internal, "keys cannot be made: " + http::take_tls_error());
  if (!fs::exists(directory / kAuthorityKey) && !fs::exists(directory / kAuthority)) {
    std::array<unsigned char, 16> random{};
    const Key key(EVP_EC_gen("P-256"));
    const Certificate made = key ? make_certificate("troupe cluster authority", key.get(), nullptr) : nullptr;
    if (made == nullptr || RAND_bytes(random.data(), random.size()) != 1) return unusable;
    for (Status status : {write_file(directory / kNames, to_hex(random) + "\n", true),
                          write_file(directory / kAuthorityKey, pem_of(key.get()), true),
                          write_file(directory / kAuthority, pem_of(made.get()), false)}) {
      if (!status.ok()) return status;
    }
  }
  auto pem = read_file(directory / kAuthority), key_pem = read_file(directory / kAuthorityKey),
       names = read_file(directory / kNames);
  for (const auto* one : {&pem, &key_pem, &names}) {
    if (!one->ok()) return one->status();
  }
  Authority found;
  found.certificate.reset(PEM_read_bio_X509(reader_of(*pem).get(), nullptr, nullptr, nullptr));
  found.key.reset(PEM_read_bio_PrivateKey(reader_of(*key_pem).get(), nullptr, nullptr, nullptr));
  found.names = *std::move(names);
  if (!found.certificate || !found.key ||
      X509_check_private_key(found.certificate.get(), found.key.get()) != 1) {
    return bad_keys(directory, "holds an authority whose certificate and key cannot be used together");
  }
  return found;
}

bool is_node_name(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  };
  return !name.empty() && name.size() <= 60 && name[0] != '.' && std::all_of(name.begin(), name.end(), plain);
}

Status make_node(const fs::path& directory, const std::string& name, const Authority& authority) {
  const fs::path node = directory / name;
  if (fs::exists(node))
    return failure(Code::unavailable, node.string() + " is there already; remove it, and make its keys anew");
  const Issuer issuer{authority.certificate.get(), authority.key.get()};
  const Key key(EVP_EC_gen("P-256"));
  const Certificate made = key ? make_certificate(name, key.get(), &issuer) : nullptr;
  if (made == nullptr) return failure(Code::internal, "keys cannot be made: " + http::take_tls_error());
  if (::mkdir(node.c_str(), 0700) != 0)
    return failure(Code::unavailable, node.string() + " cannot be made: " + std::strerror(errno));
  for (Status status : {write_file(node / kAuthority, pem_of(authority.certificate.get()), false),
                        write_file(node / kNames, authority.names, true),
                        write_file(node / kNodeKey, pem_of(key.get()), true),
                        write_file(node / kNode, pem_of(made.get()), false)}) {
    if (!status.ok()) return status;
  }
  return {};
}

/// The owner alone can use the file; or it is root's, and a group may read it, as service managers hand out
/// secrets.
bool is_private(const fs::path& path) {
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return false;
  return (file.st_mode & (file.st_uid == 0 ? 037 : 077)) == 0;
}

Result<ipc::NamesKey> read_names_key(const fs::path& path) {
  const auto text = read_file(path);
  if (!text.ok()) return text.status();
  ipc::NamesKey key;
  char end = 0;
  if (std::sscanf(text->c_str(), "%16lx%16lx%c", &key.low, &key.high, &end) != 3 || end != '\n' ||
      text->size() != 33)
    return bad_keys(path, "holds no key for names");
  return key;
}

}  // namespace

Result<ClusterKeys> load_cluster_keys(const std::string& directory) {
  const fs::path path(directory);
  for (const char* file : {kAuthority, kNode, kNodeKey}) {
    if (const auto text = read_file(path / file); !text.ok()) return text.status();
  }
  auto names = read_names_key(path / kNames);
  if (!names.ok()) return names.status();
  if (!is_private(path / kNodeKey))
    return bad_keys(path / kNodeKey, "can be read by others than its owner; chmod 600 it");

  ClusterKeys keys{http::make_tls_context(), "", *names};
  if (keys.tls == nullptr) return failure(Code::internal, "TLS cannot be set up: " + http::take_tls_error());
  SSL_CTX* const raw = keys.tls.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  ERR_clear_error();
  if (SSL_CTX_load_verify_file(raw, (path / kAuthority).c_str()) != 1)
    return bad_keys(path / kAuthority, "holds no certificate (" + http::take_tls_error() + ")");
  if (SSL_CTX_use_certificate_file(raw, (path / kNode).c_str(), SSL_FILETYPE_PEM) != 1)
    return bad_keys(path / kNode, "holds no certificate (" + http::take_tls_error() + ")");
  if (SSL_CTX_use_PrivateKey_file(raw, (path / kNodeKey).c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(raw) != 1) {
    return bad_keys(path / kNodeKey,
                    "is not the key of " + std::string(kNode) + " (" + http::take_tls_error() + ")");
  }
  std::array<char, 128> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(SSL_CTX_get0_certificate(raw)), NID_commonName, name.data(),
                            static_cast<int>(name.size()));
  keys.node = name.data();
  return keys;
}

Status make_cluster_keys(const std::string& directory, const std::vector<std::string>& nodes) {
  for (const std::string& node : nodes) {
    if (!is_node_name(node))
      return invalid("got the name \"" + node.substr(0, 100) +
                     "\", expected up to 60 letters, digits, '-', '_' and '.', not '.' first");
  }
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return failure(Code::unavailable, directory + " cannot be made: " + std::strerror(errno));
  const auto authority = open_authority(directory);
  if (!authority.ok()) return authority.status();
  for (const std::string& node : nodes) {
    if (Status status = make_node(directory, node, *authority); !status.ok()) return status;
  }
  return {};
}

}  // namespace troupe::remote
