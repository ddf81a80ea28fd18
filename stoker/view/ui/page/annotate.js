// Titles, tags and notes of runs; archiving and deleting them, with undo.
import * as api from "./api.js";
import { confirm, notify, request } from "./ask.js";
import { el } from "./dom.js";

/** Edits the title, the tags and the note of a run; calls `done` afterwards. */
export function edit(row, done) {
  const title = el("input", { value: row.title, autocomplete: "off", maxlength: "200", placeholder: row.id });
  const tags = el("input", { value: row.tags.join(", "), autocomplete: "off", placeholder: "baseline, paper" });
  const note = el("textarea", { rows: "5" });
  note.value = row.note;
  const content = [el("label", {}, "Title", title), el("label", {}, "Tags, separated by commas", tags), el("label", {}, "Note", note)];
  confirm({ title: "Title, tags and note", text: row.id, yes: "Save", content },
    (token) => api.annotate(row.id, { title: title.value.trim() || null, tags: words(tags.value), note: note.value }, token), done);
}

/** Adds tags to some runs. */
export function tag(rows, done) {
  const tags = el("input", { autocomplete: "off", placeholder: "baseline, paper" });
  const send = (token) => each(rows, (row) => api.annotate(row.id, { tags: [...new Set([...row.tags, ...words(tags.value)])] }, token));
  confirm({ title: `Tag ${some(rows)}`, yes: "Add", content: el("label", {}, "Tags, separated by commas", tags) }, send, done);
}

/** Archives runs: the list hides them. */
export function archive(rows, archived, done) {
  const verb = archived ? "Archive" : "Unarchive";
  request({ title: `${verb} ${some(rows)}?`, yes: verb }, (token) => each(rows, (row) => api.annotate(row.id, { archived }, token)), () => {
    notify(`${verb}d ${some(rows)}.`, "Undo", () => archive(rows, !archived, done));
    done();
  });
}

/** Moves runs to the trash. */
export function remove(rows, done) {
  const question = { title: `Delete ${some(rows)}?`, text: "This can be undone: the runs go to the folder .trash beside them.", yes: "Delete" };
  request(question, (token) => each(rows, (row) => api.remove(row.id, token)), (removed) => {
    notify(`Deleted ${some(rows)}.`, "Undo", () => request({ title: `Restore ${some(rows)}?`, yes: "Restore" },
      (token) => each(removed, ({ restore }) => api.restore(restore, token)), () => {
        notify(`Restored ${some(rows)}.`);
        done();
      }));
    done();
  });
}

/** One after the other, so that an error says where it stopped. */
async function each(things, send) {
  const answers = [];
  for (const thing of things) answers.push(await send(thing));
  return answers;
}

const words = (text) => text.split(",").map((each) => each.trim()).filter(Boolean);
const some = (rows) => (rows.length === 1 ? (rows[0].title || rows[0].id) : `${rows.length} runs`);
