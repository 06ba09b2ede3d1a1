// What the answers look like, as the schemas of OpenAPI's components. tests/e2e/openapi_test.py holds answers
// of every kind against them, and no answer has a member that is not listed here.
#include "http/api/answer_schemas.h"

namespace troupe::http {

const char* const kAnswerSchemas = R"json({
"Error": {"type": "object", "additionalProperties": false, "required": ["error"], "properties": {"error": {
  "type": "object", "additionalProperties": false, "required": ["message", "type", "param", "code"], "properties": {
    "message": {"type": "string", "description": "one sentence: the field, its value, what is allowed"},
    "type": {"enum": ["invalid_request_error", "authentication_error", "rate_limit_error", "server_error",
      "timeout_error"]},
    "param": {"type": ["string", "null"], "description": "dotted path of the field"},
    "code": {"type": "string"}}}}},
"MessagesError": {"type": "object", "additionalProperties": false, "required": ["type", "error"], "properties": {
  "type": {"const": "error"},
  "error": {"type": "object", "additionalProperties": false, "required": ["type", "message"], "properties": {
    "type": {"enum": ["invalid_request_error", "authentication_error", "permission_error", "not_found_error",
      "request_too_large", "rate_limit_error", "api_error", "overloaded_error", "timeout_error"]},
    "message": {"type": "string"}}}}},

"Count": {"type": "integer", "minimum": 0},
"TokenIds": {"type": "array", "items": {"type": "integer", "minimum": 0}},
"Usage": {"type": "object", "additionalProperties": false,
  "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details",
    "completion_tokens_details"],
  "properties": {
    "prompt_tokens": {"$ref": "#/components/schemas/Count"},
    "completion_tokens": {"$ref": "#/components/schemas/Count"},
    "total_tokens": {"$ref": "#/components/schemas/Count"},
    "prompt_tokens_details": {"type": "object", "additionalProperties": false, "required": ["cached_tokens"],
      "properties": {"cached_tokens": {"$ref": "#/components/schemas/Count"},
        "image_tokens": {"$ref": "#/components/schemas/Count"},
        "video_tokens": {"$ref": "#/components/schemas/Count"}}},
    "completion_tokens_details": {"type": "object", "additionalProperties": false, "required": ["reasoning_tokens"],
      "properties": {"reasoning_tokens": {"$ref": "#/components/schemas/Count"}}}}},
"FinishReason": {"enum": ["stop", "length", "tool_calls", "function_call", "timeout", "abort", null]},
"FunctionCall": {"type": "object", "additionalProperties": false, "required": ["name", "arguments"], "properties": {
  "name": {"type": "string"}, "arguments": {"type": "string", "description": "JSON, as the model wrote it"}}},
"FunctionCallDelta": {"type": "object", "additionalProperties": false, "required": ["arguments"], "properties": {
  "name": {"type": "string"}, "arguments": {"type": "string", "description": "goes on with the fragment before it"}}},
"ToolCall": {"type": "object", "additionalProperties": false, "required": ["id", "type", "function"], "properties": {
  "id": {"type": "string"}, "type": {"const": "function"},
  "function": {"$ref": "#/components/schemas/FunctionCall"}}},
"ToolCallDelta": {"type": "object", "additionalProperties": false, "required": ["index", "function"], "properties": {
  "index": {"$ref": "#/components/schemas/Count"}, "id": {"type": "string"}, "type": {"const": "function"},
  "function": {"$ref": "#/components/schemas/FunctionCallDelta"}}},
"TokenBytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
"TokenScore": {"type": "object", "additionalProperties": false, "required": ["token", "logprob", "bytes"],
  "properties": {"token": {"type": "string"}, "logprob": {"type": "number"},
    "bytes": {"$ref": "#/components/schemas/TokenBytes"}}},
"ChatLogprobs": {"type": ["object", "null"], "additionalProperties": false, "required": ["content"],
  "properties": {"refusal": {"type": "null"}, "content": {"type": "array", "items": {"type": "object",
    "additionalProperties": false, "required": ["token", "logprob", "bytes", "top_logprobs"], "properties": {
      "token": {"type": "string"}, "logprob": {"type": ["number", "null"]},
      "bytes": {"$ref": "#/components/schemas/TokenBytes"},
      "top_logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/TokenScore"}}}}}}},
"CompletionLogprobs": {"type": ["object", "null"], "additionalProperties": false,
  "required": ["tokens", "token_logprobs", "top_logprobs", "text_offset"], "properties": {
    "tokens": {"type": "array", "items": {"type": "string"}},
    "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
    "top_logprobs": {"type": ["array", "null"], "items": {"type": ["object", "null"],
      "additionalProperties": {"type": "number"}}},
    "text_offset": {"type": "array", "items": {"$ref": "#/components/schemas/Count"}}}},
