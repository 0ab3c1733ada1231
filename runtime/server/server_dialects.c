/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_dialects.h"

#include <stddef.h>
#include <string.h>

enum { MOST_SIGNS = 3 };

/* The characters of DeepSeek's markers: a full-width bar, and a low block instead of spaces. */
#define BAR  "\xef\xbd\x9c"
#define GAP  "\xe2\x96\x81"
#define DSML BAR "DSML" BAR

/* Arguments that are written one by one, as <parameter=NAME> does. */
#define FUNCTION "<function=$name>$(<parameter=$key>$value</parameter>$)</function>$!"

/* The first row counts whose signs all occur in a template. */
static const struct {
    const char *name;
    const char *signs[MOST_SIGNS];
    const char *patterns[SERVER_MOST_PATTERNS];
} families[] = {
    {"gpt-oss",
     {"<|channel|>analysis<|message|>"},
     {"<|channel|>commentary to=functions.$name$skip<|message|>~$args$!",
      " to=functions.$name<|channel|>$skip<|message|>~$args$!", "<|channel|>final$skip<|message|>",
      "<|channel|>commentary<|message|>", "<|start|>assistant", "<|end|>"}},
    {"kimi-k2",
     {"<|tool_call_argument_begin|>"},
     {"<|tool_calls_section_begin|>$(<|tool_call_begin|>~$id<|tool_call_argument_begin|>~$args$!~<|tool_call_end|>$)"
      "<|tool_calls_section_end|>"}},
    {"deepseek-v4",
     {DSML},
     {"<" DSML "tool_calls>$(<" DSML "invoke name=\"$name\">$(<" DSML "parameter name=\"$key\" string=\"$type\">"
      "$value</" DSML "parameter>$)</" DSML "invoke>$!$)</" DSML "tool_calls>"}},
    {"deepseek-r1",
     {"<" BAR "tool" GAP "sep" BAR ">", "```json"},
     {"<" BAR "tool" GAP "calls" GAP "begin" BAR ">$(<" BAR "tool" GAP "call" GAP "begin" BAR ">function<" BAR
      "tool" GAP "sep" BAR ">$name~```json~$args$!~```~<" BAR "tool" GAP "call" GAP "end" BAR ">$)<" BAR "tool" GAP
      "calls" GAP "end" BAR ">"}},
    {"deepseek-v3.1",
     {"<" BAR "tool" GAP "sep" BAR ">"},
     {"<" BAR "tool" GAP "calls" GAP "begin" BAR ">$(<" BAR "tool" GAP "call" GAP "begin" BAR ">$name<" BAR "tool" GAP
      "sep" BAR ">~$args$!~<" BAR "tool" GAP "call" GAP "end" BAR ">$)<" BAR "tool" GAP "calls" GAP "end" BAR ">"}},
    {"seed-oss", {"<seed:tool_call>"}, {"<seed:tool_call>$(" FUNCTION "$)</seed:tool_call>"}},
    {"qwen3-coder",
     {"<tool_call>", "<function=", "<parameter="},
     {"<tool_call>$(" FUNCTION "$)</tool_call>", FUNCTION}},
    {"functionary-3.1",
     {"<function=", "<|python_tag|>"},
     {"<function=$name>~$args$!~</function>", "<|python_tag|>~$calls$!"}},
    {"functionary-3.2", {">>>all", "recipient"}, {"^$name\n$args$!", "^all\n", ">>>$name\n$args$!", ">>>all\n"}},
    {"hunyuan",
     {"<arg_key", "':opensource'"},
     {"<tool_calls:opensource>$(<tool_call:opensource>~"
      "$name~<tool_sep:opensource>$(<arg_key:opensource>$key</arg_key:opensource>~<arg_value:opensource>$value"
      "</arg_value:opensource>$)</tool_call:opensource>$!$)</tool_calls:opensource>"}},
    {"glm",
     {"<tool_call>", "<arg_key>"},
     {"<tool_call>~$name~$(<arg_key>$key</arg_key>~<arg_value>$value</arg_value>$)"
      "</tool_call>$!"}},
    {"muse",
     {"<atem:invoke"},
     {"<atem:function_calls>$(<atem:invoke name=\"$name\">$(<atem:parameter name=\"$key\">$value</atem:parameter>$)"
      "</atem:invoke>$!$)</atem:function_calls>"}},
    {"lfm2", {"<|tool_list_start|>"}, {"<|tool_call_start|>~$python$!~<|tool_call_end|>"}},
    {"lfm2", {"<|tool_call_start|>"}, {"<|tool_call_start|>~$python$!~<|tool_call_end|>"}},
    {"gemma4", {"<|tool_call>call:"}, {"<|tool_call>call:$name$gemma$!<tool_call|>"}},
    {"solar",
     {"<|tool_call:begin|>"},
     {"<|tool_calls|>$(<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>~$args$!~<|tool_call:end|>$)"}},
    {"mistral-small", {"[TOOL_CALLS]", "[CALL_ID]"}, {"[TOOL_CALLS]~$name[CALL_ID]$id[ARGS]~$args$!"}},
    {"mistral-3", {"[TOOL_CALLS]", "[ARGS]"}, {"[TOOL_CALLS]~$name[ARGS]~$args$!"}},
    {"mistral", {"[TOOL_CALLS]"}, {"[TOOL_CALLS]~$calls$!"}},
    {"apertus", {"<|tools_prefix|>"}, {"<|tools_prefix|>~$calls$!~<|tools_suffix|>"}},
    {"command-r", {"<|START_ACTION|>"}, {"<|START_ACTION|>$($calls$!$)<|END_ACTION|>"}},
    {"gigachat-3.1", {"<|function_call|>"}, {"<|function_call|>~$calls$!"}},
    {"gigachat-3", {"function call", "<|role_sep|>"}, {"<|message_sep|>~function call<|role_sep|>~$calls$!"}},
    {"nemotron", {"<TOOLCALL>"}, {"<TOOLCALL>$($calls$!$)</TOOLCALL>"}},
    {"tool_calls", {"<tool_calls>"}, {"<tool_calls>$($calls$!$)</tool_calls>"}},
    /* Its arguments are trees of tags. */
    {"minimax-m3", {"]<]minimax[>["}, {NULL}},
    {"hermes", {"<tool_call>"}, {"<tool_call>$($calls$!$)</tool_call>"}},
    {"granite", {"<|tool_call|>"}, {"<|tool_call|>~$calls$!"}},
    {"llama3", {"<|start_header_id|>", "ipython"}, {"^$calls$!", "<|python_tag|>~$calls$!"}},
    /* A model that is shown functions and no special syntax writes a bare object. */
    {"json", {"tools"}, {"^$calls$!"}},
};

