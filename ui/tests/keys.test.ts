import { expect, test } from "vitest";
import { expiryDaysOf, platformOf, scopesOf } from "../src/keys";

test.each([
  ["", null],
  ["  ", null],
  ["90", 90],
  [" 1.5 ", 1.5],
  ["3650", 3650],
])("%j is accepted as the days until a key expires", (text, days) => {
  expect(expiryDaysOf(text)).toBe(days);
});

test.each([
  "0",
  "-1",
  "3650.5",
  "1e9",
  "1e999",
  "Infinity",
  "ninety",
  "90 days",
  "1,5",
])("%j days are refused", (text) => {
  expect(() => expiryDaysOf(text)).toThrow("Enter a number of days up to 3650, or leave the field empty.");
});

test("scopes are shown with the platform or the queues of the key", () => {
  expect(scopesOf({ scopes: ["viewer", "author"], platform_id: null, queues: null })).toBe("viewer, author");
  expect(scopesOf({ scopes: ["b2b"], platform_id: "fema", queues: null })).toBe("b2b of fema");
  expect(scopesOf({ scopes: ["worker"], platform_id: null, queues: ["tiles", "vectors"] })).toBe(
    "worker on tiles, vectors",
  );
});

test("only a key with the scope b2b has a platform, even if one was typed before", () => {
  expect(platformOf(["b2b"], " fema ")).toBe("fema");
  expect(platformOf(["viewer"], "fema")).toBeNull();
});
