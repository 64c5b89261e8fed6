"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  for (const element of all(".script-only")) element.hidden = false;

  // light or dark: the system's choice until told otherwise
  const theme = document.getElementById("theme");
  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const nameTheme = () => { theme.textContent = dark() ? "Light colours" : "Dark colours"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    nameTheme();
  });
  nameTheme();

  // what a mark says, in a box beside it instead of the browser's slow one
  const box = document.createElement("div");
  box.id = "tip";
  box.hidden = true;
  box.setAttribute("role", "status");
  document.body.append(box);
  for (const title of all("svg title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  const show = (mark) => {
    box.textContent = mark.dataset.tip;
    box.hidden = false;
    const at = mark.getBoundingClientRect(), size = box.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - size.width / 2), innerWidth - size.width - 8);
    const above = at.top - size.height - 8;
    box.style.left = `${Math.max(8, left)}px`;
    box.style.top = `${above > 8 ? above : Math.min(at.bottom + 8, innerHeight - size.height - 8)}px`;
  };
  const hide = () => { box.hidden = true; };
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest && event.target.closest("[data-tip]");
    if (mark && mark.dataset.tip) show(mark); else hide();
  });
  document.addEventListener("scroll", hide, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // with the keyboard: a plot is one stop, the arrow keys walk along it
  for (const plot of all(".plot")) {
    const marks = () => all("[data-tip]", plot);
    if (!marks().length) continue;
    plot.tabIndex = 0;
    plot.setAttribute("aria-label", `${plot.getAttribute("aria-label")}. Arrow keys read the points.`);
    let place = -1;
    const leave = () => { for (const mark of all(".at", plot)) mark.classList.remove("at"); hide(); };
    plot.addEventListener("blur", leave);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const list = marks();
      place = Math.min(Math.max(place + step, 0), list.length - 1);
      leave();
      list[place].classList.add("at");
      show(list[place]);
    });
  }

  // constraints by state and by words
  const filter = document.getElementById("filter"), state = document.getElementById("state");
  if (filter && state) {
    const rows = all("tr[data-constraint]"), count = document.getElementById("filter-count");
    const apply = () => {
      const words = filter.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        const fits = (!state.value || row.dataset.state === state.value) &&
          `${row.dataset.constraint} ${row.dataset.words}`.toLowerCase().includes(words);
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
      if (words || state.value) for (const more of all(".constraints details")) more.open = true;
    };
    filter.addEventListener("input", apply);
    state.addEventListener("change", apply);
  }

  // another constraint's curve in front
  const pick = document.getElementById("pick");
  const number = (value, signed) => value === null ? "–" :
    (signed ? (value >= 0 ? "+" : "\u2212") + Math.abs(value).toFixed(4) : Number(value.toPrecision(4)).toString());
  if (pick) pick.addEventListener("change", () => {
    const curve = data.training.curves[Number(pick.value)];
    for (const [id, which] of [["training-excess", "excess"], ["training-multiplier", "multiplier"]]) {
      const plot = document.getElementById(id);
      for (const line of all(".line", plot)) {
        const chosen = line.dataset.name === curve.name;
        line.classList.toggle("main", chosen);
        line.classList.toggle("behind", !chosen);
        if (chosen) line.parentNode.append(line);
      }
      const columns = all(".column", plot);
      const every = Math.max(1, Math.floor(data.training.steps.length / 60));
      columns.forEach((column, place) => {
        const i = place * every, step = data.training.steps[i].toLocaleString("en");
        column.dataset.tip = which === "excess" ?
          `step ${step}: reached ${number(curve.excess[i], true)}` :
          `step ${step}: multiplier ${number(curve.multiplier[i], false)}`;
      });
    }
  });

  // the data of this page as a file
  const save = document.getElementById("save");
  if (save) save.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }));
    link.download = "report.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });

  // paper cannot unfold anything; numbers that a figure shows, and endless lists, stay folded
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details:not([open]):not(.behind)").filter((part) => all("tr", part).length <= 200);
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of folded) part.open = false; });
})();
