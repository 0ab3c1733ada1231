// SPDX-License-Identifier: Apache-2.0
// The page at "/": a conversation with a model of this server. Texts of models are hostile: they become text nodes,
// never HTML.
"use strict";

const COMPLETION_TOKENS = 512; // of a model without a chat template, if no limit is set
const FIGURES_MS = 250; // between updates of the figures of an answer that is arriving
const SILENT_MS = 10000; // without a part of an answer, after which the server is asked whether it is there
const WATCH_MS = 1000;
const RECONNECT_MS = [500, 1000, 2000, 4000]; // the last one again and again

const find = (id) => document.getElementById(id);
const scroller = find("scroller");
const input = find("input");

/* A turn: {question, kind: "chat" or "text", model, answer, thinking, state: "writing", "done", "stopped" or "failed",
 * problem, facts}. */
let turns = [];
let previous = []; // the conversation before "New chat"
let models = [];
let key = recall("key", "");
let settings = recall("settings", { system: "", temperature: "", limit: "" });
let writing = null; // {turn, abort}: the answer that is arriving
let attempts = 0; // to reach the server, since it was lost
let timer = 0;
let following = true; // the newest text is in view
const views = new Map(); // turn: its elements

// ---- what outlives a reload of this tab ----

function recall(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem("eng." + name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function remember(name, value) {
  try {
    sessionStorage.setItem("eng." + name, JSON.stringify(value));
  } catch {
    // No room or not allowed: the page works without.
  }
}

// ---- elements ----

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function button(label, action, className = "plain") {
  const made = element("button", className, label);
  made.type = "button";
  made.addEventListener("click", action);
  return made;
}

/* The clipboard is there for pages of this machine and over TLS alone. */
function copyButton(text) {
  if (!navigator.clipboard) return "";
  const made = button("Copy", async () => {
    const copied = await navigator.clipboard.writeText(text()).then(() => true, () => false);
    made.textContent = copied ? "Copied" : "Not allowed";
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  });
  return made;
}

/* For screen readers. */
function speak(text) {
  find("spoken").append(element("p", "", text));
}

// ---- texts of models ----

/* Paragraphs and fenced programs of a text: [{source, lines, isProgram, isOpen}]. */
function blocksOf(text) {
  const blocks = [];
  let block = null;
  for (const line of text.split("\n")) {
    const isFence = line.startsWith("```");
    if (block?.isProgram) {
      block.source += "\n" + line;
      if (isFence) block.isOpen = false;
      else block.lines.push(line);
      if (isFence) block = null;
    } else if (isFence) {
      blocks.push(block = { source: line, lines: [], isProgram: true, isOpen: true });
    } else if (!line.trim()) {
      block = null;
    } else if (block) {
      block.source += "\n" + line;
      block.lines.push(line);
    } else {
      blocks.push(block = { source: line, lines: [line], isProgram: false, isOpen: false });
    }
  }
  return blocks;
}

/* `code`, **strong** and headings; everything else is shown as it is. */
function inline(line) {
  const heading = /^#{1,6} +(.+)/.exec(line);
  if (heading) return [element("strong", "", heading[1])];
  return line.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (/^`[^`]+`$/.test(part)) return element("code", "", part.slice(1, -1));
    if (/^\*\*[^*]+\*\*$/.test(part)) return element("strong", "", part.slice(2, -2));
    return part;
  });
}

function blockElement(block) {
  if (!block.isProgram) {
    const made = element("div", "block");
    block.lines.forEach((line, i) => made.append(...(i ? ["\n"] : []), ...inline(line)));
    made.dir = "auto";
    return made;
  }
  const program = block.lines.join("\n");
  const pre = element("pre", "", element("code", "", program));
  pre.tabIndex = 0; // it may have to be scrolled
  return element("div", "block program", pre, block.isOpen ? "" : copyButton(() => program));
}

/* Replaces the blocks that have changed, which are few while a text arrives. */
function paintBlocks(target, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, i) => {
    const old = target.children[i];
    const mark = block.isOpen + block.source;
    if (old && old.mark === mark) return;
    const made = blockElement(block);
    made.mark = mark;
    if (old) old.replaceWith(made);
    else target.append(made);
  });
  while (target.children.length > blocks.length) target.lastChild.remove();
}

// ---- turns ----

function viewOf(turn) {
  let view = views.get(turn);
  if (view) return view;
  view = {
    item: element("li", "turn"),
    title: element("h2", "unseen"),
    thinking: element("details", "thinking"),
    thought: element("div", "text"),
    text: element("div", "text"),
    facts: element("div", "facts"),
    notice: element("div", "notice"),
  };
  view.thinking.append(element("summary", "", "Thinking"), view.thought);
  view.text.dir = "auto";
  if (turn.kind === "chat") {
    const question = element("div", "text", turn.question);
    question.dir = "auto";
    view.item.append(element("div", "question", element("h2", "unseen", "You"), question));
  }
  view.item.append(element("div", "answer", view.title, view.thinking, view.text, view.facts, view.notice));
  views.set(turn, view);
  find("turns").append(view.item);
  return view;
}

function paintText(turn, view) {
  view.thinking.hidden = !turn.thinking;
  view.thought.textContent = turn.thinking;
  if (turn.kind === "chat") paintBlocks(view.text, turn.answer);
  else view.text.replaceChildren(element("span", "prompt", turn.question), turn.answer);
}

function paintEnd(turn, view) {
  const isLast = turn === turns[turns.length - 1];
  const again = () => answer(turn);
  const mark = JSON.stringify([turn.state, turn.problem, turn.facts, isLast]);
  if (view.mark === mark) return; // a button here may have the focus
  view.mark = mark;
  view.notice.hidden = turn.state !== "failed";
  view.notice.replaceChildren();
  if (turn.state === "failed") {
    view.notice.append(element("p", "", turn.problem));
    if (isLast) view.notice.append(button("Try again", again, "again"));
  }
  const facts = (turn.facts || []).map((fact) => element("span", "", fact));
  const copy = turn.answer ? copyButton(() => turn.answer) : "";
  const retry = isLast && turn.state !== "failed" ? button("Try again", again, "plain again") : "";
  view.facts.replaceChildren(...facts, copy, retry);
  view.facts.hidden = turn.state === "writing";
}

function paintTurn(turn) {
  const view = viewOf(turn);
  view.title.textContent = turn.kind === "chat" ? turn.model : "Your text and how " + turn.model + " continues it";
  view.item.classList.toggle("writing", turn.state === "writing");
  paintText(turn, view);
  paintEnd(turn, view);
}

/* All but the text of an answer that is arriving. */
function paint() {
  const model = currentModel();
  for (const [turn, view] of views) {
    if (turns.includes(turn)) continue;
    view.item.remove();
    views.delete(turn);
  }
  turns.forEach(paintTurn);
  find("empty").hidden = turns.length > 0;
  find("new").hidden = !turns.length;
  find("undo").hidden = !previous.length;
  if (key) find("open-key").hidden = false;
  find("send").hidden = Boolean(writing);
  find("stop").hidden = !writing;
  find("model-name").hidden = models.length !== 1;
  find("model-label").hidden = models.length < 2;
  find("model-name").textContent = find("model-name").title = model?.id ?? "";
  if (!model) return;
  const isChat = model.has_chat;
  document.title = model.id + " - eng";
  find("empty-title").textContent = isChat ? "Talk to " + model.id : model.id + " continues your text";
  find("empty-text").textContent = isChat
    ? "The conversation stays in this tab. It is forgotten when the tab is closed."
    : "This model has no chat template. It does not answer questions: write the beginning of a text, and it writes on.";
  find("input-label").textContent = isChat ? "Message" : "Beginning of a text";
  input.placeholder = isChat ? "Write a message" : "Write the beginning of a text";
  follow();
}

function follow() {
  if (following) scroller.scrollTop = scroller.scrollHeight;
  find("latest").hidden = following;
}

// ---- the server ----

/* `kind`: "lost": no or half a reply; "key": refused without a valid key; "refused": the server says why. */
class Problem extends Error {
  constructor(kind, message, code) {
    super(message);
    this.kind = kind;
    this.code = code;
  }
}

async function call(path, body, signal) {
  const headers = key ? { Authorization: "Bearer " + key } : {};
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    const method = body ? "POST" : "GET";
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem("lost", "The server cannot be reached.");
  }
  if (response.ok) return response;
  const unknown = () => ({ message: "status " + response.status });
  const { message, code } = await response.json().then((reply) => reply.error, unknown);
  throw new Problem(response.status === 401 ? "key" : "refused", message, code);
}

const currentModel = () => models.find((model) => model.id === find("model").value);
const kindOf = (model) => (model.has_chat ? "chat" : "text");

function showModels(list) {
  const chosen = find("model").value || recall("model", "");
  models = list;
  find("model").replaceChildren(...models.map((model) => new Option(model.id, model.id)));
  if (models.some((model) => model.id === chosen)) find("model").value = chosen;
  paint();
}

function askForKey(error) {
  find("open-key").hidden = false;
  find("key-error").textContent = error;
  find("empty-title").textContent = "This server needs an API key";
  find("empty-text").textContent = "The button at the top asks for it again.";
  if (!find("key-dialog").open) find("key-dialog").showModal();
}

async function connect() {
  clearTimeout(timer);
  try {
    const { data } = await (await call("v1/models")).json();
    const wasLost = attempts > 0;
    attempts = 0;
    find("connection").textContent = "";
    showModels(data);
    if (wasLost) speak("The server answers again.");
  } catch (error) {
    if (error.kind === "key") askForKey(key ? "The server does not accept this key." : "");
    else lose(error.kind === "refused" ? "The server refuses: " + error.message : "The server cannot be reached.");
  }
}

/* Tries again until the server answers. */
function lose(message) {
  clearTimeout(timer);
  const text = message + " The conversation is kept. Trying again.";
  if (find("connection").textContent !== text) find("connection").textContent = text; // it is read out at each change
  timer = setTimeout(connect, RECONNECT_MS[Math.min(attempts++, RECONNECT_MS.length - 1)]);
}

/* The data of each event of a stream. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// ---- answers ----

/* Turns without an answer are left out, since templates expect question and answer in turn. */
function messagesOf(turn) {
  const messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  const before = turns.slice(0, turns.indexOf(turn)).filter((one) => one.kind === "chat" && one.answer);
  for (const one of before)
    messages.push({ role: "user", content: one.question }, { role: "assistant", content: one.answer });
  return [...messages, { role: "user", content: turn.question }];
}

async function requestOf(turn, signal) {
  const content = turn.kind === "chat" ? { messages: messagesOf(turn) } : { prompt: turn.question };
  const body = { model: turn.model, ...content, stream: true, stream_options: { include_usage: true } };
  if (settings.temperature !== "") body.temperature = Number(settings.temperature);
  const limit = Number(settings.limit) || (turn.kind === "chat" ? 0 : COMPLETION_TOKENS);
  if (limit) {
    const tokens = await (await call("tokenize", { model: turn.model, ...content }, signal)).json();
    body.max_tokens = Math.max(1, Math.min(limit, tokens.max_model_len - tokens.count));
  }
  return body;
}

const number = (value) => value.toLocaleString("en");

/* What is known of the speed so far: tokens are counted by events until the server has told their number. */
function figuresOf(progress) {
  const tokens = progress.usage?.completion_tokens ?? progress.events;
  const seconds = (progress.last - progress.first) / 1000;
  const figures = [number(tokens) + (tokens === 1 ? " token" : " tokens")];
  if (seconds > 0 && tokens > 1) figures.push(((tokens - 1) / seconds).toFixed(1) + " tokens/s");
  return figures;
}

function factsOf(turn, progress) {
  const facts = [];
  const wait = (progress.first - progress.begin) / 1000;
  if (progress.first) facts.push(...figuresOf(progress), "first after " + wait.toFixed(2) + " s");
  const total = progress.usage?.total_tokens;
  const length = models.find((model) => model.id === turn.model)?.max_model_len;
  if (total && length) facts.push(number(total) + " of " + number(length) + " tokens of context");
  if (turn.state === "stopped") facts.push("stopped");
  if (progress.finish === "length") facts.push("cut off at the limit of its length");
  return facts;
}

/* Screen readers get whole sentences: single tokens would interrupt each other. */
function speakSentences(turn, progress, isEnd) {
  const rest = turn.answer.slice(progress.spoken);
  const end = isEnd ? rest.length : Math.max(...[". ", "! ", "? ", "\n"].map((mark) => rest.lastIndexOf(mark))) + 1;
  const text = rest.slice(0, end).trim();
  progress.spoken += end;
  if (text) speak(text);
}

function takeEvent(turn, progress, event) {
  if (event.error) throw new Problem("refused", "The server ended the answer: " + event.error.message);
  if (event.usage) progress.usage = event.usage;
  const choice = event.choices[0];
  if (!choice) return;
  const text = (turn.kind === "chat" ? choice.delta.content : choice.text) || "";
  const thinking = choice.delta?.reasoning_content || "";
  progress.finish = choice.finish_reason || progress.finish;
  if (!text && !thinking) return;
  turn.answer += text;
  turn.thinking += thinking;
  progress.events++;
  progress.last = performance.now();
  progress.first ||= progress.last;
}

async function receive(turn, progress, abort) {
  const request = await requestOf(turn, abort.signal);
  const path = turn.kind === "chat" ? "v1/chat/completions" : "v1/completions";
  let isPainting = false;
  for await (const data of eventsOf(await call(path, request, abort.signal))) {
    if (data === "[DONE]") return;
    takeEvent(turn, progress, JSON.parse(data));
    if (isPainting) continue;
    isPainting = true;
    requestAnimationFrame(() => {
      isPainting = false;
      if (writing?.turn === turn && turns.includes(turn)) paintArriving(turn, progress);
    });
  }
  throw new Problem("lost", "The connection ended.");
}

function paintArriving(turn, progress) {
  paintText(turn, viewOf(turn));
  speakSentences(turn, progress, false);
  if (performance.now() - progress.shown > FIGURES_MS) {
    progress.shown = performance.now();
    find("figures").textContent = figuresOf(progress).join(", ");
  }
  follow();
}

/* A connection may die without a sign: while nothing arrives, the server is asked whether it is there. */
async function watch(progress, abort) {
  if (performance.now() - Math.max(progress.begin, progress.last) < SILENT_MS) return;
  const isThere = await fetch("health", { signal: AbortSignal.timeout(SILENT_MS) }).then(() => true, () => false);
  if (!isThere) abort.abort(new Problem("lost", "The server does not answer."));
}

function fail(turn, error) {
  turn.state = "failed";
  if (error.kind === "key") {
    turn.problem = "The server needs a valid API key for an answer.";
    askForKey(key ? "The server does not accept this key." : "");
  } else if (error.kind === "refused") {
    const isTooLong = error.code === "context_length_exceeded" && turns.length > 1;
    turn.problem = error.message + (isTooLong ? ". A new chat has the whole context again." : "");
  } else {
    turn.problem = turn.answer
      ? "The connection to the server was lost before the answer was complete."
      : "The server did not answer.";
    lose("The connection to the server was lost.");
  }
}

async function answer(turn) {
  if (writing) return;
  const abort = new AbortController();
  const model = currentModel();
  if (model && kindOf(model) === turn.kind) turn.model = model.id; // another one may have been chosen since
  const begin = performance.now();
  const progress = { begin, first: 0, last: 0, events: 0, shown: 0, spoken: 0, usage: null, finish: null };
  writing = { turn, abort };
  Object.assign(turn, { answer: "", thinking: "", state: "writing", problem: "", facts: [] });
  following = true;
  find("spoken").replaceChildren();
  paint();
  remember("turns", turns);
  input.focus();
  const watching = setInterval(watch, WATCH_MS, progress, abort);
  try {
    await receive(turn, progress, abort);
    turn.state = "done";
  } catch (error) {
    if (abort.signal.aborted && error.kind !== "lost") turn.state = "stopped";
    else fail(turn, error);
  }
  clearInterval(watching);
  const stopHadFocus = document.activeElement === find("stop");
  writing = null;
  turn.facts = factsOf(turn, progress);
  find("figures").textContent = "";
  paint();
  remember("turns", turns);
  if (stopHadFocus) input.focus();
  if (!turns.includes(turn)) return;
  speakSentences(turn, progress, true);
  speak(turn.problem || turn.facts.join(", "));
}

function send() {
  const model = currentModel();
  if (!model) connect();
  if (writing || !model || !input.value.trim()) return;
  const turn = { question: input.value, kind: kindOf(model), model: model.id };
  turns.push(turn);
  input.value = "";
  fitInput();
  answer(turn);
}

const stop = () => writing?.abort.abort();

// ---- what the user does ----

function fitInput() {
  input.style.height = "auto";
  input.style.height = input.scrollHeight + "px";
}

function replaceTurns(list) {
  stop();
  previous = turns;
  turns = list;
  find("spoken").replaceChildren();
  remember("turns", turns);
  paint();
  input.focus();
}

find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
input.addEventListener("input", fitInput);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) stop();
});
find("stop").addEventListener("click", stop);
find("new").addEventListener("click", () => replaceTurns([]));
find("undo").addEventListener("click", () => replaceTurns(previous));
find("model").addEventListener("change", () => {
  remember("model", find("model").value);
  paint();
});
scroller.addEventListener("scroll", () => {
  following = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
  find("latest").hidden = following;
});
find("latest").addEventListener("click", () => {
  following = true;
  follow();
  input.focus();
});

for (const dialog of document.querySelectorAll("dialog"))
  dialog.querySelector(".cancel").addEventListener("click", () => dialog.close(""));
find("open-settings").addEventListener("click", () => {
  for (const name of Object.keys(settings)) find(name).value = settings[name];
  find("settings").returnValue = "";
  find("settings").showModal();
});
find("settings").addEventListener("close", () => {
  if (find("settings").returnValue !== "ok") return;
  for (const name of Object.keys(settings)) settings[name] = find(name).value;
  remember("settings", settings);
});
find("open-key").addEventListener("click", () => askForKey(""));
find("key-dialog").addEventListener("close", () => {
  const given = find("key").value;
  find("key").value = "";
  if (find("key-dialog").returnValue === "ok") {
    key = given;
    remember("key", key);
    connect();
  }
  find("key-dialog").returnValue = "";
  input.focus();
});
window.addEventListener("resize", follow);
window.addEventListener("online", connect);
window.addEventListener("pagehide", () => remember("turns", turns));

// ---- the beginning ----

turns = recall("turns", []);
for (const turn of turns) {
  if (turn.state !== "writing") continue;
  Object.assign(turn, { state: "failed", problem: "The page was left before the answer was complete." });
}
paint();
connect();
