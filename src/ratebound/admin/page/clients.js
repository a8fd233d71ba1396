// Clients: the most limited ones, operators' blocks and overrides, and the usage of one client.

import {
  Bar,
  Table,
  byId,
  clockTime,
  count,
  countWith,
  duration,
  fillOnce,
  fillText,
  fullTime,
  instant,
  make,
  percent,
  plural,
  setShown,
  setText,
  until,
} from "./elements.js";
import { call, query } from "./server.js";

const SHOWN = 100;
const OF_PENALTY = "It ends by itself. To lift it now, look up the client and reset its counts. It stays in this list until its end.";
const DURATIONS = [
  ["10 minutes", "10 minutes"],
  ["1 hour", "1 hour"],
  ["1 day", "1 day"],
  ["7 days", "7 days"],
  ["", "no end"],
];

function offerDurations(select) {
  select.replaceChildren(
    ...DURATIONS.map(([value, words]) => make("option", { value, selected: value === "1 hour" }, words)),
  );
}

function actionButton(cell, words, act) {
  const button = make("button", { type: "button", class: "small", onclick: () => act(cell.item, button) }, words);
  return button;
}

/** A column with one button. `labelOf` tells a screen reader what the button acts on. `insteadOf` returns words that
 * stand there instead, or "". */
function actionColumn(page, heading, words, labelOf, act, insteadOf = () => "") {
  return {
    heading,
    kind: "action",
    unseen: true,
    fill: (cell, item) =>
      fillOnce(
        cell,
        item,
        () => {
          const button = actionButton(cell, words, act);
          const instead = make("span", { class: "tag" });
          return { button, instead, nodes: [button, instead] };
        },
        ({ button, instead }) => {
          cell.item = item;
          const text = insteadOf(item);
          setText(instead, text);
          setShown(instead, text !== "");
          setShown(button, page.canWrite && !item.isAutomatic && text === "");
          button.setAttribute("aria-label", labelOf(item));
        },
      ),
  };
}

const endColumn = {
  heading: "Ends",
  kind: "number",
  fill: (cell, item) =>
    fillText(
      cell,
      item.seconds === undefined ? until(item.until) : `in ${duration(item.seconds)}`,
      fullTime(item.until),
    ),
};

export class TopClients {
  constructor(page) {
    this.page = page;
    this.names = null; // by digest, once the operator has asked
    this.top = [];
    this.button = byId("show-names");
    this.button.addEventListener("click", () => this.toggleNames());
    this.table = new Table(byId("top"), {
      label: "Top limited clients",
      keyOf: (client) => client.client,
      empty: "Nobody was denied lately.",
      columns: [
        {
          heading: "Client",
          hint: "A digest, unless names are shown.",
          kind: "client",
          fill: (cell, client) => fillText(cell, this.nameOf(client.client), client.client),
        },
        {
          heading: "Denials",
          hint: "In the last 10 to 20 minutes.",
          kind: "number",
          fill: (cell, client) =>
            fillText(cell, count(client.denials), client.error ? `at most ${count(client.error)} too many` : ""),
        },
        actionColumn(
          page,
          "Action",
          "Block for 1 h",
          (client) => `Block ${this.nameOf(client.client)} for one hour`,
          (client, button) => this.block(client, button),
          (client) => (client.blocked ? "Blocked" : ""),
        ),
      ],
    });
  }

  nameOf(digest) {
    return this.names?.get(digest) ?? digest;
  }

  show(top) {
    this.top = top.slice(0, 10);
    this.table.show(this.top);
    setText(this.button, this.names === null ? "Show names" : this.areNamed ? "Hide names" : "Show new names");
  }

  /** True if names were asked for since the newest of these clients came. */
  get areNamed() {
    return this.names !== null && this.top.every((client) => this.names.has(client.client));
  }

  async toggleNames() {
    if (!this.areNamed) {
      await this.page.act(
        this.button,
        async () => {
          const found = await call("GET", query("api/top", { names: "yes" }));
          this.names = new Map(found.top.map((client) => [client.client, client.name ?? client.client]));
        },
        "Names are shown. The audit log says so.",
      );
    } else this.names = null;
    this.show(this.top);
  }

  hideNames() {
    this.names = null;
    this.show([]);
  }