"PromptLogprobs": {"type": "array", "items": {"type": ["object", "null"], "additionalProperties": {"type": "object",
  "additionalProperties": false, "required": ["logprob", "rank", "decoded_token"], "properties": {
    "logprob": {"type": "number"}, "rank": {"type": ["integer", "null"]}, "decoded_token": {"type": "string"}}}}},

"Chat": {"type": "object", "additionalProperties": false,
  "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
    "id": {"type": "string"}, "object": {"const": "chat.completion"}, "created": {"type": "integer"},
    "model": {"type": "string"}, "usage": {"$ref": "#/components/schemas/Usage"},
    "choices": {"type": "array", "minItems": 1, "items": {"type": "object", "additionalProperties": false,
      "required": ["index", "message", "logprobs", "finish_reason"], "properties": {
        "index": {"$ref": "#/components/schemas/Count"}, "message": {"$ref": "#/components/schemas/ChatMessage"},
        "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
        "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"},
        "finish_reason": {"$ref": "#/components/schemas/FinishReason"}}}}}},
"ChatMessage": {"type": "object", "additionalProperties": false,
  "required": ["role", "content", "reasoning_content", "reasoning", "refusal"], "properties": {
    "role": {"const": "assistant"}, "content": {"type": ["string", "null"]},
    "reasoning_content": {"type": ["string", "null"]}, "reasoning": {"type": ["string", "null"]},
    "refusal": {"type": "null"},
    "tool_calls": {"type": ["array", "null"], "minItems": 1, "items": {"$ref": "#/components/schemas/ToolCall"}},
    "function_call": {"$ref": "#/components/schemas/FunctionCall"},
    "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
    "completion_token_ids": {"$ref": "#/components/schemas/TokenIds"}}},
"ChatChunk": {"description": "the data of an event; the last one is [DONE]", "type": "object",
  "additionalProperties": false, "required": ["id", "object", "created", "model", "choices"], "properties": {
    "id": {"type": "string"}, "object": {"const": "chat.completion.chunk"}, "created": {"type": "integer"},
    "model": {"type": "string"}, "usage": {"$ref": "#/components/schemas/Usage"},
    "choices": {"type": "array", "maxItems": 1, "items": {"type": "object", "additionalProperties": false,
      "required": ["index", "delta", "logprobs", "finish_reason"], "properties": {
        "index": {"$ref": "#/components/schemas/Count"},
        "delta": {"type": "object", "additionalProperties": false, "properties": {
          "role": {"const": "assistant"}, "content": {"type": "string"}, "reasoning_content": {"type": "string"},
          "reasoning": {"type": "string"},
          "tool_calls": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/ToolCallDelta"}},
          "function_call": {"$ref": "#/components/schemas/FunctionCallDelta"},
          "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
          "completion_token_ids": {"$ref": "#/components/schemas/TokenIds"}}},
        "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
        "finish_reason": {"$ref": "#/components/schemas/FinishReason"}}}}}},
"Completion": {"description": "also the data of an event of a stream, whose last one is [DONE]", "type": "object",
  "additionalProperties": false, "required": ["id", "object", "created", "model", "choices"], "properties": {
    "id": {"type": "string"}, "object": {"const": "text_completion"}, "created": {"type": "integer"},
    "model": {"type": "string"}, "usage": {"$ref": "#/components/schemas/Usage"},
    "choices": {"type": "array", "items": {"type": "object", "additionalProperties": false,
      "required": ["index", "text", "logprobs", "finish_reason"], "properties": {
        "index": {"$ref": "#/components/schemas/Count"}, "text": {"type": "string"},
        "prompt_token_ids": {"$ref": "#/components/schemas/TokenIds"},
        "completion_token_ids": {"$ref": "#/components/schemas/TokenIds"},
        "logprobs": {"$ref": "#/components/schemas/CompletionLogprobs"},
        "prompt_logprobs": {"$ref": "#/components/schemas/PromptLogprobs"},
        "finish_reason": {"$ref": "#/components/schemas/FinishReason"}}}}}},

