// A person's labelling: the rows ahead, and labels on their way to the service. A label stays here until it is stored.

import * as api from "./api.js";
import { mayPass } from "./dom.js";
import { adopt, drop, keep, own } from "./storage.js";

const AHEAD = 5; // rows loaded before they are needed
const LOW = 3; // fewer rows ahead are filled up
const PATIENCE = 400; // milliseconds that a row waits for answers that know the last correction
const RETRY = 4000; // milliseconds until unsent labels are sent again

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

export class Labelling {
  // changed() is called after every change; saved() when the service has stored or deleted a label.
  constructor({ name, annotator, changed, saved }) {
    Object.assign(this, { annotator, changed, saved });
    this.prefix = `hinet-unsent/${name}/`;
    this.storage = `${this.prefix}${Date.now()}-${Math.random()}`; // each open page has its own
    this.row = null;
    this.ahead = [];
    this.unsent = []; // labels that are not stored yet, oldest first: {row, body}
    this.refused = []; // labels that the service refuses: {row, body, error}
    this.given = []; // labels stored by this page: {id, row}
    this.foreign = []; // labels of pages that were closed, perhaps of another project
    this.mayRestore = false; // whether some of these are worth a try
    own(this.storage);
    this.round = 0; // number of model changes that made earlier answers out of date
    this.isEmpty = false;
  }

  start() {
    this.fill();
    this.adopt();
  }

  // Rows

  async fill() {
    if (this.filling || this.ahead.length >= LOW) return;
    clearTimeout(this.fillTimer);
    this.filling = true;
    this.problem = null;
    const { round } = this;
    try {
      const { rows, lease_seconds: lease } = await api.nextRows(this.annotator, AHEAD - this.ahead.length + !this.row);
      const known = new Set([this.row, ...this.ahead, ...this.unsent.map(({ row }) => row)].map((row) => row?.id));
      const fresh = rows.filter(({ id }) => !known.has(id));
      const until = Date.now() + 1000 * lease;
      this.ahead.push(...fresh.map((row) => ({ ...row, round, until })));
      this.isEmpty = !fresh.length;
    } catch (error) {
      this.problem = error;
      if (mayPass(error)) this.fillTimer = setTimeout(() => this.fill(), RETRY);
    } finally {
      this.filling = false;
    }
    if (this.row) {
      this.refreshed = this.refresh();
      this.changed();
    } else if (this.ahead.length) this.next();
    else this.changed();
  }

  // Shows the next row. Its answers come once they know the last correction, or after `PATIENCE`.
  next(corrected = null) {
    const now = Date.now();
    this.ahead = this.ahead.filter(({ until }) => until > now); // others may have got these rows
    this.row = this.ahead.shift() ?? null;
    if (this.row && (corrected || this.row.round !== this.round)) this.wait(this.row, corrected);
    this.changed();
    this.fill();
  }

  async wait(row, corrected) {
    row.waits = true;
    await Promise.race([Promise.resolve(corrected).then(() => this.refreshed), pause(PATIENCE)]);
    row.waits = false;
    if (row === this.row) this.changed();
  }

  // The model has learned or forgotten something: loads the answers again, except those that people see already.
  outdate() {
    this.round += 1;
    this.refreshed = this.refresh();
  }

  async refresh() {
    const { round } = this;
    const now = Date.now();
    const isHidden = (row) => row && (row !== this.row || row.waits);
    const isMine = ({ until }) => until > now; // others may have got the others
    const rows = [this.row, ...this.ahead].filter((row) => isHidden(row) && row.round !== round && isMine(row));
    if (!rows.length) return;
    try {
      const fresh = await this.rowsOf(rows.map(({ id }) => id));
      for (const row of rows.filter(isHidden))
        Object.assign(
          row,
          fresh.find(({ id }) => id === row.id),
        );
    } catch {
      return; // the earlier answers will do
    }
  }

  async rowsOf(ids) {
    const { round } = this;
    const { rows, lease_seconds: lease } = await api.rowsById(this.annotator, ids);
    const until = Date.now() + 1000 * lease;
    return rows.map(({ id, text, best }) => ({ id, text, best, round, until }));
  }

