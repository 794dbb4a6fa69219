// Where the page is put together: makes the parts and joins their events. Nothing here decides anything.

import { Api } from "./api.js";
import { wireAttach } from "./attach.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { Conversations } from "./conversations.js";
import { wireCopyFormulas } from "./copy_formulas.js";
import { askForKey, wireDialogs } from "./dialogs.js";
import { byId } from "./dom.js";
import { wireDownload } from "./download.js";
import { wireDrawer } from "./drawer.js";
import { wireGreeting } from "./greeting.js";
import { wireKeyboard } from "./keyboard.js";
import { currentPlace } from "./place.js";
import { Settings } from "./settings.js";
import { SettingsDialog } from "./settings_dialog.js";
import { SideList } from "./side_list.js";
import { Tabs } from "./tabs.js";
import { wireTheme } from "./theme.js";
import { Thread } from "./thread.js";

const api = new Api({ askForKey });
const settings = new Settings();
const connection = new Connection(api);
const tabs = new Tabs();
const side = new SideList();
const conversations = new Conversations({ api, connection, tabs, side });
const thread = new Thread();
const composer = new Composer();
const chat = new Chat({ api, connection, settings, tabs, thread, conversations });
const drawer = wireDrawer();
const setGreetingModel = wireGreeting((text) => {
  composer.text = text;
  composer.focus();
});

function showState() {
  const title = chat.current ? side.titleOf(chat.current) : "New chat";
  byId("title").textContent = title;
  document.title = chat.current ? `${title} · Headrace` : "Headrace";
  byId("download").hidden = !chat.current;
  composer.running = thread.running = Boolean(chat.run);
  side.mark({ current: chat.current, running: chat.runningConversations });
}

function newChat() {
  drawer.close();
  chat.openNew();
  composer.focus();
}

const refreshList = () => conversations.refresh().catch((problem) => connection.tell(problem));

async function readModels() {
  try {
    const offered = await connection.keepTrying(() => api.models());
    const data = offered.data.filter((model) => (model.kind ?? "chat") === "chat");
    const seeing = data.filter((model) => model.image_limits).map((model) => [model.id, model.image_limits]);
    settings.offer(
      data.map((model) => model.id),
      new Map(seeing),
    );
  } finally {
    settings.noteAsked();
  }
}

chat.addEventListener("change", showState);
conversations.addEventListener("change", showState);
conversations.onDelete = (id) => chat.stop(id); // nobody will read that answer
conversations.addEventListener("deleted", ({ detail }) => detail === chat.current && newChat());
composer.addEventListener("send", ({ detail }) => void chat.send(detail.text, detail.pictures));
composer.addEventListener("stop", () => void chat.stop());
composer.addEventListener("back", () => chat.run || thread.editNewest());
settings.addEventListener("change", () => setGreetingModel(settings.model));
tabs.addEventListener("changed", ({ conversation }) => {
  void refreshList();
  if (!conversation || conversation === chat.current) void chat.refresh();
});
connection.addEventListener("back", () => {
  void refreshList();
  void chat.refresh();
  readModels().catch((problem) => connection.tell(problem));
});
for (const name of ["hashchange", "popstate"]) {
  window.addEventListener(name, () => {
    const place = currentPlace();
    if (place !== chat.current) void chat.open(place);
    if (place && !side.entries.some((entry) => entry.id === place)) void refreshList(); // made elsewhere: it has a title
  });
}
byId("brand").addEventListener("click", (event) => {
  event.preventDefault();
  newChat();
});
byId("new-chat").addEventListener("click", newChat);
byId("new-chat-bar").addEventListener("click", newChat);

wireTheme();
wireAttach({ composer, settings, tell: (sentence) => connection.tell(sentence) });
wireCopyFormulas();
wireDownload({ chat, connection });
wireDialogs();
new SettingsDialog(settings);
wireKeyboard({ newChat, escape: () => (drawer.isOpen() ? drawer.close() : chat.stop()) });
void chat.open(currentPlace());
void refreshList();
readModels().catch((problem) => connection.tell(problem));
if (window.matchMedia("(pointer: fine)").matches) composer.focus(); // no keyboard popping up on a phone
