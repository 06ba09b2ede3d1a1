#include "http/api/request_schemas.h"

namespace troupe::http {

const char* const kRequestSchemas = R"json({
"Strings": {"type": "array", "items": {"type": "string", "minLength": 1}},
"Stop": {"anyOf": [{"type": "string", "minLength": 1}, {"$ref": "#/components/schemas/Strings"}]},
"LogitBias": {"type": "object", "propertyNames": {"pattern": "^[0-9]+$"},
  "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
"Metadata": {"type": "object", "maxProperties": 16, "additionalProperties": {"type": "string"}},
"Effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"]},
"StreamOptions": {"type": "object", "properties": {
  "include_usage": {"type": "boolean"}, "continuous_usage_stats": {"type": "boolean"}}},
"Prompt": {"anyOf": [{"type": "string", "minLength": 1},
  {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}]},
"Prompts": {"anyOf": [{"$ref": "#/components/schemas/Prompt"},
  {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Prompt"}}]},
"EmbeddingInput": {"anyOf": [{"$ref": "#/components/schemas/Prompt"},
  {"type": "array", "minItems": 1, "maxItems": 2048, "items": {"$ref": "#/components/schemas/Prompt"}}]},
"PromptText": {"type": "string"},
"Schema": {"type": "object", "description": "a JSON schema"},
"ResponseFormat": {"anyOf": [
  {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
  {"type": "object", "required": ["type", "json_schema"], "properties": {"type": {"const": "json_schema"},
    "json_schema": {"type": "object", "required": ["schema"], "properties": {"name": {"type": "string"},
      "schema": {"$ref": "#/components/schemas/Schema"}, "strict": {"type": ["boolean", "null"]}}}}},
  {"type": "object", "required": ["type", "format"], "properties": {"type": {"const": "structural_tag"},
    "format": {"type": "object"}}}]},

"TextPart": {"type": "object", "required": ["type", "text"], "properties": {
  "type": {"const": "text"}, "text": {"type": "string"}}},
"Content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1,
  "items": {"$ref": "#/components/schemas/TextPart"}}]},
"UserContent": {"$ref": "#/components/schemas/Content"},
"UserBlock": {"$ref": "#/components/schemas/TextPart"},
"UserInput": {"type": "string"},
"ReplayedCall": {"type": "object", "required": ["function"], "properties": {"id": {"type": "string"},
  "type": {"const": "function"}, "function": {"type": "object", "required": ["name", "arguments"], "properties": {
    "name": {"$ref": "#/components/schemas/FunctionName"},
    "arguments": {"type": "string", "description": "a JSON object, as text"}}}}},
"ChatMessages": {"type": "array", "minItems": 1, "items": {"anyOf": [
  {"type": "object", "required": ["role", "content"], "properties": {
    "role": {"enum": ["system", "user"]}, "content": {"$ref": "#/components/schemas/UserContent"}}},
  {"type": "object", "required": ["role", "content"], "properties": {
    "role": {"const": "assistant"}, "content": {"$ref": "#/components/schemas/Content"},
    "reasoning_content": {"type": ["string", "null"]},
    "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ReplayedCall"}}}},
  {"type": "object", "required": ["role", "content", "tool_call_id"], "properties": {"role": {"const": "tool"},
    "tool_call_id": {"type": "string"}, "content": {"$ref": "#/components/schemas/UserContent"}}}]}},
"FunctionName": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"},
"Function": {"type": "object", "required": ["name"], "properties": {
  "name": {"$ref": "#/components/schemas/FunctionName"}, "description": {"type": "string"},
  "parameters": {"$ref": "#/components/schemas/Schema"}, "strict": {"type": ["boolean", "null"]}}},
"ChatTools": {"type": "array", "items": {"type": "object", "required": ["type", "function"], "properties": {
  "type": {"const": "function"}, "function": {"$ref": "#/components/schemas/Function"}}}},
"ChatToolChoice": {"anyOf": [{"enum": ["none", "auto", "required"]},
  {"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"},
    "function": {"type": "object", "required": ["name"], "properties": {
      "name": {"$ref": "#/components/schemas/FunctionName"}}}}}]},

"ResponseTools": {"type": "array", "items": {"type": "object", "required": ["type", "name"], "properties": {
  "type": {"const": "function"}, "name": {"$ref": "#/components/schemas/FunctionName"},
  "description": {"type": ["string", "null"]}, "parameters": {"$ref": "#/components/schemas/Schema"},
  "strict": {"type": ["boolean", "null"]}}}},
