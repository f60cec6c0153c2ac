/** A form for the JSON schema of a workflow's or a command's inputs. Errors of the server are shown at their fields. */
import { useId, useState } from "preact/hooks";
import { ApiProblem, type FieldMistake } from "../api/client";

export interface FieldSchema {
  type?: string | string[];
  title?: string;
  description?: string;
  default?: unknown;
  enum?: unknown[];
  anyOf?: FieldSchema[];
  minimum?: number;
  maximum?: number;
  maxLength?: number;
  items?: FieldSchema;
}

export interface ObjectSchema {
  properties?: Record<string, FieldSchema>;
  required?: string[];
}

/** What the user typed, as text by field; an empty text means that the field has no value. */
export type Entries = Record<string, string>;

export function typeOf(schema: FieldSchema): string {
  const types = [schema.type ?? [], ...(schema.anyOf ?? []).map((each) => each.type ?? [])].flat();
  return types.find((type) => type !== "null") ?? (schema.enum ? "string" : "object");
}

export interface Parsed {
  values: Record<string, unknown>;
  errors: Record<string, string>;
}

/** The values of the entries, and an error for each entry of a wrong type. Empty fields are left out. */
export function parse(schema: ObjectSchema, entries: Entries): Parsed {
  const values: Record<string, unknown> = {};
  const errors: Record<string, string> = {};
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const text = (entries[name] ?? "").trim();
    if (text === "") {
      if (schema.required?.includes(name) && field.default === undefined) errors[name] = "This field is required.";
      continue;
    }
    const type = typeOf(field);
    if (type === "integer" || type === "number") {
      const value = Number(text);
      if (!Number.isFinite(value) || (type === "integer" && !Number.isInteger(value)))
        errors[name] = type === "integer" ? "Enter a whole number." : "Enter a number.";
      else values[name] = value;
    } else if (type === "boolean") values[name] = text === "true";
    else if (type === "string") values[name] = entries[name];
    else {
      try {
        const value: unknown = JSON.parse(text);
        if (type === "array" && !Array.isArray(value)) errors[name] = "Enter a list, such as [1, 2].";
        else if (type === "object" && (typeof value !== "object" || value === null || Array.isArray(value)))
          errors[name] = 'Enter an object, such as {"a": 1}.';
        else values[name] = value;
      } catch {
        errors[name] =
          type === "array"
            ? "This is not valid JSON. A list looks like [1, 2]."
            : 'This is not valid JSON. An object looks like {"a": 1}.';
      }
    }
  }
  return { values, errors };
}

/** Errors of the server by field: `inputs.count` and `count` both belong to `count`. */
export function errorsByField(mistakes: FieldMistake[]): Record<string, string> {
  const errors: Record<string, string> = {};
  for (const mistake of mistakes) {
    const name =
      (mistake.at ?? "").replace(/^(body|inputs|input_params|parameters|params)[./]/, "").split(/[./[]/)[0] ?? "";
    if (name) errors[name] = mistake.message;
  }
  return errors;
}

/** The state of a form for a schema. `fields` are the properties of its `SchemaForm`. */
export function useSchemaForm(schema: ObjectSchema) {
  const [entries, setEntries] = useState<Entries>({});
  const [errors, setErrors] = useState<Record<string, string>>({});
  const [problem, setProblem] = useState<Error | null>(null);
  const [isBusy, setBusy] = useState(false);
  /** Send the values, unless an entry has an error. */
  const submit = async (send: (values: Parsed["values"]) => Promise<void>) => {
    const parsed = parse(schema, entries);
    setErrors(parsed.errors);
    setProblem(null);
    if (Object.keys(parsed.errors).length > 0) return;
    setBusy(true);
    try {
      await send(parsed.values);
    } catch (error) {
      setProblem(error as Error);
      if (error instanceof ApiProblem) setErrors(errorsByField(error.errors));
    } finally {
      setBusy(false);
    }
  };
  return { fields: { schema, entries, errors, onChange: setEntries }, problem, isBusy, submit };
}

export function SchemaForm(props: {
  schema: ObjectSchema;
  entries: Entries;
  errors: Record<string, string>;
  onChange: (entries: Entries) => void;
  hidden?: string[];
}) {
  const fields = Object.entries(props.schema.properties ?? {}).filter(([name]) => !props.hidden?.includes(name));
  const ordered = [...fields].sort(
    ([a], [b]) =>
      Number(props.schema.required?.includes(b) ?? false) - Number(props.schema.required?.includes(a) ?? false),
  );
  if (ordered.length === 0) return <p class="muted">There are no inputs.</p>;
  return (
    <div class="schema-form">
      {ordered.map(([name, field]) => (
        <Field
          key={name}
          name={name}
          field={field}
          isRequired={(props.schema.required?.includes(name) ?? false) && field.default === undefined}
          value={props.entries[name] ?? ""}
          error={props.errors[name]}
          onChange={(value) => props.onChange({ ...props.entries, [name]: value })}
        />
      ))}
    </div>
  );
}

function Field(props: {
  name: string;
  field: FieldSchema;
  isRequired: boolean;
  value: string;
  error: string | undefined;
  onChange: (value: string) => void;
}) {
  const { name, field, value, error } = props;
  const id = useId();
  const type = typeOf(field);
  const defaultJson = field.default === undefined || field.default === null ? "" : JSON.stringify(field.default);
  const describedBy =
    [field.description ? `${id}-hint` : "", error ? `${id}-error` : ""].filter(Boolean).join(" ") || undefined;
  const common = {
    id,
    class: "input",
    name,
    "aria-invalid": Boolean(error),
    "aria-describedby": describedBy,
    required: props.isRequired,
  };
  const choices = field.enum ?? field.anyOf?.find((each) => each.enum)?.enum;
  const defaultLabel = defaultJson ? `Default: ${defaultJson.replace(/^"|"$/g, "")}` : "Not set";
  return (
    <div class="field">
      <label for={id}>
        {name}
        {props.isRequired && <span class="muted"> (required)</span>}
      </label>
      {choices ? (
        <select {...common} value={value} onChange={(event) => props.onChange(event.currentTarget.value)}>
          <option value="">{defaultLabel}</option>
          {choices.map((choice) => (
            <option key={String(choice)} value={String(choice)}>
              {String(choice)}
            </option>
          ))}
        </select>
      ) : type === "boolean" ? (
        <select {...common} value={value} onChange={(event) => props.onChange(event.currentTarget.value)}>
          <option value="">{defaultLabel}</option>
          <option value="true">yes</option>
          <option value="false">no</option>
        </select>
      ) : type === "object" || type === "array" ? (
        <textarea
          {...common}
          class="input mono"
          rows={3}
          placeholder={defaultJson || (type === "array" ? "[]" : "{}")}
          value={value}
          onInput={(event) => props.onChange(event.currentTarget.value)}
        />
      ) : (
        <input
          {...common}
          type="text"
          inputMode={type === "integer" ? "numeric" : type === "number" ? "decimal" : "text"}
          placeholder={defaultJson ? defaultLabel : undefined}
          maxLength={field.maxLength}
          value={value}
          onInput={(event) => props.onChange(event.currentTarget.value)}
        />
      )}
      {field.description && (
        <span id={`${id}-hint`} class="hint">
          {field.description}
        </span>
      )}
      {error && (
        <span id={`${id}-error`} class="error" role="alert">
          {error}
        </span>
      )}
    </div>
  );
}
