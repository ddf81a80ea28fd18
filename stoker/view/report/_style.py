"""How a page looks: by day, by night and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1b1f24; --dim: #68707a; --line: #d9dee3; --card: #f6f8fa;
  --good: #00805d; --bad: #c04f00; --busy: #0072b2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --ink: #e6e8ea; --dim: #99a1aa; --line: #333a41; --card: #1d2126;
    --good: #2fc79b; --bad: #f08a4b; --busy: #56b4e9;
  }
}
* { box-sizing: border-box }
body {
  max-width: 1100px; margin: 0 auto; padding: 24px 20px 60px;
  background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
}
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 17px; margin: 0 0 10px; display: inline-block; overflow-wrap: anywhere }
p { margin: 4px 0 }
section { margin-top: 34px }
.dim, footer, figcaption { color: var(--dim) }
footer { margin-top: 40px; font-size: 13px }
summary { cursor: pointer }
pre {
  background: var(--card); padding: 10px; font-size: 12.5px; white-space: pre-wrap; overflow-wrap: anywhere;
}

.state { font-weight: 600 }
.finished { color: var(--good) }
.running { color: var(--busy) }
.died, .failed, .gone, .interrupted, .warning, .error { color: var(--bad) }

.cards { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 18px; font-size: 13px; color: var(--dim) }
.cards > div, .samples figure {
  background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: 8px 14px;
}
.cards b {
  display: block; color: var(--ink); font-size: 19px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
}

.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); gap: 18px }
figure { margin: 0; break-inside: avoid }
svg { display: block; width: 100%; height: auto; fill: var(--dim) }

.wide { overflow-x: auto; margin-bottom: 14px }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums }
th, td { padding: 3px 14px 3px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
td { overflow-wrap: break-word }
th { font-weight: 500 }
th[scope=col] { color: var(--dim); white-space: nowrap }
tr.best > * { font-weight: 700 }
.numbers td, .numbers th[scope=col]:not(:first-child) { text-align: right; padding: 3px 0 3px 18px }
.key::before {
  content: ""; display: inline-block; width: 12px; height: 3px; margin: 0 5px 3px 0; background: var(--own);
}

.matrix td, .matrix th { border: 0; padding: 4px 8px; text-align: right; white-space: nowrap }
.matrix td { min-width: 36px; background: rgb(0 114 178 / var(--share)) }
.matrix td.full { color: #fff }

.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); gap: 14px; font-size: 13px }
img { display: block; width: 100%; max-width: 420px; image-rendering: pixelated }

@media print {
  :root {
    color-scheme: light;
    --paper: #fff; --ink: #000; --dim: #555; --line: #ccc; --card: #fff;
    --good: #00805d; --bad: #c04f00; --busy: #0072b2;
  }
  body { max-width: none; padding: 0; font-size: 11px }
  td { print-color-adjust: exact; -webkit-print-color-adjust: exact }
  .wide { overflow: visible }
  .grid { grid-template-columns: repeat(2, 1fr) }
  h2 { break-after: avoid }
}
"""
