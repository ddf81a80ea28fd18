// Okabe and Ito's colors, which color-blind people can tell apart; the same in all charts of stoker.

const TRAIN = "#0072B2";
const VALID = "#E69F00";
const FURTHER = ["#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"];
const DASHES = [[], [6, 3], [2, 3], [10, 3, 2, 3]];

/** The last color is that of the text: black on light, white on dark. */
const last = () => (isDark() ? "#FFFFFF" : "#000000");

export function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** How each line in a chart of one run is drawn: train and valid fixed, others in order; { colour(), dash } by name. */
export function ofNames(names) {
  let further = 0;
  return new Map(names.map((name) => {
    if (name.startsWith("train/")) return [name, { colour: () => TRAIN, dash: [] }];
    if (name.startsWith("valid/")) return [name, { colour: () => VALID, dash: [] }];
    return [name, names.length === 1 ? { colour: () => TRAIN, dash: [] } : lineStyle(further++, [...FURTHER, null])];
  }));
}

/** How runs or groups of runs are drawn: { colour(), dash } by key. A key that stays keeps its look; a new one gets a free one. */
export class Looks {
  constructor() {
    this.places = new Map();
  }

  of(keys) {
    const kept = new Map(keys.filter((key) => this.places.has(key)).map((key) => [key, this.places.get(key)]));
    const taken = new Set(kept.values());
    let next = 0;
    for (const key of keys) {
      while (taken.has(next)) next++;
      if (!kept.has(key)) kept.set(key, next++);
    }
    this.places = kept;
    return new Map(keys.map((key) => [key, lineStyle(kept.get(key), [TRAIN, VALID, ...FURTHER, null])]));
  }
}

function lineStyle(place, colours) {
  const colour = colours[place % colours.length];
  const dash = DASHES[Math.floor(place / colours.length) % DASHES.length];
  return { colour: colour === null ? last : () => colour, dash };
}
