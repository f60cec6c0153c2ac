/** Direct commands: each is one short operation, and its result is shown when it has ended. */
import { useState } from "preact/hooks";
import { api, type Schemas } from "../api/client";
import { Card, Dialog, Empty, Json, Loaded, ProblemView } from "../components/basics";
import { type ObjectSchema, SchemaForm, useSchemaForm } from "../components/schema_form";
import { Table } from "../components/table";
import { useResource } from "../data";
import { may } from "../session";

type Command = Schemas["CommandInfo"];

export function Commands() {
  const [chosen, setChosen] = useState<Command | null>(null);
  const commands = useResource("commands", (signal) => api.get("/api/v1/commands", { signal }));
  return (
    <Card title="Commands" flush>
      <Loaded resource={commands}>
        {(data) =>
          data.items.length === 0 ? (
            <Empty title="There are no commands that you may run" />
          ) : (
            <Table
              keyOf={(command) => command.name}
              items={data.items}
              columns={[
                { name: "Command", cell: (command) => <code>{command.name}</code> },
                { name: "What it does", wide: true, cell: (command) => command.summary },
                {
                  name: "",
                  cell: (command) =>
                    may(command.permission) && (
                      <button type="button" class="button small" onClick={() => setChosen(command)}>
                        Run…
                      </button>
                    ),
                },
              ]}
            />
          )
        }
      </Loaded>
      {chosen && <RunCommand key={chosen.name} command={chosen} onClose={() => setChosen(null)} />}
    </Card>
  );
}

function RunCommand({ command, onClose }: { command: Command; onClose: () => void }) {
  const form = useSchemaForm(command.inputs as ObjectSchema);
  const [result, setResult] = useState<unknown>(null);
  const run = (event: Event) => {
    event.preventDefault();
    form.submit(async (body) => {
      setResult(await api.post("/api/v1/commands/{name}", { path: { name: command.name }, body }));
    });
  };
  return (
    <Dialog title={command.name} onClose={onClose} wide>
      <form class="stack" onSubmit={run} noValidate>
        <p>{command.description}</p>
        <SchemaForm {...form.fields} />
        {form.problem && <ProblemView problem={form.problem} />}
        {result !== null && (
          <section class="stack tight" aria-live="polite">
            <h3>Result</h3>
            <Json value={result} />
          </section>
        )}
        <div class="buttons">
          <button type="button" class="button" onClick={onClose}>
            Close
          </button>
          <button type="submit" class="button primary" disabled={form.isBusy}>
            Run
          </button>
        </div>
      </form>
    </Dialog>
  );
}