  async block(client, button) {
    const body = { digest: client.client, for: "1 hour", reason: `${plural(client.denials, "denial")}` };
    let blocked = null;
    await this.page.act(
      button,
      async () => (blocked = await call("POST", "api/blocks", body)),
      () => `${blocked?.client ?? client.client} is blocked for one hour.`,
      () => call("DELETE", query("api/blocks", { client: blocked.client })),
    );
  }
}

/** A list with a filter: the first hundred are shown. */
class LongList {
  constructor(parent, words, table) {
    this.words = words;
    this.items = [];
    this.filter = make("input", {
      type: "search",
      placeholder: "Filter",
      "aria-label": `Filter ${words}`,
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.draw(),
    });
    this.note = make("p", { class: "detail" });
    const box = make("div", { class: "scroll tall" });
    this.tools = make("div", { class: "tools" }, this.filter, this.note);
    parent.replaceChildren(this.tools, box);
    this.table = table(box);
  }

  show(items) {
    this.items = items;
    this.draw();
  }

  draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    const found = wanted ? this.items.filter((item) => item.searched.includes(wanted)) : this.items;
    setShown(this.tools, this.items.length > 10 || wanted !== "");
    const all = count(this.items.length);
    setText(
      this.note,
      found.length > SHOWN
        ? `${SHOWN} of ${count(found.length)} shown`
        : wanted
          ? `${count(found.length)} of ${all}`
          : "",
    );
    this.table.show(found.slice(0, SHOWN));
  }
}

const searched = (...texts) => texts.filter(Boolean).join("\n").toLowerCase();

export class BlocksPanel {
  constructor(page) {
    this.page = page;
    offerDurations(byId("block-for"));
    byId("block").addEventListener("submit", (event) => this.add(event));
    this.list = new LongList(
      byId("blocks"),
      "blocks",
      (parent) =>
        new Table(parent, {
          label: "Blocks",
          keyOf: (block) => `${block.isAutomatic ? "p" : "b"}${block.client}\n${block.limit ?? ""}`,
          empty: "No client is blocked. Block one above, or from the top limited clients.",
          columns: [
            {
              heading: "Client",
              kind: "client",
              fill: (cell, block) => fillText(cell, block.isAutomatic ? page.top.nameOf(block.client) : block.client),
            },
            {
              heading: "Reason",
              kind: "long",
              fill: (cell, block) => fillText(cell, block.reason || "–", block.isAutomatic ? OF_PENALTY : ""),
            },
            {
              heading: "By",
              kind: "whole",
              fill: (cell, block) => fillText(cell, block.by || "–", fullTime(block.since)),
            },
            endColumn,
            actionColumn(
              page,
              "Action",
              "Unblock",
              (block) => `Unblock ${block.client}`,
              (block, button) => this.remove(block, button),
            ),
          ],
        }),
    );
  }

  show(blocks, penalized, stateOfAll) {
    setShown(byId("blocks-idle"), stateOfAll !== "on");
    const words = `Blocks have no effect while all rules are ${stateOfAll === "off" ? "off" : "in shadow"}.`;
    setText(byId("blocks-idle"), words);
    const items = blocks.map((block) => ({ ...block, searched: searched(block.client, block.reason, block.by) }));
    const automatic = penalized.map(({ client, limit, seconds }) => ({
      client,
      limit,
      seconds,
      reason: `penalty of ${limit}`,
      by: "policy",
      isAutomatic: true,
      searched: searched(client, limit),
    }));
    const all = items.length + automatic.length;
    setText(byId("blocks-count"), all ? countWith(automatic.length, all) : "");
    this.list.show([...items, ...automatic]);
  }

  async add(event) {
    event.preventDefault();
    const client = byId("block-client").value.trim();
    const body = { client };
    if (byId("block-for").value) body.for = byId("block-for").value;
    if (byId("block-reason").value.trim()) body.reason = byId("block-reason").value.trim();
    const isDone = await this.page.act(
      event.submitter,
      () => call("POST", "api/blocks", body),
      `${client} is blocked.`,
      () => call("DELETE", query("api/blocks", { client })),
    );
    if (isDone) {
      byId("block-client").value = byId("block-reason").value = "";
      byId("block-client").focus();
    }
  }

