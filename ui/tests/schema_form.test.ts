import { expect, test } from "vitest";
import { errorsByField, parse, typeOf } from "../src/components/schema_form";

const SCHEMA = {
  properties: {
    name: { type: "string" },
    count: { type: "integer", default: 3 },
    share: { anyOf: [{ type: "number" }, { type: "null" }] },
    isOn: { type: "boolean" },
    list: { type: "array" },
    map: { type: "object" },
  },
  required: ["name", "count"],
};

test("entries become values of their types, and empty ones are left out", () => {
  const parsed = parse(SCHEMA, { name: " x ", count: "7", share: "0.5", isOn: "false", list: "[1]", map: '{"a": 1}' });
  expect(parsed).toEqual({
    values: { name: " x ", count: 7, share: 0.5, isOn: false, list: [1], map: { a: 1 } },
    errors: {},
  });
  expect(parse(SCHEMA, { name: "x" }).values).toEqual({ name: "x" });
});

test.each([
  ["name", "", "This field is required."],
  ["count", "1.5", "Enter a whole number."],
  ["count", "1e999", "Enter a whole number."],
  ["share", "much", "Enter a number."],
  ["list", '{"a": 1}', "Enter a list, such as [1, 2]."],
  ["map", "[1]", 'Enter an object, such as {"a": 1}.'],
  ["map", "null", 'Enter an object, such as {"a": 1}.'],
  ["list", "[", "This is not valid JSON. A list looks like [1, 2]."],
])("%s = %s is refused", (field, text, message) => {
  expect(parse(SCHEMA, { name: "x", [field]: text }).errors).toEqual({ [field]: message });
});

test("a required input with a default may be empty", () => {
  expect(parse(SCHEMA, { name: "x" }).errors).toEqual({});
});

test("text that users enter is never interpreted", () => {
  const text = "{{ 7 * 7 }}<script>alert(1)</script>";
  expect(parse(SCHEMA, { name: text }).values.name).toBe(text);
});

test("errors of the server are assigned to their fields", () => {
  expect(
    errorsByField([
      { message: "a", at: "inputs.count" },
      { message: "b", at: "parameters/share" },
      { message: "c", at: "name" },
      { message: "d", at: null },
    ]),
  ).toEqual({ count: "a", share: "b", name: "c" });
});

test("the type of an optional field is the one that is not null", () => {
  expect(typeOf({ anyOf: [{ type: "null" }, { type: "integer" }] })).toBe("integer");
  expect(typeOf({ type: ["null", "string"] })).toBe("string");
  expect(typeOf({})).toBe("object");
});
