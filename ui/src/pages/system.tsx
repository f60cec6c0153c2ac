/**
 * The state of the installation, in tabs: instances, queues, leases, dead letters, janitor, callbacks, commands, database,
 * platforms, keys.
 */
import { Tabs } from "../components/basics";
import { useTitle } from "../frame";
import { may } from "../session";
import { Callbacks } from "./system_callbacks";
import { Commands } from "./system_commands";
import { Database } from "./system_database";
import { Instances } from "./system_instances";
import { DeadLetters, JanitorLog } from "./system_janitor";
import { Keys } from "./system_keys";
import { Platforms } from "./system_platforms";
import { Leases, Queues } from "./system_queues";

export default function SystemPage() {
  useTitle("System");
  const canRead = may("platform:read");
  const tabs = [
    ...(canRead
      ? [
          { id: "instances", label: "Instances", content: () => <Instances /> },
          { id: "queues", label: "Queues", content: () => <Queues /> },
          { id: "leases", label: "Leases", content: () => <Leases /> },
          { id: "dead", label: "Dead letters", content: () => <DeadLetters /> },
          { id: "janitor", label: "Janitor", content: () => <JanitorLog /> },
        ]
      : []),
    ...(may("queues:operate") ? [{ id: "callbacks", label: "Callbacks", content: () => <Callbacks /> }] : []),
    { id: "commands", label: "Commands", content: () => <Commands /> },
    ...(canRead ? [{ id: "database", label: "Database", content: () => <Database /> }] : []),
    { id: "platforms", label: "Platforms", content: () => <Platforms /> },
    ...(may("keys:write") ? [{ id: "keys", label: "Keys", content: () => <Keys /> }] : []),
  ];
  return (
    <>
      <div class="page-head">
        <h1>System</h1>
      </div>
      <Tabs label="Parts of the system" tabs={tabs} />
    </>
  );
}
