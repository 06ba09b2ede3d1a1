"""Bodies that schemathesis makes up name a model that is served and ask for few tokens: the rest is what is tested."""
import schemathesis

MOST = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8, "min_tokens": 8, "n": 2, "best_of": 2}
LIMIT_OF = {"/v1/chat/completions": "max_tokens", "/v1/completions": "max_tokens", "/v1/responses": "max_output_tokens"}


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict):
        if isinstance(body.get("model"), str):
            body["model"] = "default"
        if limit := LIMIT_OF.get(context.operation.path):
            body.setdefault(limit, MOST[limit])
        for name, most in MOST.items():
            if isinstance(body.get(name), int) and body[name] > most:
                body[name] = most
    return body
