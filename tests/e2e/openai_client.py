# SPDX-License-Identifier: Apache-2.0
"""openai_client.py URL KEY: what OpenAI's own client for Python makes of engserve. Prints the number of its checks."""

import asyncio
import json
import sys

import openai

from client_watch import Watch

PROMPT = "Once upon a time"
HELLO = [{"role": "user", "content": "Hello"}]
PAGE = 16  # tokens of a prompt that the cache has or has not

# Takes longer than any test: 128,000 tokens.
ENDLESS = {"model": "fables", "prompt": PROMPT, "max_tokens": 1000, "n": 128, "extra_body": {"ignore_eos": True}}
ENDLESS_CHAT = {"model": "chat", "messages": HELLO, "max_tokens": 1000, "n": 128, "extra_body": {"ignore_eos": True}}

url, key = sys.argv[1:]
client = openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
watch = Watch(url, key)
checks = 0


def check(condition, *what):
    global checks
    checks += 1
    if not condition:
        raise AssertionError(what)


def refused(kind, call, param=None, code=None):
    try:
        call()
    except kind as error:
        check(error.param == param and error.code == code, error.body)
    else:
        check(False, "not refused", kind)


def models():
    check([model.id for model in client.models.list()] == ["chat", "fables", "tools"])
    check(client.models.retrieve("fables").owned_by == "eng")
    refused(openai.NotFoundError, lambda: client.models.retrieve("none"), "model", "model_not_found")


