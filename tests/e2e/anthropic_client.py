# SPDX-License-Identifier: Apache-2.0
"""anthropic_client.py URL KEY: what Anthropic's own client for Python makes of engserve. Prints the number of its checks."""

import asyncio
import json
import sys

import anthropic

from client_watch import Watch

HELLO = [{"role": "user", "content": "Hello"}]
PAGE = 16  # tokens of a prompt that the cache has or has not
TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": {
    "type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}}, "required": ["place"], "additionalProperties": False}}
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["fox", "wolf"]}}, "required": ["kind"], "additionalProperties": False}
# Takes as long as the context has room: the list does not end before.
LONG = {"model": "chat", "messages": HELLO, "max_tokens": 1000, "output_config": {"format": {"type": "json_schema", "schema": {
    "type": "array", "items": {"enum": ["fox"]}, "minItems": 5000}}}}

url, key = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
watch = Watch(url, key)
checks = 0


def check(condition, *what):
    global checks
    checks += 1
    if not condition:
        raise AssertionError(what)


def refused(kind, call, name, word):
    try:
        call()
    except kind as error:
        check(error.body["type"] == "error" and error.body["error"]["type"] == name and word in str(error), error.body)
    else:
        check(False, "not refused", kind)


def inputs(usage):
    """All tokens of a prompt."""
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def whole():
    options = {"model": "chat", "messages": HELLO, "max_tokens": 10, "system": "Be brief.", "extra_body": {"temperature": 0}}
    message = client.messages.create(**options)
    check(message.role == "assistant" and message.stop_reason == "max_tokens" and message.usage.output_tokens == 10, message)
    text = message.content[0].text
    check(len(message.content) == 1 and message.content[0].type == "text" and text, message)
    with client.messages.stream(**options) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    check("".join(pieces) == text and final.content[0].text == text and final.stop_reason == "max_tokens", final)
    check(final.usage.output_tokens == 10 and inputs(final.usage) == inputs(message.usage), final)
    check(final.usage.cache_read_input_tokens == (inputs(final.usage) - 1) // PAGE * PAGE > 0, final)
    stopped = client.messages.create(**options, stop_sequences=[text[3:6]])
    check(stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == text[3:6], stopped)
    check(stopped.content[0].text == text[:3], stopped)
    counted = client.messages.count_tokens(model="chat", messages=HELLO, system="Be brief.")
    check(counted.input_tokens == inputs(message.usage), counted)


def tools():
    options = {"model": "tools", "max_tokens": 60, "tools": [TOOL]}
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
        message = client.messages.create(**options, messages=HELLO, tool_choice=choice)
        (call,) = message.content
        check(call.type == "tool_use" and call.name == "get_weather" and call.input["place"] in ("Rome", "Oslo"), message)
        check(message.stop_reason == "tool_use", message)
        with client.messages.stream(**options, messages=HELLO, tool_choice=choice) as stream:
            (streamed,) = stream.get_final_message().content
        check(streamed.type == "tool_use" and streamed.input["place"] in ("Rome", "Oslo"), streamed)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Sun."}]}
    after = client.messages.create(**options, messages=HELLO + [{"role": "assistant", "content": message.content},
                                                                {"role": "user", "content": [result]}])
    check(after.content and after.content[0].type == "text", after)


def runner():
    """The package asks for a thread on the server first, and goes on without."""
    @anthropic.beta_tool
    def get_weather(place: str) -> str:
        """The weather.

        Args:
            place: where
        """
        return "Sun in " + place

    options = {"model": "tools", "messages": HELLO, "max_tokens": 10}
    (message,) = client.beta.messages.tool_runner(**options, tools=[get_weather], max_iterations=1)
    check(message.content, message)
    refused(anthropic.BadRequestError, lambda: client.messages.create(**options, extra_body={"thread": {"type": "create"}}),
            "invalid_request_error", "keeps no conversations")
    hinted = client.messages.create(**options, tools=[{**TOOL, "eager_input_streaming": True}])
    check(hinted.content, hinted)


def models():
    check([(model.id, model.type, model.display_name) for model in client.models.list()] ==
          [(name, "model", name) for name in ("chat", "tools")])
    check(client.models.retrieve("tools").created_at.year > 2000)


def thinking():
    options = {"model": "tools", "messages": HELLO, "max_tokens": 10, "thinking": {"type": "adaptive"}, "extra_body": {"temperature": 0}}
    (block,) = client.messages.create(**options).content
    check(block.type == "thinking" and block.thinking, block)
    with client.messages.stream(**options) as stream:
        (streamed,) = stream.get_final_message().content
    check(streamed.thinking == block.thinking, streamed)


def formats():
    options = {"model": "chat", "messages": HELLO, "max_tokens": 50, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    message = client.messages.create(**options)
    check(json.loads(message.content[0].text)["kind"] in ("fox", "wolf") and message.stop_reason == "end_turn", message)
    with client.messages.stream(**options) as stream:
        final = stream.get_final_message()
    check(json.loads(final.content[0].text)["kind"] in ("fox", "wolf"), final)
    wrong = {**options, "output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "unevaluatedProperties": {}}}}}
    refused(anthropic.BadRequestError, lambda: client.messages.create(**wrong), "invalid_request_error", "unevaluatedProperties")


def timeouts():
    """A client that waits no longer: its request ends. A client that does not run meanwhile may find the whole answer."""
    hasty = client.with_options(timeout=anthropic.Timeout(60, read=0.1))

    def leave():
        try:
            hasty.messages.create(**LONG)
        except anthropic.APITimeoutError:
            pass

    check(watch.is_given_up(leave))


def closed_streams():
    """Streams that are left in the middle, by either way to ask for one."""
    def leave():
        with client.messages.stream(**LONG) as stream:
            check(next(iter(stream.text_stream)))

    def close():
        stream = client.messages.create(**LONG, stream=True)
        start = next(stream)
        check(start.type == "message_start" and start.message.usage.input_tokens and not start.message.usage.cache_read_input_tokens, start)
        stream.close()

    check(watch.is_given_up(leave))
    check(watch.is_given_up(close))


def cancelled():
    """A request that is cancelled while it is computed."""
    async def run():
        async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as own:
            await watch.cancel(own.messages.create(**LONG))

    check(watch.is_given_up(lambda: asyncio.run(run())))


def errors():
    chat = {"model": "chat", "messages": HELLO, "max_tokens": 5}
    refused(anthropic.BadRequestError, lambda: client.messages.create(**chat, extra_body={"temperature": -1}), "invalid_request_error", "temperature")
    check(client.messages.create(**chat, output_config={"effort": "high"}, thinking={"type": "disabled"}).content)
    refused(anthropic.BadRequestError, lambda: client.messages.create(**chat, output_config={"effort": "low"}), "invalid_request_error", "output_config")
    refused(anthropic.BadRequestError, lambda: client.messages.create(**chat, tools=[TOOL]), "invalid_request_error", "tools")
    refused(anthropic.BadRequestError, lambda: client.messages.create(**chat, extra_body={"seed": 1}), "invalid_request_error", "seed")
    refused(anthropic.NotFoundError, lambda: client.messages.create(**{**chat, "model": "x"}), "not_found_error", "x")
    stranger = anthropic.Anthropic(base_url=url, api_key="another-key", max_retries=0)
    refused(anthropic.AuthenticationError, lambda: stranger.messages.create(**chat), "authentication_error", "key")


whole()
tools()
runner()
models()
thinking()
formats()
errors()
timeouts()
closed_streams()
cancelled()
print(checks)
