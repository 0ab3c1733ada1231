# SPDX-License-Identifier: Apache-2.0
"""anthropic_client.py URL KEY: what Anthropic's own client for Python makes of engserve. Prints the number of its checks."""

import sys

import anthropic

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": {
    "type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}}, "required": ["place"], "additionalProperties": False}}

url, key = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
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
    check(final.usage.output_tokens == 10 and final.usage.input_tokens == message.usage.input_tokens, final)
    stopped = client.messages.create(**options, stop_sequences=[text[3:6]])
    check(stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == text[3:6], stopped)
    check(stopped.content[0].text == text[:3], stopped)
    counted = client.messages.count_tokens(model="chat", messages=HELLO, system="Be brief.")
    check(counted.input_tokens == message.usage.input_tokens, counted)


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


def thinking():
    options = {"model": "tools", "messages": HELLO, "max_tokens": 10, "thinking": {"type": "adaptive"}, "extra_body": {"temperature": 0}}
    (block,) = client.messages.create(**options).content
    check(block.type == "thinking" and block.thinking, block)
    with client.messages.stream(**options) as stream:
        (streamed,) = stream.get_final_message().content
    check(streamed.thinking == block.thinking, streamed)


def errors():
    chat = {"model": "chat", "messages": HELLO, "max_tokens": 5}
    refused(anthropic.BadRequestError, lambda: client.messages.create(**chat, extra_body={"temperature": -1}), "invalid_request_error", "temperature")
    refused(anthropic.BadRequestError, lambda: client.messages.create(**chat, tools=[TOOL]), "invalid_request_error", "tools")
    refused(anthropic.BadRequestError, lambda: client.messages.create(**chat, extra_body={"seed": 1}), "invalid_request_error", "seed")
    refused(anthropic.NotFoundError, lambda: client.messages.create(**{**chat, "model": "x"}), "not_found_error", "x")
    stranger = anthropic.Anthropic(base_url=url, api_key="another-key", max_retries=0)
    refused(anthropic.AuthenticationError, lambda: stranger.messages.create(**chat), "authentication_error", "key")


whole()
tools()
thinking()
errors()
print(checks)