"ResponseInput": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": {"anyOf": [
  {"type": "object", "required": ["role", "content"], "properties": {"type": {"const": "message"},
    "role": {"enum": ["user", "system", "developer"]}, "content": {"$ref": "#/components/schemas/UserInput"}}},
  {"type": "object", "required": ["role", "content"], "properties": {"type": {"const": "message"},
    "role": {"const": "assistant"}, "content": {"type": "string"}}},
  {"type": "object", "required": ["type", "call_id", "name", "arguments"], "properties": {
    "type": {"const": "function_call"}, "call_id": {"type": "string"},
    "name": {"$ref": "#/components/schemas/FunctionName"},
    "arguments": {"type": "string", "description": "a JSON object, as text"}}},
  {"type": "object", "required": ["type", "call_id", "output"], "properties": {
    "type": {"const": "function_call_output"}, "call_id": {"type": "string"},
    "output": {"$ref": "#/components/schemas/UserInput"}}}]}}]},

"SystemText": {"$ref": "#/components/schemas/Content"},
"MessageTools": {"type": "array", "items": {"type": "object", "required": ["name", "input_schema"], "properties": {
  "type": {"const": "custom"}, "name": {"$ref": "#/components/schemas/FunctionName"},
  "description": {"type": "string"}, "input_schema": {"$ref": "#/components/schemas/Schema"},
  "strict": {"type": "boolean"}}}},
"MessageTurns": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role", "content"],
  "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": {"anyOf": [{"type": "string"},
    {"type": "array", "items": {"anyOf": [{"$ref": "#/components/schemas/UserBlock"},
      {"type": "object", "required": ["type", "tool_use_id"], "properties": {"type": {"const": "tool_result"},
        "tool_use_id": {"type": "string"}, "content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1,
          "items": {"$ref": "#/components/schemas/UserBlock"}}]}}},
      {"type": "object", "required": ["type", "id", "name", "input"], "properties": {"type": {"const": "tool_use"},
        "id": {"type": "string"}, "name": {"$ref": "#/components/schemas/FunctionName"},
        "input": {"type": "object"}}},
      {"type": "object", "required": ["type", "thinking"], "properties": {"type": {"const": "thinking"},
        "thinking": {"type": "string"}}}]}}]}}}}
})json";

const char* const kVisualRequestSchemas = R"json({
"Picture": {"type": "string", "minLength": 1,
  "description": "data:TYPE;base64,DATA, base64 alone, or a URL where the server fetches them"},
"Detail": {"enum": ["auto", "high", "low"], "description": "low: at most 512 x 512 pixels"},
"ImagePart": {"type": "object", "required": ["type", "image_url"], "properties": {"type": {"const": "image_url"},
  "uuid": {"type": "string", "minLength": 1, "maxLength": 256},
  "image_url": {"anyOf": [{"$ref": "#/components/schemas/Picture"},
    {"type": "object", "required": ["url"], "properties": {"url": {"$ref": "#/components/schemas/Picture"},
      "detail": {"$ref": "#/components/schemas/Detail"}}}]}}},
"VideoPart": {"type": "object", "required": ["type", "video_url"], "properties": {"type": {"const": "video_url"},
  "uuid": {"type": "string", "minLength": 1, "maxLength": 256},
  "fps": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000},
  "frames_sample": {"enum": ["leading", "middle"]},
  "video_url": {"anyOf": [{"$ref": "#/components/schemas/Picture"},
    {"type": "object", "required": ["url"], "properties": {"url": {"$ref": "#/components/schemas/Picture"}}}]}}},
"UserContent": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"anyOf": [
  {"$ref": "#/components/schemas/TextPart"}, {"$ref": "#/components/schemas/ImagePart"},
  {"$ref": "#/components/schemas/VideoPart"}]}}]},
"UserBlock": {"anyOf": [{"$ref": "#/components/schemas/TextPart"},
  {"type": "object", "required": ["type", "source"], "properties": {"type": {"const": "image"}, "source": {"anyOf": [
    {"type": "object", "required": ["type", "data"], "properties": {"type": {"const": "base64"},
      "media_type": {"type": "string"}, "data": {"type": "string", "minLength": 1}}},
    {"type": "object", "required": ["type", "url"], "properties": {"type": {"const": "url"},
      "url": {"type": "string", "minLength": 1}}}]}}}]},
"UserInput": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"anyOf": [
  {"type": "object", "required": ["type", "text"], "properties": {"type": {"const": "input_text"},
    "text": {"type": "string"}}},
  {"type": "object", "required": ["type", "image_url"], "properties": {"type": {"const": "input_image"},
    "image_url": {"$ref": "#/components/schemas/Picture"}, "detail": {"$ref": "#/components/schemas/Detail"}}},
  {"$ref": "#/components/schemas/VideoPart"}]}}]}
})json";

}  // namespace troupe::http