static const struct {
    const char *sign; /* in the template */
    const char *begin, *end;
} thoughts[] = {
    {"<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>", "<|end|>"},
    {"<|START_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"},
    {"<|inner_prefix|>", "<|inner_prefix|>", "<|inner_suffix|>"},
    {"[THINK]", "[THINK]", "[/THINK]"},
    {"<seed:think>", "<seed:think>", "</seed:think>"},
    {"<mm:think>", "<mm:think>", "</mm:think>"},
    {"':opensource'", "<think:opensource>", "</think:opensource>"},
    {"<|channel>thought", "<|channel>thought", "<channel|>"},
    {"'Here are my reasoning steps:", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"},
    {"</think>", "<think>", "</think>"},
};

/* Variables that say whether the model reasons, or for how many tokens; and what a template asks where the name is a common word. */
static const char *const switches[] = {"enable_thinking", "thinking_mode", "thinking_budget", "thinking is defined",
                                       "thinking is not defined"};
static const char *const conditions[] = {"if thinking %}", "if thinking -%}", "if not thinking %}", "and thinking %}"};

/* Values of reasoning_effort for no reasoning. */
static const char *const no_efforts[] = {"none", "no_think"};

static bool has_signs(const char *text, const char *const *signs)
{
    for (int i = 0; i < MOST_SIGNS && signs[i]; i++)
        if (!strstr(text, signs[i])) return false;
    return true;
}

static bool is_name(char byte)
{
    return byte == '_' || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

/* Whether the template has a variable of this name, which is neither a member of an object nor an argument of a call. */
static bool has_variable(const char *text, const char *name)
{
    for (const char *at = text; (at = strstr(at, name)); at++) {
        const char before = at > text ? at[-1] : ' ', *after = at + strlen(name);
        const bool is_argument = after[0] == '=' && after[1] != '=';
        if (!is_name(before) && before != '.' && !is_name(*after) && !is_argument) return true;
    }
    return false;
}

static bool has_switch(const char *text)
{
    bool found = false;
    for (size_t i = 0; !found && i < sizeof switches / sizeof *switches; i++) found = has_variable(text, switches[i]);
    for (size_t i = 0; !found && i < sizeof conditions / sizeof *conditions; i++) found = strstr(text, conditions[i]);
    return found;
}

/* Whether the template has the word as a string. */
static bool has_string(const char *text, const char *word)
{
    const size_t size = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at++)
        if (at > text && (at[-1] == '\'' || at[-1] == '"') && at[size] == at[-1]) return true;
    return false;
}

void server_dialect_find(const char *template_text, struct server_dialect *dialect)
{
    static const char *const none[] = {NULL};
    *dialect = (struct server_dialect){.patterns = none};
    for (size_t i = 0; template_text && !dialect->name && i < sizeof families / sizeof *families; i++) {
        if (!has_signs(template_text, families[i].signs)) continue;
        dialect->name = families[i].name;
        dialect->patterns = families[i].patterns;
    }
    for (size_t i = 0; template_text && !dialect->thought && i < sizeof thoughts / sizeof *thoughts; i++) {
        if (!strstr(template_text, thoughts[i].sign)) continue;
        dialect->thought = thoughts[i].begin;
        dialect->thought_end = thoughts[i].end;
    }
    dialect->has_switch = template_text && has_switch(template_text);
    dialect->has_effort = template_text && has_variable(template_text, "reasoning_effort");
    for (size_t i = 0; dialect->has_effort && !dialect->no_effort && i < sizeof no_efforts / sizeof *no_efforts; i++)
        if (has_string(template_text, no_efforts[i])) dialect->no_effort = no_efforts[i];
}