  async remove(block, button) {
    await this.page.act(
      button,
      () => call("DELETE", query("api/blocks", { client: block.client })),
      `${block.client} is not blocked any more.`,
    );
  }
}

export class OverridesPanel {
  constructor(page) {
    this.page = page;
    offerDurations(byId("override-for"));
    byId("override").addEventListener("submit", (event) => this.add(event));
    this.list = new LongList(
      byId("overrides"),
      "overrides",
      (parent) =>
        new Table(parent, {
          label: "Overrides",
          keyOf: (one) => `${one.client}\n${one.rules.join("\n")}`,
          empty: "No overrides. An override gives one client other limits or another tier, for a time.",
          columns: [
            { heading: "Client", kind: "client", fill: (cell, one) => fillText(cell, one.client) },
            { heading: "Gets", kind: "long", fill: (cell, one) => fillText(cell, one.limits ?? `tier ${one.tier}`) },
            { heading: "Rules", kind: "long", fill: (cell, one) => fillText(cell, one.rules.join(", ") || "all") },
            {
              heading: "By",
              kind: "long",
              fill: (cell, one) =>
                fillText(cell, [one.by, one.reason].filter(Boolean).join(": ") || "–", fullTime(one.since)),
            },
            endColumn,
            actionColumn(
              page,
              "Action",
              "Remove",
              (one) => `Remove the override of ${one.client}`,
              (one, button) => this.remove(one, button),
            ),
          ],
        }),
    );
  }

  show(overrides) {
    setText(byId("overrides-count"), overrides.length ? count(overrides.length) : "");
    this.list.show(
      overrides.map((one) => ({
        ...one,
        searched: searched(one.client, one.limits, one.tier, one.reason, one.by, ...one.rules),
      })),
    );
  }

  async add(event) {
    event.preventDefault();
    const fields = {
      client: "override-client",
      limits: "override-limits",
      tier: "override-tier",
      for: "override-for",
      reason: "override-reason",
    };
    const body = {};
    for (const [name, id] of Object.entries(fields)) if (byId(id).value.trim()) body[name] = byId(id).value.trim();
    const rules = byId("override-rules")
      .value.split(",")
      .map((rule) => rule.trim())
      .filter(Boolean);
    if (rules.length) body.rules = rules;
    const isDone = await this.page.act(
      event.submitter,
      () => call("POST", "api/overrides", body),
      `${body.client} has an override.`,
      () => call("DELETE", query("api/overrides", { client: body.client, rule: rules })),
    );
    if (isDone) {
      for (const id of [...Object.values(fields), "override-rules"])
        if (byId(id).tagName === "INPUT") byId(id).value = "";
      byId("override-client").focus();
    }
  }

  async remove(one, button) {
    const path = query("api/overrides", { client: one.client, rule: one.rules });
    await this.page.act(button, () => call("DELETE", path), `The override of ${one.client} is removed.`);
  }
}

/** What one client has used, and the slots that it holds. Operators grant units of a quota here, and reset counts. */
export class LookUp {
  constructor(page) {
    this.page = page;
    byId("lookup").addEventListener("submit", (event) => {
      event.preventDefault();
      this.show(byId("lookup-client").value.trim(), event.submitter);
    });
  }

  async show(client, button) {
    await this.page.act(button, async () => {
      const [{ usage }, { holders }] = await Promise.all([
        call("GET", query("api/usage", { client })),
        call("GET", query("api/holders", { client })).catch((error) => {
          if (error.status === 401) throw error;
          return { holders: [] }; // the storage cannot list them: the usage says how many there are
        }),
      ]);
      this.draw(client, usage, holders);
    });
  }

  clear() {
    byId("usage").replaceChildren();
  }

  draw(client, usages, holders) {
    const isAlone = usages.some((usage) => usage.degraded);
    byId("usage").replaceChildren(
      this.tools(client),
      ...(isAlone ? [make("p", { class: "problem" }, ALONE)] : []),
      usageTable(client, usages),
      ...(holders.length ? [make("h3", {}, "Slots that it holds"), holdersTable(client, holders)] : []),
      ...this.grant(client, usages),
    );
  }

