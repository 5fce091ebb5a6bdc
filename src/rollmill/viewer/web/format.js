// How numbers look: as in the reports (reports/html/tables.py and plots.py).

const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "K"]];
const BYTES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"]];

// Four digits that matter, with separators of thousands: 12,345, 0.01234, 1.2e-07.
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (value === 0 || !Number.isFinite(value)) return general(value, 6);
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-4) return general(value, 3);
  if (size >= 1000) return fixed(value, 0);
  const text = fixed(value, Math.max(0, 3 - Math.floor(Math.log10(size))), false);
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

// For ticks: 950, 12K, 4.5M.
export function short(value) {
  for (const [unit, name] of UNITS) {
    if (Math.abs(value) >= unit && Math.abs(value) < 1e15) return general(value / unit, 4) + name;
  }
  return general(value, 4);
}

export function whole(value) {
  return value === null || value === undefined ? "-" : fixed(value, 0);
}

export function bytes(value) {
  for (const [unit, name] of BYTES) {
    if (value >= unit * 0.9995) return `${threeDigits(value / unit)} ${name}`;
  }
  return `${value.toFixed(0)} B`;
}

export function counted(count, what) {
  return `${fixed(count, 0)} ${what}${count === 1 ? "" : "s"}`;
}

// Frames per second.
export function rate(value) {
  return value === null || value === undefined ? "-" : whole(Math.round(value));
}

// 2026-11-19 13:41:36 UTC, as in the reports; what is no time stays as it is.
export function when(time) {
  const found = new Date(time);
  return Number.isNaN(found.getTime()) ? String(time) : `${found.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

// 45 s, 12 min, 3.5 h, 2.1 days
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (Math.round(seconds) < 60) return `${Math.round(seconds)} s`;
  if (Math.round(seconds / 60) < 60) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${threeDigits(seconds / 3600)} h` : `${threeDigits(seconds / 86400)} days`;
}

function threeDigits(value) {
  return Math.abs(value) < 9.995 ? value.toFixed(2) : Math.abs(value) < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

function fixed(value, digits, useGrouping = true) {
  const options = { useGrouping, minimumFractionDigits: digits, maximumFractionDigits: digits, roundingMode: "halfEven" };
  return value.toLocaleString("en-US", options);
}

// C's %g.
function general(value, digits) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const power = Number(exponent);
  const trimmed = (text) => (text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text);
  if (power < -4 || power >= digits) {
    return `${trimmed(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  }
  return trimmed(value.toFixed(digits - 1 - power));
}
