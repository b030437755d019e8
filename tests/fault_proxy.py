"""A proxy that spoils replies, in front of a real server or of a stub in this process; loopback only.

    with FaultProxy(upstream, choose) as proxy: OpenAI(base_url=proxy.url)

`upstream` is a URL, or a function from a request's JSON to a reply's; `choose(request)` names a fault of FAULTS or
returns None for a good reply. `proxy.log` holds (request, fault) of every request.
"""

import asyncio
import copy
import json
import math
import threading
import urllib.request

STALL = 30.0  # seconds; clients give up long before


def entry(token, top=()):
    """One place of a reply's log-probabilities."""
    return {"token": token, "logprob": -0.1, "bytes": None, "top_logprobs": [{"token": t, "logprob": p} for t, p in top]}


def reply(places, content=None, reasoning=None, finish="stop", usage=(100, 80, 20)):
    """A chat completion of (token, [(token, log-probability), ...]) places; content None: the joined tokens."""
    content = "".join(token for token, _ in places) if content is None else content
    message = {"role": "assistant", "content": content} | ({"reasoning_content": reasoning} if reasoning else {})
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": {"content": [entry(*p) for p in places]}}
    tokens = {"prompt_tokens": usage[0], "prompt_tokens_details": {"cached_tokens": usage[1]}, "completion_tokens": usage[2]}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": tokens}


def of_choice(change):
    """A fault that changes the reply's only choice in place."""

    def fault(body):
        change(body["choices"][0])
        return json.dumps(body)

    return fault


def each_top(choice, change):
    for place in choice["logprobs"]["content"]:
        place["top_logprobs"] = change(place["top_logprobs"])


def answer(choice, letter_a, letter_b):
    """Let the model answer these at the two tags, with no letter of the scale among the alternatives."""
    words = ["Analysis.\n", "<score_A>", letter_a, " </score_A>\n", "<score_B>", letter_b, " </score_B>"]
    choice["message"]["content"] = "".join(words)
    choice["logprobs"]["content"] = [entry(word, [(word, -0.1), (" 7", -3.0), (" none", -4.0), ("", -5.0)]) for word in words]


def stop_in_reasoning(choice):
    """The budget ends in the reasoning, which had just quoted the form that it was asked for."""
    quoted = "I shall end with <score_A> B </score_A>\n<score_B> C </score_B> but first"
    choice["message"] |= {"content": None, "reasoning_content": quoted}
    words = ["I shall end with ", "<score_A>", " B", " </score_A>\n", "<score_B>", " C", " </score_B>", " but first"]
    choice["logprobs"]["content"] = [entry(word, [(" B", -0.2), (" C", -2.0)]) for word in words]
    choice["finish_reason"] = "length"


def stop_in_analysis(choice):
    """The same in the content, no reasoning field."""
    stop_in_reasoning(choice)
    choice["message"]["content"] = choice["message"].pop("reasoning_content")


def lose_second_tag(choice):
    text = choice["message"]["content"]
    choice["message"]["content"] = text[: text.rindex("<score_B>")]
    choice["logprobs"]["content"] = choice["logprobs"]["content"][:-3]


