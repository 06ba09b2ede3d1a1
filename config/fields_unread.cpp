// Flags of one server that nothing reads.
#include "config/fields.h"
#include "config/json_flags.h"

namespace troupe::config {
namespace {

using FieldList = std::vector<Field>;

FieldList http_fields() {
  return {
      {.name = "controller-port",
       .unread_default = -1,
       .help = "port of the /controller routes; negative: none",
       .min = -1,
       .max = 65535,
       .standing = Standing::refused,
       .reason = "there are no /controller routes"},
      {.name = "workers",
       .unread_default = 1,
       .help = "HTTP worker processes",
       .min = 1,
       .max = 1024,
       .standing = Standing::harmless,
       .reason = "one process serves HTTP; --io-threads sets its threads"},
      {.name = "max-waiting-time",
       .unread_default = -1,
       .help = "wait for an internal connection slot",
       .unit = "seconds",
       .min = -1,
       .max = 1 << 30,
       .standing = Standing::harmless,
       .reason = "there are no connection slots; a full queue answers 429 at once"},
      {.name = "timeout",
       .unread_default = 0,
       .help = "silence after which an HTTP worker process is killed",
       .unit = "seconds",
       .min = 0,
       .max = 1 << 30,
       .standing = Standing::harmless,
       .reason = "there are no HTTP worker processes"},
      {.name = "timeout-graceful-shutdown",
       .unread_default = 0,
       .help = "grace period of HTTP worker processes",
       .unit = "seconds",
       .min = 0,
       .max = 1 << 30,
       .standing = Standing::harmless,
       .reason = "--drain-timeout says how long running requests may finish"},
      {.name = "enable-mm-output",
       .unread_default = false,
       .help = "answers in multimodal_content",
       .standing = Standing::refused,
       .reason = "answers come in content only"},
  };
}

FieldList answer_fields() {
  return {
      {.name = "tool-parser-plugin",
       .unread_default = std::string(),
       .help = "module with a tool parser",
       .standing = Standing::refused,
       .reason = "Python modules cannot be loaded"},
      {.name = "logits-processors",
       .unread_default = std::vector<std::string>{},
       .help = "classes that change logits, in order",
       .standing = Standing::refused,
       .reason = "no logits processor besides the request fields is offered"},
      {.name = "enable-logprob",
       .unread_default = true,
       .help = "requests may ask for logprobs",
       .standing = Standing::harmless,
       .reason = "logprobs are always available"},
      {.name = "logprobs-mode",
       .unread_default = std::string("raw_logprobs"),
       .help = "what logprobs are taken from",
       .allowed = {"raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"},
       .standing = Standing::refused,
       .reason = "logprobs are those of the model before any processor"},
      {.name = "enable-keep-sampling-mask",
       .unread_default = false,
       .help = "tell which tokens top-p and top-k kept",
       .standing = Standing::refused,
       .reason = "answers have no sampling_mask"},
      {.name = "enable-entropy",
       .unread_default = false,
       .help = "tell the entropy of each token",
       .standing = Standing::refused,
       .reason = "answers have no entropy"},
      {.name = "enable-early-stop",
       .unread_default = false,
       .help = "end answers that repeat themselves",
       .standing = Standing::refused,
       .reason = "repetition does not end an answer"},
      {.name = "early-stop-config",
       .unread_default = JsonObject{},
       .help = "window and threshold of --enable-early-stop",
       .standing = Standing::refused,
       .reason = "repetition does not end an answer",
       .check = check_early_stop_config},
      {.name = "task",
       .unread_default = std::string("generate"),
       .help = "what the model is for",
       .allowed = {"generate", "embed", "embedding", "encode", "classify", "score", "reward"},
       .standing = Standing::refused,
       .reason = "only generation is offered"},
      {.name = "runner",
       .unread_default = std::string("auto"),
       .help = "what kind of model this is",
       .allowed = {"auto", "generate", "pooling", "draft"},
       .standing = Standing::refused,
       .reason = "only generation is offered",
       .also_fine = {"generate"}},
      {.name = "convert",
       .unread_default = std::string("auto"),
       .help = "adapter that makes a pooling model",
       .allowed = {"auto", "none", "embed", "classify", "reward"},
       .standing = Standing::refused,
       .reason = "only generation is offered",
       .also_fine = {"none"}},
      {.name = "override-pooler-config",
       .unread_default = JsonObject{},
       .help = "settings of a pooling model",
       .standing = Standing::refused,
       .reason = "only generation is offered",
       .check = check_pooler_config},
  };
}

FieldList numeric_fields() {
  return {
      {.name = "lm-head-fp32",
       .unread_default = false,
       .help = "LM head in fp32",
       .standing = Standing::refused,
       .reason = "the LM head is stored in --dtype; --dtype float32 makes all of it fp32"},
      {.name = "graph-optimization-config",
       .unread_default = JsonObject{},
       .help = "CUDA graphs",
       .standing = Standing::harmless,
       .reason = "which steps are captured is decided by the device",
       .check = check_graph_optimization_config},
      {.name = "use-cudagraph",
       .unread_default = true,
       .help = "run decode steps as CUDA graphs",
       .standing = Standing::harmless,
       .reason = "CUDA graphs are a matter of the device"},
      {.name = "plas-attention-config",
       .unread_default = JsonObject{},
       .help = "sparse attention",
       .standing = Standing::refused,
       .reason = "attention is dense",
       .check = check_plas_attention_config},
      {.name = "model-impl",
       .unread_default = std::string("auto"),
       .help = "which implementation of the model",
       .allowed = {"auto", "fastdeploy", "paddleformers"},
       .standing = Standing::harmless,
       .reason = "there is one implementation"},
      {.name = "use-warmup",
       .unread_default = 0,
       .help = "warm up before serving",
       .min = 0,
       .max = 1,
       .standing = Standing::harmless,
       .reason = "the start always warms up what needs it"},
      {.name = "enable-overlap-schedule",
       .unread_default = true,
       .help = "plan the next step while one runs",
       .standing = Standing::harmless,
       .reason = "it is always on"},
      {.name = "enable-chunked-prefill",
       .unread_default = true,
       .help = "cut long prompts into chunks",
       .standing = Standing::harmless,
       .reason = "it is always on; --max-num-batched-tokens sets the chunk"},
  };
}

FieldList unread_media_fields() {
  return {
      {.name = "enable-mm",
       .unread_default = false,
       .help = "the model is a vision-language model",
       .standing = Standing::harmless,
       .reason = "it follows from the model"},
      {.name = "disable-chunked-mm-input",
       .unread_default = false,
       .help = "never split an image over two steps",
       .standing = Standing::harmless,
       .reason = "answers do not depend on where a prompt is split"},
      {.name = "tokenizer-base-url",
       .unread_default = std::string(),
       .help = "remote tokenizer",
       .standing = Standing::refused,
       .reason = "the tokenizer runs in the server"},
  };
}

}  // namespace

std::vector<Field> unread_fields() {
  FieldList all;
  const auto add = [&all](std::string_view group, FieldList part) {
    for (Field& field : part) {
      field.group = group;
      all.push_back(std::move(field));
    }
  };
  add("HTTP, accepted for compatibility", http_fields());
  add("Parsers and answers", answer_fields());
  add("Numerics and speed", numeric_fields());
  add("Media", unread_media_fields());
  return all;
}

}  // namespace troupe::config
