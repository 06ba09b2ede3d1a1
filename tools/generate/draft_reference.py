"""ERNIE-4.5 with its draft layer (multi-token prediction) in plain PyTorch, to compare the server's logits with.

A position p has the token t(p) and the hidden row h(p), the output of the last layer. For i >= 1:

    u(i) = P [norm(E t(i); emb_norm) ; norm(h(i-1); hidden_norm)]
    v(i) = block(u(i)), a dense layer that attends to u(1) ... u(i), at the positions 1 ... i
    logits of token i + 1 = W norm(v(i); model.norm)

h is taken after model.norm. To draft further tokens the layer runs again: h(i) is then norm(v(i); model.norm), t(i + 1) the
drafted token. Two switches leave these norms out, as other implementations do: of h where `normed_hidden` is false, before W where
`normed_output` is. Computes in the dtype of the tensors. Models with experts compute their routers in fp32.
"""
import torch


def norm(x, weight, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(weight.dtype) * weight


def rotate(x, positions, theta):
    """x: [heads, tokens, head_dim]; neighbouring columns are a pair."""
    dim = x.shape[-1]
    angles = positions.float()[:, None] * theta ** (-torch.arange(0, dim, 2).float() / dim)[None, :]
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    out = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return out.flatten(-2).to(x.dtype)


class Model:
    """`tensors`: under -PT names, linears as [outputs, inputs]. `config`: config.json's keys."""

    def __init__(self, config, tensors, normed_hidden=True, normed_output=True):
        self.config, self.tensors = config, tensors
        self.normed_hidden, self.normed_output = normed_hidden, normed_output
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
        self.eps = config["rms_norm_eps"]

    def to(self, dtype):
        """The same model rounded to the dtype; routers keep theirs."""
        keep = ("mlp.gate.weight", "e_score_correction_bias")
        return Model(self.config, {k: t if k.endswith(keep) else t.to(dtype) for k, t in self.tensors.items()})

    def weight(self, name):
        return self.tensors[name + ".weight"]

    def linear(self, name, x):
        return x @ self.weight(name).T

    def split(self, x, heads):
        return x.view(-1, heads, self.head_dim).transpose(0, 1)

    def attention(self, at, x, positions, past=None):
        """Causal over the rows of x and all of `past`, (keys, values) of earlier rows. Returns the sum's addend, and the rows'
        own keys and values."""
        q = rotate(self.split(self.linear(at + "q_proj", x), self.heads), positions, self.theta)
        k = rotate(self.split(self.linear(at + "k_proj", x), self.kv_heads), positions, self.theta)
        v = self.split(self.linear(at + "v_proj", x), self.kv_heads)
        keys, values = (k, v) if past is None else (torch.cat((a, b), 1) for a, b in zip(past, (k, v), strict=True))
        group = self.heads // self.kv_heads
        scores = q.float() @ keys.repeat_interleave(group, 0).float().transpose(1, 2) * self.head_dim ** -0.5
        earlier = keys.shape[1] - x.shape[0]
        mask = torch.ones(scores.shape[1:], dtype=torch.bool).triu(earlier + 1)
        weights = scores.masked_fill(mask, float("-inf")).softmax(-1).to(x.dtype)
        out = (weights @ values.repeat_interleave(group, 0)).transpose(0, 1).reshape(x.shape[0], -1)
        return self.linear(at + "o_proj", out), (k, v)

    def mlp(self, at, x):
        gate, up = self.linear(at + "gate_proj", x), self.linear(at + "up_proj", x)
        return self.linear(at + "down_proj", torch.nn.functional.silu(gate) * up)

    def experts(self, at, x):
        scores = (x.float() @ self.weight(at + "gate").float().T).softmax(-1)
        bias = self.tensors[at + "moe_statics.e_score_correction_bias"].float().flatten()
        chosen = (scores + bias).topk(self.config["moe_k"], -1).indices
        weights = scores.gather(1, chosen)
        weights = (weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)).to(x.dtype)
        rows = [sum(w * self.mlp(f"{at}experts.{e}.", x[r:r + 1]) for e, w in zip(chosen[r].tolist(), weights[r], strict=True))
                for r in range(x.shape[0])]
        out = torch.cat(rows)
        return out + self.mlp(at + "shared_experts.", x) if self.config.get("moe_num_shared_experts") else out

    def layer(self, at, h, positions, past=None):
        """Returns the layer's output and its keys and values."""
        out, kept = self.attention(at + "self_attn.", norm(h, self.weight(at + "input_layernorm"), self.eps), positions, past)
        h = h + out
        x = norm(h, self.weight(at + "post_attention_layernorm"), self.eps)
        mixture = at + "mlp.gate.weight" in self.tensors
        return h + (self.experts if mixture else self.mlp)(at + "mlp.", x), kept

    def head(self, x):
        return x @ self.tensors.get("lm_head.weight", self.weight("model.embed_tokens")).T

    def final_norm(self, h):
        return norm(h, self.weight("model.norm"), self.eps)

    def as_hidden(self, h):
        return self.final_norm(h) if self.normed_hidden else h

    def draft_head(self, v):
        return self.head(self.final_norm(v) if self.normed_output else v)

    def hidden(self, ids):
        """[tokens, hidden]: the rows h."""
        h, positions = self.weight("model.embed_tokens")[ids], torch.arange(len(ids))
        for n in range(self.config["num_hidden_layers"]):
            h, _ = self.layer(f"model.layers.{n}.", h, positions)
        return self.as_hidden(h)

    def draft_input(self, ids, hidden):
        embedding = norm(self.weight("model.embed_tokens")[ids], self.weight("model.mtp_emb_norm.0"), self.eps)
        row = norm(hidden, self.weight("model.mtp_hidden_norm.0"), self.eps)
        return self.linear("model.mtp_linear_proj.0", torch.cat((embedding, row), -1))

    def draft(self, ids, hidden, chained=()):
        """Drafts from the rows 1 ... len(ids) - 1 of ids, whose hidden rows are 0 ... len(ids) - 2. Returns logits [n, vocab], and
        for each element of `chained`, tokens [n], the logits that follow when row i goes on with chained[...][i]."""
        block, count = "model.mtp_block.0.", len(ids) - 1
        out, (keys, values) = self.layer(block, self.draft_input(ids[1:], hidden[:count]), torch.arange(1, count + 1))
        logits = [self.draft_head(out)]
        rows = [self.as_hidden(out[i:i + 1]) for i in range(count)]
        past = [(keys[:, :i + 1], values[:, :i + 1]) for i in range(count)]
        for step, tokens in enumerate(chained):
            made = []
            for i in range(count):
                u = self.draft_input(tokens[i:i + 1], rows[i])
                v, (k, w) = self.layer(block, u, torch.tensor([i + 2 + step]), past[i])
                past[i] = (torch.cat((past[i][0], k), 1), torch.cat((past[i][1], w), 1))
                rows[i] = self.as_hidden(v)
                made.append(self.draft_head(v))
            logits.append(torch.cat(made))
        return logits
