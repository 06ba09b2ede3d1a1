#include "actors/tokenizer/text_main.h"

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "actors/engine/child_main.h"
#include "actors/engine/shared_vocabulary.h"
#include "actors/grammar/form_worker.h"
#include "actors/tokenizer/text_server.h"
#include "base/log.h"
#include "base/process_limits.h"
#include "model/checkpoint/spec.h"
#include "text/template/chat_template.h"

namespace troupe {
namespace {

using supervisor::Control;

constexpr auto kTextTick = std::chrono::milliseconds(20);
/// Of private memory, beside what the process has when it starts: a request of --max-body-bytes takes a small
/// part of it.
constexpr std::uint64_t kMostMemory = std::uint64_t{4} << 30;

/// A model without a chat template is refused by request, as the front has warned of it.
Result<Encoder> make_encoder(const config::Options& options, int vocabulary_fd) {
  const std::string& directory = options.model.directory;
  const auto spec = model::read_spec(directory, options.model.model_config_name);
  if (!spec.ok()) return spec.status();
  const auto shared = map_vocabulary(vocabulary_fd);
  auto tokenizer = Tokenizer::load(directory, options.model.tokenizer, shared.ok() ? *shared : nullptr);
  if (!tokenizer.ok()) return tokenizer.status();
  auto chat = ChatTemplate::load(directory, options.model.chat_template, options.model.tokenizer);
  if (!chat.ok() && chat.status().code != Code::not_found) return chat.status();
  std::optional<MediaTokens> media;
  if (spec->vision) media = MediaTokens{spec->vision->patch, spec->vision->video_patch};
  return Encoder(*tokenizer, chat.ok() ? *chat : nullptr,
                 bounds_of(**tokenizer, options.scheduler.model_len(spec->max_positions)), media);
}

Status serve_texts(const supervisor::ChildArguments& arguments, Control& control,
                   const config::Options& options) {
  if (arguments.link_step_fds.empty())
    return failure(Code::internal, "a text process needs a link to the front");
  limit_process(kMostMemory);
  const auto opened = Log::open("text-" + std::to_string(arguments.rank), options.log);
  const Log log = opened.ok() ? *opened : Log();
  auto encoder = make_encoder(options, arguments.vocabulary_fd);
  ::malloc_trim(0);  // reading a tokenizer.json takes many times what is kept of it
  if (!encoder.ok()) return encoder.status();
  auto attached = ipc::LowerEnd::attach(arguments.link_step_fds.front(), arguments.link_cache_fds.front());
  if (!attached.ok()) return attached.status();
  TextServer server(std::make_shared<Link>(*std::move(attached)), *std::move(encoder), TROUPE_VERSION, log);
  control.tell({{"event", "state"}, {"state", "ready"}});
  SilenceReport silence(control);
  do {
    server.beat();
    silence.tell(server.silent());
  } while (!asked_to_end(control.receive(Clock::now() + kTextTick)));
  return {};
}

}  // namespace

int text_main(const std::vector<std::string>& words) {
  const bool forms = std::find(words.begin(), words.end(), "--forms") != words.end();
  return forms ? form_main(words) : run_child("text", words, serve_texts);
}

}  // namespace troupe