# name: (HTTP status, function from the good reply to the body); status 0 stalls, -1 hangs up, -2 promises more than it sends
FAULTS = {
    "429": (429, lambda body: '{"error": {"message": "slow down"}}'),
    "500": (500, lambda body: '{"error": {"message": "oops"}}'),
    "503 of a gateway": (503, lambda body: "<html>Bad gateway</html>"),
    "time-out": (0, lambda body: ""),
    "hang-up": (-1, lambda body: ""),
    "cut on the wire": (-2, lambda body: json.dumps(body)),
    "cut JSON": (200, lambda body: json.dumps(body)[: len(json.dumps(body)) // 2]),
    "not JSON": (200, lambda body: "<html>welcome</html>"),
    "an error with status 200": (200, lambda body: '{"error": {"message": "overloaded"}}'),
    "a list": (200, lambda body: json.dumps([body])),
    "no choices": (200, lambda body: json.dumps(body | {"choices": []})),
    "choices null": (200, lambda body: json.dumps(body | {"choices": None})),
    "two choices": (200, lambda body: json.dumps(body | {"choices": body["choices"] * 2})),
    "message null": (200, of_choice(lambda choice: choice.update(message=None))),
    "logprobs missing": (200, of_choice(lambda choice: choice.pop("logprobs"))),
    "logprobs null": (200, of_choice(lambda choice: choice.update(logprobs=None))),
    "logprobs empty": (200, of_choice(lambda choice: choice.update(logprobs={"content": []}))),
    "logprobs of another shape": (200, of_choice(lambda choice: choice.update(logprobs={"tokens": ["A"], "top": [0.0]}))),
    "top_logprobs null": (200, of_choice(lambda choice: each_top(choice, lambda top: None))),
    "top_logprobs empty": (200, of_choice(lambda choice: each_top(choice, lambda top: []))),
    "log-probability null": (200, of_choice(lambda c: each_top(c, lambda top: [t | {"logprob": None} for t in top]))),
    "log-probability NaN": (200, of_choice(lambda c: each_top(c, lambda top: [t | {"logprob": math.nan} for t in top]))),
    "log-probability positive": (200, of_choice(lambda c: each_top(c, lambda top: [t | {"logprob": 3.0} for t in top]))),
    "probabilities beyond 1": (200, of_choice(lambda c: each_top(c, lambda top: [t | {"logprob": 0.0} for t in top * 2]))),
    "logprobs of less text": (200, of_choice(lambda c: c["logprobs"].update(content=c["logprobs"]["content"][:2]))),
    "numbers": (200, of_choice(lambda choice: answer(choice, " 85", " 40"))),
    "words": (200, of_choice(lambda choice: answer(choice, " Absolutely", " Bad"))),
    "letters off the scale": (200, of_choice(lambda choice: answer(choice, " Z", " X"))),
    "nothing in the tags": (200, of_choice(lambda choice: answer(choice, "", ""))),
    "cut off in its reasoning": (200, of_choice(stop_in_reasoning)),
    "cut off in its analysis": (200, of_choice(stop_in_analysis)),
    "one tag": (200, of_choice(lose_second_tag)),
    "no text": (200, of_choice(lambda choice: choice["message"].update(content=""))),
    "filtered": (200, of_choice(lambda choice: choice.update(message={"content": None}, finish_reason="content_filter"))),
}


class FaultProxy:
    """See the module; each fault tells the client to retry after 1 ms, so that tests of retries are quick."""

    def __init__(self, upstream, choose=lambda request: None):
        self.upstream, self.choose, self.log, self.busy, self.peak = upstream, choose, [], 0, 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26), self.loop)
        self.port = server.result().sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    async def _stop(self):
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.split("content-length:")[1].split("\r\n")[0])
                request = json.loads(await reader.readexactly(length))
                self.busy += 1
                self.peak = max(self.peak, self.busy)
                try:
                    keep = await self._answer(request, writer)
                finally:
                    self.busy -= 1
                if not keep:
                    break
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # the client left, or the test is over
        finally:
            writer.close()

    async def _answer(self, request, writer):
        """Send one reply; False ends the connection."""
        fault = self.choose(request)
        self.log.append((request, fault))
        status, spoil = FAULTS[fault] if fault else (200, json.dumps)
        good = {}
        if status in (200, -2):
            good = await self._ask(request)
        if status == 0:
            await asyncio.sleep(STALL)
        if status in (0, -1):
            return False
        body = spoil(copy.deepcopy(good) if fault else good).encode()
        extra = 100 if status == -2 else 0
        head = f"HTTP/1.1 {max(status, 200)} X\r\nContent-Type: application/json\r\nretry-after-ms: 1\r\n"
        writer.write(f"{head}Content-Length: {len(body) + extra}\r\n\r\n".encode() + body)
        await writer.drain()
        return status != -2

    async def _ask(self, request):
        if callable(self.upstream):
            return self.upstream(request)
        url, data = self.upstream.rstrip("/") + "/chat/completions", json.dumps(request).encode()
        asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        return await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(asked, timeout=600)))
