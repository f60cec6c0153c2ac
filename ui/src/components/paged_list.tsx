/** The items of a paged list, or a text if there are none; problems of loading, and a button that loads more. */
import type { ComponentChildren } from "preact";
import type { Paged } from "../paged";
import { ProblemView, Skeleton } from "./basics";

export function PagedList<T>(props: {
  paged: Paged<T>;
  empty: ComponentChildren;
  children: (items: T[]) => ComponentChildren;
}) {
  const { paged } = props;
  if (paged.items === null)
    return (
      <div class="body">
        {paged.problem ? <ProblemView problem={paged.problem} onRetry={paged.reload} /> : <Skeleton lines={6} />}
      </div>
    );
  return (
    <>
      {paged.problem && <ProblemView problem={paged.problem} onRetry={paged.reload} />}
      {paged.items.length === 0 ? props.empty : props.children(paged.items)}
      {paged.hasMore && (
        <div class="more">
          <button type="button" class="button small" disabled={paged.isLoading} onClick={paged.more}>
            Show more
          </button>
        </div>
      )}
    </>
  );
}