  // Shows a row now; the one that was shown comes next.
  show(row) {
    if (this.row && this.row.id !== row.id) this.ahead.unshift(this.row);
    this.ahead = this.ahead.filter(({ id }) => id !== row.id);
    this.row = { ...row };
    this.refreshed = this.refresh();
    this.changed();
  }

  // Shows rows now, the first one at once; `fields` are added to each.
  async open(ids, fields) {
    for (const row of (await this.rowsOf(ids)).toReversed()) this.show({ ...row, ...fields });
  }

  // Labels

  // The fields are `nodes` or `skip`, and perhaps `note` or `settle`.
  give(fields) {
    const { row } = this;
    this.unsent.push({ row, body: { annotator: this.annotator, id: row.id, ...fields } });
    this.store();
    const isCorrection = fields.nodes && fields.nodes[0] !== row.best[0]?.node;
    const sent = this.send();
    this.next(isCorrection ? sent : null);
  }

  send() {
    clearTimeout(this.timer);
    this.sending ??= this.sendAll().finally(() => {
      this.sending = null;
      this.changed();
    });
    return this.sending;
  }

  async sendAll() {
    this.unsentProblem = null;
    while (this.unsent.length) {
      const [entry] = this.unsent;
      try {
        const { label_id: id, right } = await api.giveLabel(entry.body);
        this.given.push({ id, row: entry.row });
        if (right === false) this.outdate();
      } catch (error) {
        if (mayPass(error)) {
          this.unsentProblem = error;
          this.timer = setTimeout(() => this.send(), RETRY);
          return;
        }
        this.refused.push({ ...entry, error });
      }
      this.unsent = this.unsent.filter((other) => other !== entry);
      this.store();
      this.saved();
    }
  }

  // Settles a disagreement, with an answer at once.
  async settle(id, nodes) {
    const { label_id } = await api.giveLabel({ annotator: this.annotator, id, nodes, settle: true });
    this.given.push({ id: label_id, row: { id } });
    this.outdate();
    this.saved();
  }

  // Takes the last label back, and shows its row; returns whether there was one.
  async undo() {
    await this.sending;
    const entry = this.unsent.pop();
    if (entry) {
      this.store();
      this.show(entry.row);
      return true;
    }
    const last = this.given.at(-1) ?? (await this.lastGiven());
    if (!last) return false;
    await api.undoLabel(last.id).catch((error) => {
      if (error.status !== 404) throw error; // it was replaced or undone elsewhere
    });
    this.given = this.given.filter(({ id }) => id !== last.id);
    this.outdate();
    this.saved();
    await this.open([last.row.id], { reason: last.row.reason });
    return true;
  }

  async lastGiven() {
    const [item] = (await api.givenLabels(this.annotator, 1)).items;
    return item && { id: item.label_id, row: { id: item.id } };
  }

  // Removes a refused label; its row is shown again to be labelled again.
  retry(entry) {
    this.refused = this.refused.filter((other) => other !== entry);
    this.store();
    this.show(entry.row);
  }

  // Storage

  store() {
    const entries = [...this.foreign, ...this.refused, ...this.unsent].map(({ row, body }) => ({ row, body }));
    if (entries.length) keep(this.storage, JSON.stringify(entries));
    else drop(this.storage);
  }

  // Takes over the labels of pages that were closed, now and later, and sends them.
  async adopt() {
    await adopt(this.prefix, this.storage, (value) => {
      this.foreign.push(...entriesOf(value));
      this.mayRestore = true;
      this.store();
    });
    if (this.mayRestore) await this.restore();
    setTimeout(() => this.adopt(), RETRY);
  }

  // A project with other rows may have the same name: its labels stay foreign.
  async restore() {
    this.mayRestore = false;
    for (const entry of [...this.foreign]) {
      try {
        const [{ text }] = await this.rowsOf([entry.row.id]);
        if (text !== entry.row.text) continue;
      } catch (error) {
        this.mayRestore ||= mayPass(error);
        continue;
      }
      this.foreign = this.foreign.filter((other) => other !== entry);
      this.unsent.push(entry);
    }
    this.send();
  }
}

function entriesOf(value) {
  try {
    return JSON.parse(value);
  } catch {
    return [];
  }
}