"Response": {"type": "object", "additionalProperties": false,
  "required": ["id", "object", "created_at", "model", "temperature", "top_p", "background", "instructions",
    "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "previous_response_id",
    "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store", "text", "tool_choice", "tools",
    "top_logprobs", "truncation", "user", "status", "error", "incomplete_details", "output", "usage"],
  "properties": {
    "id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"},
    "model": {"type": "string"}, "temperature": {"type": "number"}, "top_p": {"type": "number"},
    "background": {"const": false}, "instructions": {"type": ["string", "null"]},
    "max_output_tokens": {"type": ["integer", "null"]}, "max_tool_calls": {"type": ["integer", "null"]},
    "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
    "parallel_tool_calls": {"type": "boolean"}, "previous_response_id": {"type": "null"},
    "prompt_cache_key": {"type": ["string", "null"]},
    "reasoning": {"type": "object", "additionalProperties": false, "required": ["effort", "summary"], "properties": {
      "effort": {"type": ["string", "null"]}, "summary": {"type": "null"}}},
    "safety_identifier": {"type": ["string", "null"]}, "service_tier": {"const": "default"}, "store": {"const": false},
    "text": {"type": "object", "additionalProperties": false, "required": ["format", "verbosity"], "properties": {
      "format": {"type": "object", "required": ["type"]}, "verbosity": {"type": "string"}}},
    "tool_choice": {"type": ["string", "object"]}, "tools": {"type": "array", "items": {"type": "object"}},
    "top_logprobs": {"const": 0}, "truncation": {"const": "disabled"}, "user": {"type": ["string", "null"]},
    "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
    "error": {"type": ["object", "null"], "additionalProperties": false, "required": ["code", "message"],
      "properties": {"code": {"enum": ["server_error", "rate_limit_exceeded"]}, "message": {"type": "string"}}},
    "incomplete_details": {"type": ["object", "null"], "additionalProperties": false, "required": ["reason"],
      "properties": {"reason": {"enum": ["max_output_tokens", "timeout"]}}},
    "output": {"type": "array", "items": {"$ref": "#/components/schemas/ResponseItem"}},
    "usage": {"type": ["object", "null"], "additionalProperties": false,
      "required": ["input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details", "total_tokens"],
      "properties": {
        "input_tokens": {"$ref": "#/components/schemas/Count"},
        "input_tokens_details": {"type": "object", "additionalProperties": false, "required": ["cached_tokens"],
          "properties": {"cached_tokens": {"$ref": "#/components/schemas/Count"}, "cache_write_tokens": {"const": 0},
            "image_tokens": {"$ref": "#/components/schemas/Count"},
            "video_tokens": {"$ref": "#/components/schemas/Count"}}},
        "output_tokens": {"$ref": "#/components/schemas/Count"},
        "output_tokens_details": {"type": "object", "additionalProperties": false, "required": ["reasoning_tokens"],
          "properties": {"reasoning_tokens": {"$ref": "#/components/schemas/Count"}}},
        "total_tokens": {"$ref": "#/components/schemas/Count"}}}}},
"ItemStatus": {"enum": ["in_progress", "completed", "incomplete"]},
"ResponseItem": {"anyOf": [
  {"type": "object", "additionalProperties": false, "required": ["id", "type", "role", "content", "status"],
    "properties": {"id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
      "status": {"$ref": "#/components/schemas/ItemStatus"},
      "content": {"type": "array", "items": {"$ref": "#/components/schemas/ResponseText"}}}},
  {"type": "object", "additionalProperties": false,
    "required": ["id", "type", "summary", "encrypted_content", "content", "status"],
    "properties": {"id": {"type": "string"}, "type": {"const": "reasoning"}, "encrypted_content": {"type": "null"},
      "status": {"$ref": "#/components/schemas/ItemStatus"}, "summary": {"type": "array", "maxItems": 0},
      "content": {"type": "array", "items": {"$ref": "#/components/schemas/ResponseText"}}}},
  {"type": "object", "additionalProperties": false,
    "required": ["id", "type", "call_id", "name", "arguments", "status"],
    "properties": {"id": {"type": "string"}, "type": {"const": "function_call"}, "call_id": {"type": "string"},
      "name": {"type": "string"}, "arguments": {"type": "string"},
      "status": {"$ref": "#/components/schemas/ItemStatus"}}}]},
"ResponseText": {"anyOf": [
  {"type": "object", "additionalProperties": false, "required": ["type", "text", "annotations", "logprobs"],
    "properties": {"type": {"const": "output_text"}, "text": {"type": "string"},
      "annotations": {"type": "array", "maxItems": 0}, "logprobs": {"type": "array", "maxItems": 0}}},
  {"type": "object", "additionalProperties": false, "required": ["type", "text"],
    "properties": {"type": {"const": "reasoning_text"}, "text": {"type": "string"}}}]},
"ResponseEvent": {"description": "the data of an event", "type": "object", "additionalProperties": false,
  "required": ["type", "sequence_number"], "properties": {
    "type": {"enum": ["response.created", "response.in_progress", "response.output_item.added",
      "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
      "response.output_text.delta", "response.output_text.done", "response.function_call_arguments.delta",
      "response.function_call_arguments.done", "response.content_part.done", "response.output_item.done",
      "response.completed", "response.incomplete", "response.failed", "error"]},
    "sequence_number": {"$ref": "#/components/schemas/Count"},
    "response": {"$ref": "#/components/schemas/Response"}, "item": {"$ref": "#/components/schemas/ResponseItem"},
    "part": {"$ref": "#/components/schemas/ResponseText"}, "item_id": {"type": "string"},
    "output_index": {"$ref": "#/components/schemas/Count"}, "content_index": {"const": 0},
    "delta": {"type": "string"}, "text": {"type": "string"}, "name": {"type": "string"},
    "arguments": {"type": "string"}, "logprobs": {"type": "array", "maxItems": 0},
    "code": {"type": ["string", "null"]}, "message": {"type": "string"}, "param": {"type": ["string", "null"]}}},

