import { expect, test } from "vitest";
import { bytes, duration, measure, percent, plural, relative, shortId } from "../src/format";

test.each([
  [0, "0 ms"],
  [0.0421, "42 ms"],
  [0.5, "500 ms"],
  [1, "1.0 s"],
  [9.94, "9.9 s"],
  [9.96, "10 s"],
  [59.4, "59 s"],
  [59.6, "1 min"],
  [3599.7, "1 h"],
  [3725, "1 h 2 min"],
  [90000, "1 d 1 h"],
  [null, "–"],
  [Number.NaN, "–"],
  [-3, "0 ms"],
])("%s seconds are %s", (seconds, text) => expect(duration(seconds)).toBe(text));

test.each([
  [0, "0 bytes"],
  [999, "999 bytes"],
  [1000, "1.0 kB"],
  [999_999, "1.0 MB"],
  [123_456_789, "123 MB"],
  [5e15, "5000 TB"],
])("%s bytes are %s", (size, text) => expect(bytes(size)).toBe(text));

test("a share below 1 is never shown as 100 %", () => {
  expect(percent(0.9999)).toBe("99 %");
  expect(percent(1)).toBe("100 %");
  expect(percent(7)).toBe("100 %");
});

test("ages have one unit, and times in the future begin with 'in'", () => {
  const now = Date.parse("2026-01-01T12:00:00Z");
  expect(relative("2026-01-01T11:59:58Z", now)).toBe("now");
  expect(relative("2026-01-01T11:30:00Z", now)).toBe("30 min ago");
  expect(relative("2026-01-01T13:00:00Z", now)).toBe("in 60 min");
  expect(relative("2025-12-25T12:00:00Z", now)).toBe("7 d ago");
});

test("values of rasters are rounded to their significant digits", () => {
  expect(measure(1234567)).toBe("1,234,567");
  expect(measure(0.1 + 0.2)).toBe("0.3");
  expect(measure(1e-9)).toBe("1.000e-9");
  expect(measure(null)).toBe("–");
});

test("counts have the right plural, and long ids are shortened", () => {
  expect(plural(1, "child", "children")).toBe("1 child");
  expect(plural(0, "job")).toBe("0 jobs");
  expect(shortId("01a1e943-ec9e-78c2-bcbc-6c8ee90c71f4")).toBe("01a1…0c71f4");
  expect(shortId("short")).toBe("short");
});
