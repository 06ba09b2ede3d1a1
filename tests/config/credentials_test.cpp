// Keys and certificates from files, and what others may see of a command line.
#include "config/credentials.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "config/dump.h"
#include "config/fields.h"
#include "config/hide_secrets.h"
#include "config/model_directory.h"
#include "support/temp_directory.h"

namespace troupe::config {
namespace {

namespace fs = std::filesystem;

class Credentials : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    const fs::path path = directory_.path() / name;
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  std::string refusal(const HttpOptions& http) const {
    HttpOptions copy = http;
    const Status status = read_credentials(copy);
    EXPECT_EQ(status.code, Code::invalid_argument) << status.message;
    EXPECT_EQ(copy.file_api_keys, http.file_api_keys);
    EXPECT_EQ(copy.certificate_pem, http.certificate_pem);
    return status.message;
  }
  std::string key_refusal(const std::string& path) const { return refusal({.api_key_file = path}); }

  const test::TempDirectory directory_;
};

TEST_F(Credentials, AKeyFileHasOneKeyALine) {
  HttpOptions http{.api_keys = {"flag"},
                   .api_key_file = write("keys", "# first the old one\n one \r\n\ntwo")};
  ASSERT_TRUE(read_credentials(http).ok());
  EXPECT_EQ(http.file_api_keys, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(all_api_keys(http), (std::vector<std::string>{"flag", "one", "two"}));
  write("keys", "three\n");
  ASSERT_TRUE(read_credentials(http).ok());
  EXPECT_EQ(all_api_keys(http), (std::vector<std::string>{"flag", "three"}));
}

TEST_F(Credentials, AKeyFileMayHaveThousandsOfKeys) {
  std::string text;
  for (int i = 0; i < 15'000; ++i) text += "key-" + std::to_string(i) + std::string(58, 'x') + "\n";
  HttpOptions http{.api_key_file = write("keys", text)};
  const Status status = read_credentials(http);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(http.file_api_keys.size(), 15'000u);
}

TEST_F(Credentials, AFileWithoutAKeyIsRefusedAndTheOldKeysStay) {
  for (const char* text : {"", "\n\n", "# none\n", "  \t\r\n"}) {
    const std::string path = write("keys", text);
    const std::string message = refusal({.api_key_file = path, .file_api_keys = {"old"}});
    EXPECT_EQ(message.find("--api-key-file " + path + ": holds no key"), 0u) << message;
  }
  EXPECT_NE(key_refusal(write("keys", "two words\n")).find("key 1 has a blank"), std::string::npos);
  EXPECT_NE(key_refusal(write("keys", "caf\xc3\xa9\n")).find("printable"), std::string::npos);
  const std::string large = key_refusal(write("keys", std::string((1 << 20) + 1, 'k')));
  EXPECT_NE(large.find("has 1048577 bytes, expected at most 1 MiB"), std::string::npos) << large;
}

TEST_F(Credentials, WhatIsNoReadableFileIsNamed) {
  const std::string absent = (directory_.path() / "absent").string();
  EXPECT_EQ(key_refusal(absent), "--api-key-file " + absent + ": cannot be read: No such file or directory");
  EXPECT_NE(key_refusal(directory_.path().string()).find("not a regular file"), std::string::npos);
  const std::string fifo = (directory_.path() / "fifo").string();
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_NE(key_refusal(fifo).find("not a regular file"), std::string::npos);  // and is not waited for
}

TEST_F(Credentials, OfPemFilesTheBlocksAreKept) {
  const std::string block = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
  const std::string key = "-----BEGIN PRIVATE KEY-----\nBB==\n-----END PRIVATE KEY-----\n";
  HttpOptions http{.ssl_certfile = write("cert", "Subject: \xff\n" + block + "text\n" + key)};
  ASSERT_TRUE(read_credentials(http).ok());
  EXPECT_EQ(http.certificate_pem, block + key);
  EXPECT_EQ(http.private_key_pem, block + key);
  http.ssl_keyfile = write("key", key);
  ASSERT_TRUE(read_credentials(http).ok());
  EXPECT_EQ(http.private_key_pem, key);
  const std::string message = refusal({.ssl_certfile = write("text", "no pem"), .certificate_pem = "old"});
  EXPECT_NE(message.find("--ssl-certfile"), std::string::npos);
  EXPECT_NE(message.find("nothing in PEM form"), std::string::npos);
}

TEST_F(Credentials, AnOpenServerWithoutAKeyIsWarnedAbout) {
  for (const char* host : {"0.0.0.0", "::", "10.1.2.3", "some.name"}) {
    EXPECT_NE(exposure_warning({.host = host, .port = 81}).find("--host " + std::string(host)),
              std::string::npos);
    EXPECT_EQ(exposure_warning({.host = host, .api_keys = {"k"}}), "");
    EXPECT_EQ(exposure_warning({.host = host, .file_api_keys = {"k"}}), "");
  }
  for (const char* host : {"127.0.0.1", "::1", "localhost", "127.8.0.1"})
    EXPECT_EQ(exposure_warning({.host = host}), "") << host;
}

TEST(HideSecrets, OverwritesTheValuesOfSecretFlagsAlone) {
  std::vector<std::string> words = {"troupe", "serve",     "--api-key", "one",
                                    "two",    "--port",    "81",        "--api_key=three",
                                    "rest",   "-x",        "--",        "--scheduler-password",
                                    "four",   "--api-key", "--model",   "five"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  hide_secrets(static_cast<int>(argv.size()), argv.data());
  EXPECT_EQ(words, (std::vector<std::string>{"troupe", "serve", "--api-key", "***", "***", "--port", "81",
                                             "--api_key=*****", "rest", "-x", "--", "--scheduler-password",
                                             "****", "--api-key", "--model", "five"}));
}

TEST(WithoutSecrets, EverySecretIsEmptyAndTheRestStays) {
  Options options;
  options.http.port = 81;
  options.model.model = "a-model";
  int secrets = 0;
  for (const Field& field : fields(options)) {
    if (!field.secret) continue;
    ++secrets;
    if (auto* const* text = std::get_if<std::string*>(&field.slot)) **text = "sesame";
    if (auto* const* list = std::get_if<std::vector<std::string>*>(&field.slot)) **list = {"sesame"};
    EXPECT_EQ(show_value(field), "sesame") << field.name << " is of a kind that is not emptied";
  }
  EXPECT_GE(secrets, 5);
  const Options copy = without_secrets(options);
  EXPECT_EQ(to_json(copy).find("sesame"), std::string::npos);
  EXPECT_EQ(copy.http.port, 81);
  EXPECT_EQ(copy.model.model, "a-model");
}

TEST_F(Credentials, AFileOfAModelThatCannotBeReadIsNamed) {
  const fs::path model = directory_.path() / "model";
  fs::create_directory(model);
  const auto fault = [&] {
    const Status status = check_model_directory(model);
    return status.ok() ? std::string() : status.message;
  };
  std::ofstream(model / "config.json") << "{}";
  fs::create_directory(model / "a_directory");
  fs::create_symlink(model / "config.json", model / "generation_config.json");
  EXPECT_EQ(fault(), "");
  fs::create_symlink("blobs/gone", model / "tokenizer.model");
  EXPECT_EQ(fault(),
            (model / "tokenizer.model").string() + " is a symbolic link to blobs/gone, which does not exist");
  fs::remove(model / "tokenizer.model");
  fs::create_directory(model / "chat_template.jinja");
  EXPECT_EQ(fault(), (model / "chat_template.jinja").string() + " is a directory, expected a file");
  fs::remove(model / "chat_template.jinja");
  ASSERT_EQ(::mkfifo((model / "model-00001-of-00002.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(fault(), (model / "model-00001-of-00002.safetensors").string() + " is a FIFO, expected a file");
}

}  // namespace
}  // namespace troupe::config
