// An exponential moving average.

/** Smooths y over x. `weight` from 0 (none) to 1 is the share of the past that remains over one mean distance of the points. */
export function smooth(x, y, weight) {
  const spacing = x.length > 1 ? (x[x.length - 1] - x[0]) / (x.length - 1) : 1;
  let [sum, norm, before] = [0, 0, x[0]];
  return y.map((value, place) => {
    if (value === null) return null; // a gap stays a gap; the average continues after it
    const kept = spacing > 0 ? weight ** Math.min((x[place] - before) / spacing, 1e3) : weight;
    before = x[place];
    sum = kept * sum + (1 - weight) * value;
    norm = kept * norm + (1 - weight); // without this the first values would be drawn towards zero
    return sum / norm;
  });
}
