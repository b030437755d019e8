"""Where a critic's or a verifier's calls go: any OpenAI-compatible server, or two models one after the other
(judging/local.py: a transformers model in this process, and what a critic's calls are).

A backend has `identity` (what its replies depend on; part of the cache key), `stochastic` (does a seed matter?) and
`run(calls)`, which yields (place, Reply or Missing) as calls finish. It never invents a score: what cannot be read is
Missing, with its reason, and the tokens that it cost all the same.

Two ways to the distribution of a score letter:
    prefill   the model analyses, its text is cut at the first score tag, the tag is put in its mouth, one token is
              asked for, unconstrained (LocalBackend; servers that continue an assistant message: llama.cpp, vLLM, SGLang)
    sampled   the model writes its tags itself; the distribution is that of the token after the *last* one
"""

import base64
import io
import json
import os
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace

import openai
import tenacity

import rewards
from judging.calls import Missing, Reply, Tokens
from judging.score_tokens import NoScoreToken, after_last_tag, between, closing, cut, opening
from judging.server_reply import FaultyReply, ServerReply, bound, said, usage_of
from judging.verdicts import verdict_probability

TOP = 20  # what the OpenAI API gives at most
HALTING = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)  # every call would meet them


def data_url(image):
    """A PIL image as a PNG data URL."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def server_messages(messages, images):
    """Chat messages for a server: image places become data URLs, text alone becomes a plain string."""
    shown, made = iter(images), []
    for message in messages:
        blocks = [
            {"type": "image_url", "image_url": {"url": data_url(next(shown))}} if block["type"] == "image" else block
            for block in message["content"]
        ]
        plain = all(block["type"] == "text" for block in blocks)
        content = "\n".join(block["text"] for block in blocks) if plain else blocks
        made.append({"role": message["role"], "content": content})
    return made


class ServerBackend:
    """An OpenAI-compatible server.

    route: "prefill" where it continues an assistant message, "sampled" where it gives log-probabilities only of what
    it writes itself, "text" where it gives none (then only as the writer of a TwoStage).
    The openai client retries 429, 408, 409, 5xx, time-outs and broken connections, with backoff and Retry-After; a
    faulty body is asked for again as often. `timeout` is seconds without an answer. `extra_body` goes along with
    every request (for example {"chat_template_kwargs": {"enable_thinking": False}}).
    """

    PREFILL = {"add_generation_prompt": False, "continue_final_message": True}  # vLLM, SGLang; llama.cpp does it unasked

    def __init__(
        self, base_url, model, api_key=None, route="prefill", analysis_tokens=512, temperature=1.0, concurrency=8,
        timeout=120.0, retries=4, backoff=0.5, extra_body=None,
    ):  # fmt: skip
        if route not in ("prefill", "sampled", "text"):
            raise ValueError(f"route must be 'prefill', 'sampled' or 'text', got {route!r}")
        if analysis_tokens < 0 or (analysis_tokens == 0 and route != "prefill"):
            raise ValueError(f"analysis_tokens must be positive (0 only on the prefill route), got {analysis_tokens}")
        if concurrency < 1 or retries < 0 or not model:
            raise ValueError(f"needs concurrency >= 1, retries >= 0 and a model name, got {concurrency}, {retries}, {model!r}")
        key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
        http = openai.DefaultHttpxClient(event_hooks={"response": [bound]})
        plain = {"Accept-Encoding": "identity"}
        self.client = openai.OpenAI(
            base_url=base_url, api_key=key, timeout=timeout, max_retries=retries, http_client=http, default_headers=plain
        )
        self.model, self.route, self.analysis_tokens, self.temperature = model, route, analysis_tokens, temperature
        self.concurrency = concurrency
        self.extra_body = extra_body or {}
        self.pool = ThreadPoolExecutor(concurrency, "verifier")  # one pool, so the limit holds for callers in threads too
        self.retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(FaultyReply), stop=tenacity.stop_after_attempt(retries + 1),
            wait=tenacity.wait_exponential_jitter(backoff, 8.0, jitter=backoff), reraise=True,
        )  # fmt: skip
        self.stochastic = temperature > 0 and analysis_tokens > 0
        self.identity = {"server": model, "route": route, "analysis_tokens": analysis_tokens, "temperature": temperature}
        self.identity["extra"] = self.extra_body

    def run(self, calls, method=None):
        """Yield (place, Reply or Missing), so ordered that the server's prefix cache serves.

        A group's first call goes ahead and the others follow at once, before the next group begins. Groups go in the
        order of their prompts' texts, so that neighbours share most. Raises openai's error where every call would fail
        alike: a wrong key, a model or address that does not exist.
        """
        behind = {}
        for i in sorted(range(len(calls)), key=lambda i: (calls[i].image_shas, json.dumps(calls[i].messages), i)):
            behind.setdefault(calls[i].group, deque()).append(i)
        ahead, ready, under_way = deque(group.popleft() for group in behind.values()), deque(), {}
        try:
            while ahead or ready or under_way:
                while (ready or ahead) and len(under_way) < self.concurrency:
                    i = (ready or ahead).popleft()
                    under_way[self.pool.submit(self._answer, calls[i], method or self._ask)] = i
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    i = under_way.pop(future)
                    ready.extend(behind.pop(calls[i].group, ()))
                    yield i, future.result()
        finally:
            for future in under_way:
                future.cancel()

    def write(self, calls):
        """Yield (place, Reply with the analysis and no readings, or Missing)."""
        return self.run(calls, self._written)

    def _answer(self, call, method):
        spent = []
        try:
            text, readings = method(call, spent)
        except (NoScoreToken, FaultyReply) as error:
            return Missing(str(error), sum(spent, Tokens()))
        except openai.APIError as error:
            if isinstance(error, HALTING):
                raise
            what = f"HTTP {error.status_code}" if isinstance(error, openai.APIStatusError) else str(error).rstrip(".")
            why = said(error.body) or " ".join(str(error.__cause__ or "").split())[:200]
            return Missing(f"{what}: {why}" if why else what, sum(spent, Tokens()))
        return Reply(text, readings, sum(spent, Tokens()))

    def _ask(self, call, spent):
        if call.scale is None:
            return self._critique(call, spent)
        if self.route == "text":
            raise ValueError("route 'text' gives no log-probabilities: make it the writer of a TwoStage")
        messages = server_messages(call.messages, call.images)
        return self._sampled(call, messages, spent) if self.route == "sampled" else self._prefilled(call, messages, spent)

    def _request(self, messages, spent, extra_body=None, logprobs=False, **fields):
        """One ServerReply; appends what each try cost to `spent`."""
        fields |= {"logprobs": True, "top_logprobs": TOP} if logprobs else {}
        for attempt in self.retrying:
            with attempt:
                raw = self.client.chat.completions.with_raw_response.create(
                    model=self.model, messages=messages, extra_body={**(extra_body or {}), **self.extra_body}, **fields
                )
                try:
                    body = json.loads(raw.text)
                except ValueError as error:
                    raise FaultyReply("the body is not JSON; was it cut?") from error
                spent.append(usage_of(body))
                reply, most = ServerReply.parse(body, logprobs), fields["max_tokens"]
                if reply.finish == "length" and most > 1 and not reply.content.strip():  # at 1 a letter's place is asked for
                    thought = f"{len(reply.reasoning)} characters of reasoning and no answer"
                    raise NoScoreToken(f"cut off at {most} tokens, {thought}; allow more tokens, or switch its thinking off")
                return reply

    def _sampling(self, call):
        seed = {} if call.seed is None else {"seed": call.seed}
        return {"max_tokens": self.analysis_tokens, "temperature": self.temperature, **seed}

    def _written(self, call, spent):
        """The analysis up to the first score tag, reasoning included; a call without tags asks for an answer, and gets that."""
        stop = {"stop": [call.tags[0]]} if self.route == "prefill" else {}
        messages = server_messages(call.messages, call.images)
        reply = self._request(messages, spent, **self._sampling(call), **stop)
        if not call.tags:
            return reply.answer(), []
        return "\n".join(filter(None, (cut(text, call.tags) for text in (reply.reasoning, reply.content)))), []

    def _critique(self, call, spent):
        """A critic's text after its `analysis`, and the probability of its verdict."""
        messages, fields = server_messages(call.messages, call.images), {"stop": list(call.tags)} if call.tags else {}
        if call.analysis:
            messages.append({"role": "assistant", "content": call.analysis})
            fields["extra_body"] = self.PREFILL
        reply = self._request(messages, spent, logprobs=True, **fields, **self._sampling(call))
        forced, joined = call.analysis or "", "".join(token for token, _ in reply.entries)
        content = reply.content.removeprefix(forced)
        # a server that takes <think> for its own reasoning cuts it out of the content, not out of the tokens
        text = rewards.END_TOKEN.sub("", joined) if content.strip() in joined else content
        if call.tags and reply.finish == "stop" and call.tags[0] not in text:
            text += call.tags[0]
        return text, [verdict_probability(forced, reply.entries)]

    def _prefilled(self, call, messages, spent):
        text = call.analysis
        if text is None:
            text = self._written(call, spent)[0] if self.analysis_tokens else ""
        turn, readings = text + opening(text, call.tags[0]), []
        for tag, following in zip(call.tags, (*call.tags[1:], None)):
            said = [*messages, {"role": "assistant", "content": turn}]
            reply = self._request(said, spent, self.PREFILL, logprobs=True, max_tokens=1, temperature=1.0)
            readings.append(reply.entries[0][1])
            if following:
                turn += between(call.scale.best_letter(readings[-1]), tag, following)
        return text, readings

    def _sampled(self, call, messages, spent):
        reply = self._request(messages, spent, logprobs=True, **self._sampling(call))
        text = reply.answer()
        if not text.strip():
            raise NoScoreToken(f"no answer (finish_reason {reply.finish!r}, reasoning of {len(reply.reasoning)} characters)")
        if reply.finish == "length" and not text.rstrip().endswith(closing(call.tags[-1])):
            raise NoScoreToken(f"cut off at {self.analysis_tokens} tokens; raise analysis_tokens")
        readings = [after_last_tag(reply.entries, text, tag, call.scale) for tag in call.tags]
        return cut(text, call.tags), readings


class TwoStage:
    """A writer without log-probabilities analyses, an open reader is read at the score tokens after that analysis.

    `writer` is a ServerBackend (route "text"), `reader` a LocalBackend or a ServerBackend on the prefill route.
    """

    CHUNK = 16  # calls that a kill can lose between the stages

    def __init__(self, writer, reader):
        if getattr(reader, "route", "prefill") != "prefill":
            raise ValueError(f"the reader has to be on the prefill route, not {reader.route!r}")
        self.writer, self.reader, self.stochastic = writer, reader, writer.stochastic
        self.identity = {"writer": writer.identity, "reader": reader.identity}

    def run(self, calls):
        """Yield (place, Reply or Missing), tokens of both stages together."""
        for start in range(0, len(calls), self.CHUNK):
            written = {}
            for place, reply in self.writer.write(calls[start : start + self.CHUNK]):
                if isinstance(reply, Missing):
                    yield start + place, reply
                else:
                    written[start + place] = reply
            places = sorted(written)
            for i, reply in self.reader.run([replace(calls[p], analysis=written[p].text) for p in places]):
                yield places[i], replace(reply, tokens=reply.tokens + written[places[i]].tokens)
