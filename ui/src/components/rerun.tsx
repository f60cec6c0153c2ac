/** The children of fan-outs and the nodes that run again, for previews of resumes and retries. */
import { type Rerun, rerunNames } from "../rerun";

const MAX_NAMES = 40;

export function RerunList({ rerun }: { rerun: Rerun }) {
  const names = rerunNames(rerun);
  return (
    <span class="anywhere">
      <code>{names.slice(0, MAX_NAMES).join(", ")}</code>
      {names.length > MAX_NAMES && ` and ${names.length - MAX_NAMES} more`}
    </span>
  );
}