def completions():
    options = {"model": "fables", "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**options)
    check(whole.choices[0].text.startswith(", there was a little fox"), whole)
    check(whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 12, whole)
    text, usage = "", None
    for chunk in client.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        text += chunk.choices[0].text if chunk.choices else ""
        usage = chunk.usage or usage
    check(text == whole.choices[0].text and usage == whole.usage, text, usage)
    check(usage.prompt_tokens_details.cached_tokens == 0, usage)  # less than a page
    hidden = client.completions.create(**options, stream=True, stream_options={"include_usage": False, "include_obfuscation": False})
    check("".join(chunk.choices[0].text for chunk in hidden) == whole.choices[0].text)
    stopped = client.completions.create(**options, stop=["fox"], n=2, extra_body={"top_k": 5})
    check([choice.text for choice in stopped.choices] == [", there was a little "] * 2, stopped)


def chats():
    options = {"model": "chat", "messages": HELLO, "max_completion_tokens": 10, "temperature": 0.7, "seed": 4}
    whole = client.chat.completions.create(**options)
    check(whole.choices[0].message.role == "assistant" and whole.object == "chat.completion", whole)
    deltas = [chunk.choices[0] for chunk in client.chat.completions.create(**options, stream=True)]
    check("".join(choice.delta.content or "" for choice in deltas) == whole.choices[0].message.content, deltas)
    check(deltas[0].delta.role == "assistant" and deltas[0].delta.content == "" and deltas[-1].finish_reason == whole.choices[0].finish_reason, deltas)
    *_, last = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    cached = client.chat.completions.create(**options).usage.prompt_tokens_details.cached_tokens
    check(cached == (last.usage.prompt_tokens - 1) // PAGE * PAGE == last.usage.prompt_tokens_details.cached_tokens, last, cached)


def logprobs():
    completion = client.completions.create(model="fables", prompt=PROMPT, max_tokens=8, temperature=0, logprobs=3).choices[0]
    check("".join(completion.logprobs.tokens) == completion.text and len(completion.logprobs.top_logprobs[0]) == 3, completion)
    options = {"model": "fables", "prompt": PROMPT, "temperature": 0, "logprobs": 3, "echo": True}
    both, prompt = (client.completions.create(**options, max_tokens=most).choices[0] for most in (8, 0))
    check(both.text == PROMPT + completion.text and prompt.text == PROMPT, both, prompt)
    check(prompt.logprobs.token_logprobs[0] is None and prompt.logprobs.top_logprobs[0] is None, prompt)
    check(both.logprobs.tokens == prompt.logprobs.tokens + completion.logprobs.tokens, both, prompt)
    options = {"model": "chat", "messages": HELLO, "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    content = client.chat.completions.create(**options).choices[0].logprobs.content
    check(len(content) == 8 and all(one.top_logprobs[0].logprob == one.logprob for one in content), content)
    parts = [chunk.choices[0].logprobs for chunk in client.chat.completions.create(**options, stream=True)]
    check([one for part in parts if part for one in part.content] == content, parts)


def formats():
    schema = {"type": "object", "properties": {"kind": {"enum": ["fox", "wolf"]}}, "required": ["kind"], "additionalProperties": False}
    options = {"model": "chat", "messages": HELLO, "max_tokens": 50}
    form = {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema, "strict": True}}
    found = json.loads(client.chat.completions.create(**options, response_format=form).choices[0].message.content)
    check(found["kind"] in ("fox", "wolf"), found)
    # Answers that the package has parsed can be sent back.
    answer = client.chat.completions.parse(**options, response_format=form).choices[0].message
    check(client.chat.completions.create(**{**options, "messages": HELLO + [{**answer.model_dump(), "parsed": found}] + HELLO}).choices[0].message.content)
    chosen = client.chat.completions.create(**options, extra_body={"guided_choice": ["yes", "no"]}).choices[0]
    check(chosen.message.content in ("yes", "no") and chosen.finish_reason == "stop", chosen)
    refused(openai.BadRequestError, lambda: client.chat.completions.create(**options, extra_body={"guided_regex": "("}), "guided_regex")


def tools():
    schema = {"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}}, "required": ["place"], "additionalProperties": False}
    function = {"name": "get_weather", "description": "The weather.", "parameters": schema, "strict": True}
    options = {"model": "tools", "messages": HELLO, "max_tokens": 60, "seed": 3, "tools": [{"type": "function", "function": function}]}
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        whole = client.chat.completions.create(**options, tool_choice=choice, parallel_tool_calls=False).choices[0]
        (call,) = whole.message.tool_calls
        check(json.loads(call.function.arguments)["place"] in ("Rome", "Oslo") and whole.finish_reason == "tool_calls", whole)
        with client.chat.completions.stream(**options, tool_choice=choice, parallel_tool_calls=False) as stream:
            (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
        check(streamed.function.arguments == call.function.arguments and streamed.function.name == "get_weather", streamed)
    cut = client.chat.completions.create(**{**options, "max_tokens": 3}, tool_choice="required").choices[0]
    check(cut.finish_reason == "length" and not cut.message.tool_calls and cut.message.content == "", cut)
    answer = [whole.message, {"role": "tool", "tool_call_id": call.id, "content": "Sun."}]
    after = client.chat.completions.create(**{**options, "messages": HELLO + answer, "max_tokens": 5}).choices[0]
    check(after.message.content and not after.message.tool_calls, after)


def responses():
    options = {"model": "tools", "input": "Hello", "instructions": "Be brief.", "max_output_tokens": 10, "temperature": 0}
    whole = client.responses.create(**options)
    check(whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens" and whole.output_text, whole)
    check(whole.usage.output_tokens == 10 and whole.instructions == "Be brief." and not whole.store, whole)
    events = list(client.responses.create(**options, stream=True))
    final = events[-1].response
    check([event.sequence_number for event in events] == list(range(len(events))) and events[-1].type == "response.incomplete", events)
    check("".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text, events)
    check(final.output_text == whole.output_text and final.usage.total_tokens == whole.usage.total_tokens, final)
    cached = [usage.input_tokens_details.cached_tokens for usage in (whole.usage, final.usage)]
    check(cached[0] <= cached[1] < final.usage.input_tokens and cached[1] == (final.usage.input_tokens - 1) // PAGE * PAGE, cached)
    schema = {"type": "object", "properties": {"kind": {"enum": ["fox", "wolf"]}}, "required": ["kind"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "animal", "schema": schema, "strict": True}}
    found = client.responses.create(**{**options, "max_output_tokens": 50}, text=form)
    check(json.loads(found.output_text)["kind"] in ("fox", "wolf") and found.status == "completed", found)
    tool = {"type": "function", "name": "choose", "parameters": schema, "strict": True}
    called = {**options, "max_output_tokens": 60, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = client.responses.create(**called).output
    check(call.type == "function_call" and json.loads(call.arguments)["kind"] in ("fox", "wolf"), call)
    with client.responses.stream(**called) as stream:
        (streamed,) = stream.get_final_response().output
    check((streamed.name, streamed.arguments) == (call.name, call.arguments), streamed)
    for item in (call, {**call.model_dump(), "parsed_arguments": {}}):
        items = HELLO + [item, {"type": "function_call_output", "call_id": call.call_id, "output": "Good."}]
        check(client.responses.create(**{**options, "input": items}).output_text, items)
    reasons = client.responses.create(**options, reasoning={"effort": "high"}).output
    check(reasons[0].type == "reasoning" and reasons[0].content[0].text, reasons)
    check(client.responses.create(**{**options, "input": HELLO + reasons + HELLO}).output_text, reasons)
    refused(openai.BadRequestError, lambda: client.responses.create(**{**options, "model": "chat"}, reasoning={"effort": "high"}), "reasoning",
            "unsupported_parameter")
    logged = client.responses.create(**options, top_logprobs=2, include=["message.output_text.logprobs"])
    tokens = logged.output[0].content[0].logprobs
    check("".join(one.token for one in tokens) == logged.output_text and len(tokens[0].top_logprobs) == 2, logged)
    events = list(client.responses.create(**options, top_logprobs=2, stream=True))
    deltas = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    check([one.logprob for one in deltas] == [one.logprob for one in tokens], deltas)
    counted = client.responses.input_tokens.count(model="tools", input="Hello", instructions="Be brief.")
    check(counted.input_tokens == whole.usage.input_tokens, counted)
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "choose"}]}
    other = {"type": "function", "name": "other", "parameters": schema, "strict": True}
    (only,) = client.responses.create(**{**called, "tools": [other, tool], "tool_choice": allowed}).output
    check(only.name == "choose", only)
    refused(openai.BadRequestError, lambda: client.responses.create(**options, store=True), "store", "unsupported_parameter")
    refused(openai.BadRequestError, lambda: client.responses.create(**options, previous_response_id="resp_1"), "previous_response_id",
            "unsupported_parameter")


def embeddings():
    options = {"model": "fables", "input": [PROMPT, "A fox"]}
    coded = client.embeddings.create(**options)  # the client asks for base64
    whole = client.embeddings.create(**options, encoding_format="float")
    check([item.index for item in coded.data] == [0, 1] and len(coded.data[0].embedding) == 192, coded)
    check(coded.usage == whole.usage and coded.usage.total_tokens > 4, coded.usage)
    apart = max(abs(a - b) for one, other in zip(coded.data, whole.data) for a, b in zip(one.embedding, other.embedding))
    check(apart < 1e-6, apart)
    short = client.embeddings.create(**options, dimensions=16).data[1].embedding
    check(len(short) == 16 and abs(sum(value * value for value in short) - 1) < 1e-5, short)
    refused(openai.BadRequestError, lambda: client.embeddings.create(**options, dimensions=500), "dimensions", "invalid_value")
    refused(openai.BadRequestError, lambda: client.embeddings.create(model="chat", input="x"), "model", "unsupported_endpoint")


def errors():
    chat = {"model": "chat", "messages": HELLO}
    refused(openai.BadRequestError, lambda: client.chat.completions.create(**chat, temperature=-1), "temperature", "invalid_value")
    refused(openai.BadRequestError, lambda: client.chat.completions.create(**chat, tools=[{}]), "tools[0]", "invalid_value")
    refused(openai.NotFoundError, lambda: client.chat.completions.create(**{**chat, "model": "x"}), "model", "model_not_found")
    refused(openai.BadRequestError, lambda: client.completions.create(model="fables", prompt="a " * 3000), "prompt",
            "context_length_exceeded")
    stranger = openai.OpenAI(base_url=url + "/v1", api_key="another-key", max_retries=0)
    refused(openai.AuthenticationError, stranger.models.list, None, "invalid_api_key")


def timeouts():
    """A client that waits no longer: its request ends."""
    for create, endless in ((client.with_options(timeout=0.3).completions.create, ENDLESS),
                            (client.with_options(timeout=0.3).chat.completions.create, ENDLESS_CHAT)):
        def leave():
            try:
                create(**endless)  # pylint: disable=cell-var-from-loop
            except openai.APITimeoutError:
                return
            check(False, "no timeout")

        check(watch.is_given_up(leave))
    # The time between two events is no timeout.
    events = list(client.with_options(timeout=20).completions.create(model="fables", prompt=PROMPT, max_tokens=8, stream=True))
    check(events[-1].choices[0].finish_reason == "length", events)


def comments():
    """The server sends comments in a stream that waits; the package skips them."""
    for _ in range(20):  # the stream may begin early
        busy = client.completions.create(**ENDLESS, stream=True)
        watch.wait_until(lambda: len(watch.busy()) == 4)
        streams = [client.completions.create(model="fables", prompt=PROMPT, max_tokens=4, stream=True) for _ in range(2)]
        text = "".join(chunk.choices[0].text for chunk in streams[0])
        lines = list(streams[1].response.iter_lines())
        busy.close()
        watch.wait_until(lambda: not watch.busy())
        check(text and text in "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {")), lines)
        if ": ping" in lines:
            return
    check(False, "no comments")


def closed_streams():
    """Streams that are left in the middle."""
    for create, endless in ((client.completions.create, ENDLESS), (client.chat.completions.create, ENDLESS_CHAT)):
        def leave():
            stream = create(**endless, stream=True)  # pylint: disable=cell-var-from-loop
            check([next(stream) for _ in range(5)])
            watch.wait_until(watch.busy)
            stream.close()

        check(watch.is_given_up(leave))
    with client.responses.create(model="tools", input="Hello", stream=True) as stream:
        check(next(stream).type == "response.created")
    watch.wait_until(lambda: not watch.busy())


async def cancel(own, stream):
    """Cancels a request while it is computed, whole or as a stream."""
    async def ask():
        reply = await own.completions.create(**ENDLESS, stream=stream)
        async for _ in reply:
            pass

    check(await watch.cancel(ask()), "not cancelled")


async def cancelled():
    own = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
    for stream in (False, True):
        before = watch.aborted()
        await cancel(own, stream)
        await asyncio.to_thread(watch.wait_until, lambda: not watch.busy() and watch.aborted() > before)  # pylint: disable=cell-var-from-loop
    await own.close()


async def many():
    """Clients at the same time, with connections that are kept."""
    own = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)
    options = {"model": "fables", "prompt": PROMPT, "max_tokens": 8, "temperature": 1}
    replies = await asyncio.gather(*(own.completions.create(**options, seed=index % 4) for index in range(64)))
    texts = [reply.choices[0].text for reply in replies]
    check(texts == texts[:4] * 16, texts)
    await own.close()


models()
completions()
chats()
logprobs()
formats()
tools()
responses()
embeddings()
errors()
timeouts()
comments()
closed_streams()
asyncio.run(cancelled())
asyncio.run(many())
print(checks)