"Message": {"type": "object", "additionalProperties": false,
  "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"], "properties": {
    "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
    "model": {"type": "string"}, "usage": {"$ref": "#/components/schemas/MessageUsage"},
    "content": {"type": "array", "items": {"$ref": "#/components/schemas/MessageBlock"}},
    "stop_reason": {"$ref": "#/components/schemas/StopReason"}, "stop_sequence": {"type": ["string", "null"]}}},
"StopReason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", "timeout", null]},
"MessageUsage": {"type": "object", "additionalProperties": false,
  "required": ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens",
    "output_tokens_details"], "properties": {
    "input_tokens": {"$ref": "#/components/schemas/Count"}, "cache_creation_input_tokens": {"const": 0},
    "cache_read_input_tokens": {"$ref": "#/components/schemas/Count"},
    "output_tokens": {"$ref": "#/components/schemas/Count"},
    "output_tokens_details": {"type": "object", "additionalProperties": false, "required": ["thinking_tokens"],
      "properties": {"thinking_tokens": {"$ref": "#/components/schemas/Count"}}}}},
"MessageBlock": {"anyOf": [
  {"type": "object", "additionalProperties": false, "required": ["type", "thinking", "signature"],
    "properties": {"type": {"const": "thinking"}, "thinking": {"type": "string"}, "signature": {"const": ""}}},
  {"type": "object", "additionalProperties": false, "required": ["type", "text", "citations"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}, "citations": {"type": "null"}}},
  {"type": "object", "additionalProperties": false, "required": ["type", "id", "name", "input"],
    "properties": {"type": {"const": "tool_use"}, "id": {"type": "string"}, "name": {"type": "string"},
      "input": {"type": "object"}}}]},
"MessageEvent": {"description": "the data of an event", "type": "object", "additionalProperties": false,
  "required": ["type"], "properties": {
    "type": {"enum": ["message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop",
      "message_delta", "message_stop", "error"]},
    "message": {"$ref": "#/components/schemas/Message"}, "index": {"$ref": "#/components/schemas/Count"},
    "content_block": {"$ref": "#/components/schemas/MessageBlock"},
    "delta": {"anyOf": [
      {"type": "object", "additionalProperties": false, "required": ["type", "text"],
        "properties": {"type": {"const": "text_delta"}, "text": {"type": "string"}}},
      {"type": "object", "additionalProperties": false, "required": ["type", "thinking"],
        "properties": {"type": {"const": "thinking_delta"}, "thinking": {"type": "string"}}},
      {"type": "object", "additionalProperties": false, "required": ["type", "partial_json"],
        "properties": {"type": {"const": "input_json_delta"}, "partial_json": {"type": "string"}}},
      {"type": "object", "additionalProperties": false, "required": ["stop_reason", "stop_sequence"],
        "properties": {"stop_reason": {"$ref": "#/components/schemas/StopReason"},
          "stop_sequence": {"type": ["string", "null"]}}}]},
    "usage": {"$ref": "#/components/schemas/MessageUsage"},
    "error": {"type": "object", "required": ["type", "message"]}}},
"TokenCount": {"type": "object", "additionalProperties": false, "required": ["input_tokens"],
  "properties": {"input_tokens": {"$ref": "#/components/schemas/Count"}}},

"Model": {"type": "object", "additionalProperties": false,
  "required": ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"], "properties": {
    "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
    "owned_by": {"type": "string"}, "root": {"type": "string"}, "parent": {"type": "null"},
    "max_model_len": {"type": "integer", "minimum": 1}, "permission": {"type": "array", "maxItems": 0},
    "capabilities": {"type": "object", "additionalProperties": false, "properties": {"vision": {"const": true}},
      "description": "vision: messages may hold images and videos"}}},
"Models": {"type": "object", "additionalProperties": false, "required": ["object", "data"], "properties": {
  "object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"Tokens": {"type": "object", "additionalProperties": false, "required": ["count", "max_model_len", "tokens"],
  "properties": {"count": {"$ref": "#/components/schemas/Count"}, "max_model_len": {"type": "integer", "minimum": 1},
    "tokens": {"$ref": "#/components/schemas/TokenIds"},
    "token_strs": {"type": "array", "items": {"type": "string"}}}},
"Text": {"type": "object", "additionalProperties": false, "required": ["prompt"],
  "properties": {"prompt": {"type": "string"}}}
})json";

}  // namespace troupe::http