  tools(client) {
    const words = make("p", {}, make("strong", {}, client), ` at ${clockTime(Date.now() / 1000)}`);
    const tools = make("div", { class: "tools" }, words);
    if (this.page.canWrite) {
      const reset = make("button", { type: "button", class: "small" }, "Reset all counts");
      reset.addEventListener("click", async () => {
        const work = () => call("POST", "api/resets", { client });
        if (await this.page.act(reset, work, `All counts of ${client} start anew.`)) await this.show(client, reset);
      });
      tools.append(reset);
    }
    return tools;
  }

  /** A form that grants units, if a rule has a quota. */
  grant(client, usages) {
    const rules = [...new Set(usages.filter((usage) => usage.previous !== null).map((usage) => usage.rule))];
    if (!this.page.canWrite || !rules.length) return [];
    const field = (id, words, input) =>
      make("div", { class: "field" }, make("label", { for: id }, words), input);
    const units = make("input", {
      id: "grant-units",
      type: "number",
      min: 1,
      step: 1,
      required: true,
      placeholder: "500",
    });
    const rule = make("select", { id: "grant-rule" }, ...rules.map((name) => make("option", { value: name }, name)));
    const button = make("button", { type: "submit" }, "Grant");
    const form = make(
      "form",
      { class: "act", id: "grant" },
      field("grant-units", "Units", units),
      field("grant-rule", "Of the quota of rule", rule),
      button,
      make("p", { class: "detail" }, "They are added to the present window of the quota."),
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const body = { client, units: Number(units.value), rule: rule.value };
      const words = `${client} has ${plural(body.units, "unit")} more of ${body.rule}.`;
      if (await this.page.act(button, () => call("POST", "api/grants", body), words)) await this.show(client, button);
    });
    return [form];
  }
}

const ALONE = "The storage is out of reach. These are the shares of one process, not what the client has used.";

function usageTable(client, usages) {
  const box = make("div", { class: "scroll" });
  const table = new Table(box, {
    label: `Usage of ${client}`,
    keyOf: (usage) => `${usage.rule}\n${usage.name}\n${usage.limit}`,
    empty: `No limit applies to ${client}, or nothing was counted yet.`,
    columns: [
      { heading: "Rule", kind: "name", fill: (cell, usage) => fillText(cell, usage.rule || usage.name) },
      {
        heading: "Limit",
        kind: "long",
        fill: (cell, usage) => fillText(cell, usage.blocked ? `${usage.limit}: blocked` : usage.limit),
      },
      {
        heading: "Used",
        kind: "bar",
        fill: (cell, usage) =>
          fillOnce(
            cell,
            usage,
            () => new Bar("used"),
            (bar) =>
              bar.set(
                usage.quota ? usage.used / usage.quota : null,
                usage.quota ? percent(usage.used / usage.quota) : "–",
              ),
          ),
      },
      { heading: "Remaining", kind: "number", fill: (cell, usage) => fillText(cell, count(usage.remaining)) },
      {
        heading: "Of",
        kind: "number",
        fill: (cell, usage) =>
          fillText(cell, count(usage.quota), usage.granted ? `${count(usage.granted)} of them were granted` : ""),
      },
      {
        heading: "Resets",
        hint: "When nothing of the limit is used any more, or the next window begins.",
        kind: "number",
        fill: (cell, usage) => {
          const isOver = instant(usage.resets_at) <= Date.now() / 1000;
          fillText(cell, isOver ? "now" : until(usage.resets_at), fullTime(usage.resets_at));
        },
      },
    ],
  });
  table.show(usages);
  return box;
}

function holdersTable(client, holders) {
  const box = make("div", { class: "scroll" });
  const table = new Table(box, {
    label: `Slots of ${client}`,
    keyOf: (holder) => `${holder.limit}\n${holder.id}`,
    empty: "",
    columns: [
      { heading: "Limit", kind: "name", fill: (cell, holder) => fillText(cell, holder.limit) },
      { heading: "Slot", kind: "client", fill: (cell, holder) => fillText(cell, holder.id) },
      {
        heading: "Ends, if nobody renews it",
        kind: "number",
        fill: (cell, holder) => fillText(cell, until(holder.expires_at), fullTime(holder.expires_at)),
      },
    ],
  });
  table.show(holders);
  return box;
}
